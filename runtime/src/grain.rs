//! What a grain type is: the traits that `#[derive(Grain)]` and `#[grain_methods]` implement.
//!
//! Nothing here is magic: what the macros write, a person could write.

use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::time::Duration;

use siloring_core::hash::stable_u64;
use siloring_core::schema::{Layout, Message, Schema, mix};

pub use siloring_core::ids::MethodId;

pub use crate::call::Call;
pub use crate::placement::{Placement, ShardKey};
pub use crate::reference::GrainRef;
pub use crate::turn::{Turn, TurnOutput};

/// The id of a grain as the program sees it.
pub trait GrainKey: Sized {
    /// Reads a key from an address's id; `None` if the id is no such key.
    fn parse(id: &str) -> Option<Self>;
    /// Writes the key as an address's id.
    fn format(&self) -> String;
}

impl GrainKey for String {
    fn parse(id: &str) -> Option<Self> {
        Some(id.to_owned())
    }

    fn format(&self) -> String {
        self.clone()
    }
}

macro_rules! integer_key {
    ($($type:ty),+) => { $(impl GrainKey for $type {
        fn parse(id: &str) -> Option<Self> {
            let key: Self = id.parse().ok()?;
            // One key has one address: "007" is not 7.
            (key.to_string() == id).then_some(key)
        }

        fn format(&self) -> String {
            self.to_string()
        }
    })+ };
}

integer_key!(u32, u64, u128, i64);

/// What a key may be made of where a grain is named: `grain::<Room>("general")`,
/// `grain::<Seat>(7u64)`.
pub trait IntoKey<K> {
    /// The key.
    fn into_key(self) -> K;
}

impl<K: GrainKey> IntoKey<K> for K {
    fn into_key(self) -> K {
        self
    }
}

impl IntoKey<String> for &str {
    fn into_key(self) -> String {
        self.to_owned()
    }
}

/// The identity of a grain type. Implemented by `#[derive(Grain)]`.
pub trait GrainType: Default + 'static {
    /// The stable type name: the kind of its addresses.
    const TYPE: &'static str;
    /// The version of its methods' arguments and replies.
    const VERSION: u16;
    /// Where a new activation goes.
    const PLACEMENT: Placement;
    /// Whether a request may be handled while another one is waiting for something.
    const REENTRANT: bool;
    /// An activation idle for this long is collected; `None` takes the silo's setting.
    const IDLE_AFTER: Option<Duration>;
    /// Its key.
    type Key: GrainKey;
}

/// Whether a turn needs the grain's state for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// `&mut self`: nothing else runs meanwhile.
    Exclusive,
    /// `&self`: may interleave with other such turns.
    Shared,
}

/// One method of a grain type.
#[derive(Clone, Copy, Debug)]
pub struct MethodSpec {
    /// Its name.
    pub name: &'static str,
    /// Its id on the wire.
    pub id: MethodId,
    /// What its arguments are.
    pub arguments: Schema,
    /// What its reply is.
    pub reply: Schema,
    /// Whether it needs the state for itself.
    pub access: Access,
}

impl MethodSpec {
    /// The method of `G` called `name` and known as `id`, whose arguments and reply are laid out
    /// so.
    pub const fn of<G: GrainType>(
        name: &'static str,
        id: MethodId,
        arguments_layout: u64,
        reply_layout: u64,
        access: Access,
    ) -> Self {
        let arguments = body_schema::<G>(id, b"arguments", arguments_layout);
        let reply = body_schema::<G>(id, b"reply", reply_layout);
        Self { name, id, arguments, reply, access }
    }
}

/// A method of `G` that takes events of the message type `M`: what a grain subscribes with. Written
/// by `#[on_event]`.
pub struct EventMethod<G, M> {
    /// Its id on the wire.
    pub id: MethodId,
    types: PhantomData<fn(M) -> G>,
}

impl<G: GrainType, M: Message> EventMethod<G, M> {
    /// The method known as `id`.
    pub const fn new(id: MethodId) -> Self {
        Self { id, types: PhantomData }
    }

    /// What the grain's list of methods says of it: its argument is the message itself, and it
    /// answers with nothing.
    pub const fn spec(&self, name: &'static str, access: Access) -> MethodSpec {
        let reply = body_schema::<G>(self.id, b"reply", <() as Layout>::LAYOUT);
        MethodSpec { name, id: self.id, arguments: M::SCHEMA, reply, access }
    }
}

impl<G, M> Clone for EventMethod<G, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G, M> Copy for EventMethod<G, M> {}

impl<G, M> fmt::Debug for EventMethod<G, M> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "EventMethod({:08x})", self.id.0)
    }
}

/// The schema of a body that belongs to one method of one grain type.
#[expect(clippy::cast_possible_truncation, reason = "the hash is folded")]
const fn body_schema<G: GrainType>(id: MethodId, body: &[u8], layout: u64) -> Schema {
    let owner = mix(stable_u64(G::TYPE.as_bytes()), id.0 as u64);
    let type_id = mix(owner, stable_u64(body)) as u32;
    Schema { type_id, ..Schema::of("", G::VERSION, layout) }
}

/// Whether no two methods share an id, nor one the id of a hook. `#[grain_methods]` asserts it.
pub const fn ids_are_distinct(methods: &[MethodSpec]) -> bool {
    let mut at = 0;
    while at < methods.len() {
        let id = methods[at].id.0;
        if id == ACTIVATE.0 || id == DEACTIVATE.0 {
            return false;
        }
        let mut earlier = 0;
        while earlier < at {
            if methods[earlier].id.0 == id {
                return false;
            }
            earlier += 1;
        }
        at += 1;
    }
    true
}

/// A grain: its methods and how a turn runs them. Implemented by `#[grain_methods]`.
pub trait Grain: GrainType {
    /// Its methods.
    const METHODS: &'static [MethodSpec];

    /// Runs one turn: decodes the arguments, runs the method, encodes the reply.
    ///
    /// Called with the ids [`ACTIVATE`] and [`DEACTIVATE`] for the hooks, which every grain
    /// answers.
    fn dispatch(turn: Turn<Self>) -> impl Future<Output = TurnOutput> + 'static;
}

/// The method id of the activation hook. No method's name hashes to it: names are not empty.
pub const ACTIVATE: MethodId = MethodId::of("");
/// The method id of the deactivation hook. Parentheses are no part of a method's name.
pub const DEACTIVATE: MethodId = MethodId::of("()");

impl fmt::Display for Access {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_integer_key_has_one_address() {
        assert_eq!(<u64 as GrainKey>::parse("7"), Some(7));
        assert_eq!(<u64 as GrainKey>::parse("007"), None);
        assert_eq!(<u64 as GrainKey>::parse("x"), None);
        assert_eq!(GrainKey::format(&7u64), "7");
    }
}
