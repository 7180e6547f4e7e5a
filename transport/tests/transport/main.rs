//! Tests of the crate through its public face: the handshake, links, TLS, sockets, and the byte
//! tables.

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod handshake;
#[cfg(test)]
mod link;
#[cfg(test)]
mod net;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod wire_table;
