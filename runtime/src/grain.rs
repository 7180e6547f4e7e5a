//! What a grain type is: the traits that `#[derive(Grain)]` and `#[grain_methods]` implement.
//!
//! Nothing here is magic: what the macros write, a person could write.

use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::time::Duration;

use siloring_core::hash::stable_u64;
use siloring_core::schema::{Layout, Message, Schema, mix};
use siloring_core::versions::{BodyType, Carry, Older};

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
    /// The whole layout of its arguments.
    arguments_layout: u64,
    /// The whole layout of its reply.
    reply_layout: u64,
    /// The signatures that it had. An event's has its message's.
    older: Signatures,
    /// How to reach the bodies inside its arguments, and inside its reply.
    carries: [Option<Carry>; 2],
}

impl MethodSpec {
    /// Version 1 of the method of `G` called `name` and known as `id`, whose arguments and reply
    /// are laid out so.
    pub const fn of<G: GrainType>(
        name: &'static str,
        id: MethodId,
        arguments_layout: u64,
        reply_layout: u64,
        access: Access,
    ) -> Self {
        let arguments = arguments_schema::<G>(id, 1, arguments_layout);
        let reply = reply_schema::<G>(id, 1, reply_layout);
        let (older, carries) = (Signatures::NONE, [None, None]);
        Self { name, id, arguments, reply, access, arguments_layout, reply_layout, older, carries }
    }

    /// The same method at a later version.
    #[must_use]
    pub const fn version(mut self, version: u16) -> Self {
        self.arguments.version = version;
        self.reply.version = version;
        self
    }

    /// The same method, which was called and answered in other ways.
    #[must_use]
    pub const fn was(mut self, older: Signatures) -> Self {
        assert!(older.arguments.len() == older.replies.len(), "each has arguments and a reply");
        self.older = older;
        self
    }

    /// The same method, whose arguments, or reply, have other bodies inside: those of messages that
    /// it passes on.
    #[must_use]
    pub const fn carries(mut self, arguments: Option<Carry>, reply: Option<Carry>) -> Self {
        self.carries = [arguments, reply];
        self
    }

    /// What its reply is, and was.
    pub const fn wanted(&self) -> Wanted {
        Wanted { schema: self.reply, older: self.older.replies }
    }

    /// The signature that a request of `schema` has, if it is an older one.
    pub(crate) fn older(&self, schema: Schema) -> Option<OlderSignature> {
        let at = self.older.arguments.iter().position(|older| older.schema == schema)?;
        // An event is answered alike, whatever its message was.
        let reply = self.older.replies.get(at);
        Some(OlderSignature { arguments: &self.older.arguments[at], reply })
    }

    /// Its arguments and its reply, for who talks of them to other silos.
    pub(crate) fn types(&self, kind: &str) -> [BodyType; 2] {
        let named = |what: &str| format!("{kind}/{}, its {what}", self.name);
        let Signatures { arguments, replies } = self.older;
        [
            BodyType {
                name: named("arguments"),
                schema: self.arguments,
                layout: self.arguments_layout,
                older: arguments,
            },
            BodyType {
                name: named("reply"),
                schema: self.reply,
                layout: self.reply_layout,
                older: replies,
            },
        ]
    }

    /// What its bodies are, if others are inside, and how to reach those.
    pub(crate) fn carriers(&self) -> impl Iterator<Item = (Schema, Carry)> {
        let [arguments, reply] = self.carries;
        let arguments = arguments.map(|carry| (self.arguments, carry));
        arguments.into_iter().chain(reply.map(|carry| (self.reply, carry)))
    }
}

/// What a reply must be: of a type's present version, or of one that it was.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The present version.
    pub schema: Schema,
    /// What is taken up.
    pub older: &'static [Older],
}

impl Wanted {
    /// A message.
    pub const fn message<M: Message>() -> Self {
        Self { schema: M::SCHEMA, older: M::OLDER }
    }
}

/// The signatures that a method had: for each, what its arguments and what its reply were.
#[derive(Clone, Copy, Debug)]
pub struct Signatures {
    /// The arguments, of the same versions in the same order as…
    pub arguments: &'static [Older],
    /// …the replies.
    pub replies: &'static [Older],
}

impl Signatures {
    /// There was no other.
    pub const NONE: Self = Self { arguments: &[], replies: &[] };
}

/// One of a method's older signatures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OlderSignature {
    pub(crate) arguments: &'static Older,
    /// `None` if the reply is what it was.
    pub(crate) reply: Option<&'static Older>,
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
        let spec = MethodSpec::of::<G>(name, self.id, M::LAYOUT, <() as Layout>::LAYOUT, access);
        let older = Signatures { arguments: M::OLDER, replies: &[] };
        MethodSpec { arguments: M::SCHEMA, older, ..spec }
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

/// What the arguments of a version of one method of one grain type are.
pub const fn arguments_schema<G: GrainType>(id: MethodId, version: u16, layout: u64) -> Schema {
    body_schema::<G>(id, b"arguments", version, layout)
}

/// What the reply of a version of one method of one grain type is.
pub const fn reply_schema<G: GrainType>(id: MethodId, version: u16, layout: u64) -> Schema {
    body_schema::<G>(id, b"reply", version, layout)
}

#[expect(clippy::cast_possible_truncation, reason = "the hash is folded")]
const fn body_schema<G: GrainType>(id: MethodId, body: &[u8], version: u16, layout: u64) -> Schema {
    let owner = mix(stable_u64(G::TYPE.as_bytes()), id.0 as u64);
    let type_id = mix(owner, stable_u64(body)) as u32;
    Schema { type_id, ..Schema::of("", version, layout) }
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
