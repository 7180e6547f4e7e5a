//! One connection: dialed or accepted, read and written without blocking.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use socket2::{Domain, Protocol, SockAddr, SockRef, TcpKeepalive, Type};

use siloring_core::limits::{LINK_KEEP_ALIVE_AFTER, LINK_KEEP_ALIVE_PERIOD, LINK_SILENCE_MAX};

use super::host::UnixName;

/// What carries the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Over {
    /// TCP.
    Tcp,
    /// An abstract Unix socket.
    Unix,
}

impl Over {
    /// The name for events: `tcp` or `unix`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }
}

/// What a read led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// So many bytes; at least one.
    Bytes(usize),
    /// None are there now, or there was no room for any.
    Nothing,
    /// The peer sends no more: it closed, or half-closed.
    Closed,
}

/// Where a dial stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialed {
    /// Not yet connected: wait until the socket is writable, or give up.
    Pending,
    /// Connected. That proves nothing about the peer: the handshake does.
    Connected,
}

/// A connection. Closed when dropped.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    over: Over,
}

impl Socket {
    /// Begins to connect over TCP. [`Self::dialed`] tells the end.
    pub fn dial_tcp(address: SocketAddr) -> io::Result<Self> {
        let address = SockAddr::from(address);
        let socket = dial(address.domain(), Some(Protocol::TCP), &address)?;
        set_tcp_options(&socket)?;
        Ok(Self { fd: socket, over: Over::Tcp })
    }

    /// Connects over an abstract Unix socket, and checks who listens there: this user or root.
    pub fn dial_unix(name: &UnixName) -> io::Result<Self> {
        let socket = dial(Domain::UNIX, None, &name.address()?)?;
        if let Some(uid) = foreign_user(&socket)? {
            let text = format!("{:?} is held by user {uid}, who is not trusted", name.as_str());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self { fd: socket, over: Over::Unix })
    }

    pub(super) const fn accepted(fd: OwnedFd, over: Over) -> Self {
        Self { fd, over }
    }

    /// Whether a dial has come to its end. A failed one is an error.
    pub fn dialed(&self) -> io::Result<Dialed> {
        let socket = SockRef::from(&self.fd);
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        match socket.peer_addr() {
            Ok(_peer) => Ok(Dialed::Connected),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(Dialed::Pending),
            Err(error) => Err(error),
        }
    }

    /// Reads what is there, up to `buffer`'s length.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        if buffer.is_empty() {
            return Ok(Received::Nothing);
        }
        loop {
            match rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Ok(Received::Closed),
                Ok((_, count)) => return Ok(Received::Bytes(count)),
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Writes what the kernel takes now: 0 if nothing.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        loop {
            match rustix::net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Says that nothing more will be sent; reading goes on.
    pub fn finish_sending(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }

    /// What carries the bytes.
    pub const fn over(&self) -> Over {
        self.over
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.fd
    }
}

fn dial(domain: Domain, protocol: Option<Protocol>, address: &SockAddr) -> io::Result<OwnedFd> {
    let socket = socket2::Socket::new(domain, Type::STREAM.nonblocking(), protocol)?;
    match socket.connect(address) {
        Ok(()) => Ok(socket.into()),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {
            Ok(socket.into())
        }
        Err(error) => Err(error),
    }
}

/// Frames are batched by the shard, so the kernel must not wait for more; a peer that vanished is
/// found out by unacknowledged bytes, or by keep-alive if nothing was sent.
pub(super) fn set_tcp_options(fd: &OwnedFd) -> io::Result<()> {
    let socket = SockRef::from(fd);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(LINK_SILENCE_MAX))?;
    let keep_alive =
        TcpKeepalive::new().with_time(LINK_KEEP_ALIVE_AFTER).with_interval(LINK_KEEP_ALIVE_PERIOD);
    socket.set_tcp_keepalive(&keep_alive)
}

/// The user at the other end of a Unix socket, if it is neither this one nor root.
pub(super) fn foreign_user(fd: &OwnedFd) -> io::Result<Option<u32>> {
    let uid = rustix::net::sockopt::socket_peercred(fd)?.uid;
    let trusted = uid.is_root() || uid == rustix::process::geteuid();
    Ok((!trusted).then(|| uid.as_raw()))
}
