//! A listening socket that outlives every fault of those who dial it.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::{Domain, Protocol, SockAddr, SockRef, Type};

use siloring_core::limits::LISTEN_BACKLOG;

use super::host::UnixName;
use super::socket::{Over, Socket, foreign_user, set_tcp_options};

/// What accepting led to.
#[derive(Debug)]
pub enum Accept {
    /// A connection. Who it is, the handshake must show.
    Connection {
        /// The connection.
        socket: Socket,
        /// Its address; `None` over Unix sockets.
        from: Option<SocketAddr>,
    },
    /// Nobody waits.
    Nothing,
    /// Somebody was turned away; others may wait.
    TurnedAway(TurnedAway),
}

/// Why a connection was turned away before its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnedAway {
    /// Over a Unix socket: by a user who is neither this one nor root.
    ForeignUser {
        /// Its user id.
        uid: u32,
    },
    /// This process, or the machine, has no descriptor left. Wait a moment before accepting again.
    OutOfDescriptors,
    /// It was gone before it was accepted.
    Gone,
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    over: Over,
    /// Given up for a moment when descriptors run out, so that who waits is closed and not left to
    /// hang, and the listener does not spin on a queue that it cannot empty.
    spare: Option<File>,
}

impl Listener {
    /// Listens on a TCP address; port 0 takes any free one.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let address = SockAddr::from(address);
        let socket = socket2::Socket::new(
            address.domain(),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        // A restarted silo takes its port again although old connections linger in TIME-WAIT.
        socket.set_reuse_address(true)?;
        Self::listen(socket, &address, Over::Tcp)
    }

    /// Listens on an abstract Unix socket.
    pub fn unix(name: &UnixName) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        Self::listen(socket, &name.address()?, Over::Unix)
    }

    fn listen(socket: socket2::Socket, address: &SockAddr, over: Over) -> io::Result<Self> {
        socket.bind(address)?;
        socket.listen(LISTEN_BACKLOG)?;
        Ok(Self { fd: socket.into(), over, spare: Some(File::open("/dev/null")?) })
    }

    /// The bound address; `None` for a Unix socket.
    pub fn local_address(&self) -> io::Result<Option<SocketAddr>> {
        Ok(SockRef::from(&self.fd).local_addr()?.as_socket())
    }

    /// Takes one connection. An error means that the listener itself is broken.
    pub fn accept(&mut self) -> io::Result<Accept> {
        if self.spare.is_none() {
            self.spare = File::open("/dev/null").ok();
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::acceptfrom_with(&self.fd, flags) {
            Ok((fd, from)) => self.greet(fd, from.and_then(|from| from.try_into().ok())),
            Err(Errno::AGAIN) => Ok(Accept::Nothing),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                self.turn_away_one();
                Ok(Accept::TurnedAway(TurnedAway::OutOfDescriptors))
            }
            Err(errno @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP)) => {
                Err(errno.into())
            }
            // Whatever else went wrong, went wrong with that one connection.
            Err(_) => Ok(Accept::TurnedAway(TurnedAway::Gone)),
        }
    }

    fn greet(&self, fd: OwnedFd, from: Option<SocketAddr>) -> io::Result<Accept> {
        match self.over {
            // A connection that is gone already refuses its options.
            Over::Tcp if set_tcp_options(&fd).is_err() => {
                return Ok(Accept::TurnedAway(TurnedAway::Gone));
            }
            Over::Unix => {
                if let Some(uid) = foreign_user(&fd)? {
                    return Ok(Accept::TurnedAway(TurnedAway::ForeignUser { uid }));
                }
            }
            Over::Tcp => {}
        }
        Ok(Accept::Connection { socket: Socket::accepted(fd, self.over), from })
    }

    /// Closes the connection that waits longest, in the place of the spare descriptor.
    fn turn_away_one(&mut self) {
        self.spare = None;
        drop(rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC));
        self.spare = File::open("/dev/null").ok();
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
