//! Who and where this process is: host identity, names of Unix sockets, addresses, entropy.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{SocketAddr, ToSocketAddrs};

use socket2::SockAddr;

use siloring_core::hash::stable_u64;
use siloring_core::{ClusterId, Generation};

/// The name of a silo's abstract Unix socket, which is scoped to its network namespace.
///
/// It holds the cluster, the generation and a hash of the advertised address. The last is there
/// since two clusters of one name, each with its own store, may count the same generations on one
/// host; their ports differ.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UnixName(String);

impl UnixName {
    /// The name under which an incarnation listens.
    pub fn of(cluster: &ClusterId, generation: Generation, advertised: &str) -> Self {
        let place = stable_u64(advertised.as_bytes());
        Self(format!("siloring/{cluster}/{:016x}/{place:016x}", generation.0))
    }

    /// The name as text, without the leading zero byte that makes it abstract.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn address(&self) -> io::Result<SockAddr> {
        SockAddr::unix(format!("\0{}", self.0))
    }
}

/// Names this host, since its boot, and this network namespace. Silos with equal identities reach
/// each other over Unix sockets.
pub fn host_identity() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/net")?;
    Ok(format!("{}/{}", boot.trim(), namespace.display()))
}

/// Unpredictable bytes for one handshake.
pub fn nonce() -> io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// The socket addresses of an advertised `host:port`. Blocks if the host is a name that must be
/// looked up; a literal address is parsed at once.
pub fn resolve(advertised: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(advertised.to_socket_addrs()?.collect())
}

#[cfg(test)]
mod tests {
    use siloring_core::limits::{HOST_BYTES_MAX, NAME_BYTES_MAX};

    use super::*;

    #[test]
    fn the_longest_unix_name_fits_its_address() {
        let cluster = ClusterId::new("c".repeat(NAME_BYTES_MAX)).unwrap();
        let name = UnixName::of(&cluster, Generation(u64::MAX), "[::1]:65535");
        assert!(name.address().is_ok());
        assert!(name.as_str().len() < 108, "sun_path with its leading zero");
    }

    #[test]
    fn unix_names_differ_in_each_of_their_parts() {
        let demo = ClusterId::new("demo").unwrap();
        let other = ClusterId::new("demo2").unwrap();
        let name = UnixName::of(&demo, Generation(1), "127.0.0.1:7000");
        assert_ne!(name, UnixName::of(&other, Generation(1), "127.0.0.1:7000"));
        assert_ne!(name, UnixName::of(&demo, Generation(2), "127.0.0.1:7000"));
        assert_ne!(name, UnixName::of(&demo, Generation(1), "127.0.0.1:7001"));
    }

    #[test]
    fn the_host_identity_is_stable_and_bounded() {
        let identity = host_identity().unwrap();
        assert_eq!(identity, host_identity().unwrap());
        assert!(identity.len() <= HOST_BYTES_MAX, "{identity}");
    }

    #[test]
    fn two_nonces_differ() {
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }
}
