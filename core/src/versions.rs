//! Versions of one type: how a body of one becomes a body of another.
//!
//! In every roll two versions of a program run side by side. The newer one keeps the older shape of
//! a changed type in its source and says how each becomes the other; the older one knows of nothing
//! newer. So all conversions are made by whoever is newer: it takes up what comes in an older
//! version, and hands down what goes to a silo that has only that.
//!
//! Contract:
//! - a body is read as a version only if its schema says that version, or if a conversion from the
//!   schema's version was declared: two versions are never taken for one because their layouts look
//!   alike. A header has 16 bits for a layout; two of 65 536 that differ would be one;
//! - a conversion is a function of its body alone. One that refuses, or panics, is
//!   [`Unconvertible`]: nothing else ends with it;
//! - [`PeerVersions`] says what goes to one peer in another version than ours, and nothing while
//!   the peer has all of ours.
//!
//! Bound: at most [`HOSTED_TYPES_MAX`](crate::limits::HOSTED_TYPES_MAX) types of each side, each
//! listed once a version.

use core::fmt::Display;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::body::{Body, DecodeOwned, Encode, Undecodable};
use crate::outcome::RejectedKind;
use crate::schema::{Layout, Message, Schema};

/// Why a body did not become one of another version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unconvertible {
    /// No conversion between the two was declared. The older version must be kept in the source.
    #[error("no conversion between the versions is declared")]
    NoPath,
    /// The bytes are no archive of the version that they are said to be.
    #[error(transparent)]
    Undecodable(#[from] Undecodable),
    /// The conversion refused the value, or panicked.
    #[error("the conversion refused the value: {0}")]
    Refused(String),
}

impl Unconvertible {
    /// How a request hears of it: it did not run.
    pub const fn rejection(&self) -> RejectedKind {
        match self {
            Self::NoPath | Self::Refused(_) => RejectedKind::Incompatible,
            Self::Undecodable(_) => RejectedKind::RequestUndecodable,
        }
    }
}

/// Makes a value of another version of a type, or of something that contains one, a value of this.
///
/// `#[message(…, was(Old))]` implements it both ways by `TryFrom`, which every `From` is. It holds
/// for what messages are made of, so that a `Vec<Old>` becomes a `Vec<New>`.
#[diagnostic::on_unimplemented(
    message = "a `{Other}` does not become a `{Self}`",
    note = "keep the older type in the source and name it: `#[message(…, was(Older))]`, with \
            `From` or `TryFrom` in both directions"
)]
pub trait FromVersion<Other>: Sized {
    /// The value, or why there is none.
    ///
    /// # Errors
    /// As the conversion that was declared.
    fn from_version(other: Other) -> Result<Self, Unconvertible>;
}

/// A conversion that was declared: for `#[message(…, was(…))]`.
///
/// # Errors
/// [`Unconvertible::Refused`] if the conversion fails.
pub fn converted<Other, T>(other: Other) -> Result<T, Unconvertible>
where
    T: TryFrom<Other, Error: Display>,
{
    T::try_from(other).map_err(|error| Unconvertible::Refused(error.to_string()))
}

macro_rules! unchanged {
    ($($type:ty),+) => { $(impl FromVersion<Self> for $type {
        fn from_version(other: Self) -> Result<Self, Unconvertible> {
            Ok(other)
        }
    })+ };
}

unchanged!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64, bool, char, String, ());

macro_rules! widened {
    ($($narrow:ty => $($wide:ty),+;)+) => { $($(
        impl FromVersion<$narrow> for $wide {
            fn from_version(other: $narrow) -> Result<Self, Unconvertible> {
                Ok(other.into())
            }
        }

        impl FromVersion<$wide> for $narrow {
            fn from_version(other: $wide) -> Result<Self, Unconvertible> {
                converted(other)
            }
        }
    )+)+ };
}

// A number that outgrew its type; an older peer gets it while it fits.
widened! {
    u8 => u16, u32, u64;
    u16 => u32, u64;
    u32 => u64, u128;
    u64 => u128;
    i8 => i16, i32, i64;
    i16 => i32, i64;
    i32 => i64, i128;
    i64 => i128;
}

impl<T: FromVersion<U>, U> FromVersion<Vec<U>> for Vec<T> {
    fn from_version(other: Vec<U>) -> Result<Self, Unconvertible> {
        other.into_iter().map(T::from_version).collect()
    }
}

impl<T: FromVersion<U>, U> FromVersion<Option<U>> for Option<T> {
    fn from_version(other: Option<U>) -> Result<Self, Unconvertible> {
        other.map(T::from_version).transpose()
    }
}

impl<T: FromVersion<U>, U> FromVersion<Box<U>> for Box<T> {
    fn from_version(other: Box<U>) -> Result<Self, Unconvertible> {
        T::from_version(*other).map(Self::new)
    }
}

impl<T: FromVersion<U>, U, E: FromVersion<F>, F> FromVersion<Result<U, F>> for Result<T, E> {
    fn from_version(other: Result<U, F>) -> Result<Self, Unconvertible> {
        Ok(match other {
            Ok(value) => Ok(T::from_version(value)?),
            Err(error) => Err(E::from_version(error)?),
        })
    }
}

impl<T: FromVersion<U>, U, const N: usize> FromVersion<[U; N]> for [T; N] {
    fn from_version(other: [U; N]) -> Result<Self, Unconvertible> {
        let parts: Vec<T> = other.into_iter().map(T::from_version).collect::<Result<_, _>>()?;
        Ok(Self::try_from(parts).ok().expect("as many as there were"))
    }
}

macro_rules! tuple {
    ($($new:ident $old:ident $at:tt),+) => {
        impl<$($new: FromVersion<$old>, $old),+> FromVersion<($($old,)+)> for ($($new,)+) {
            fn from_version(other: ($($old,)+)) -> Result<Self, Unconvertible> {
                Ok(($($new::from_version(other.$at)?,)+))
            }
        }
    };
}

tuple!(A B 0);
tuple!(A B 0, C D 1);
tuple!(A B 0, C D 1, E F 2);
tuple!(A B 0, C D 1, E F 2, G H 3);

/// Makes a body of one version a body of another.
pub type Convert = fn(&Body) -> Result<Body, Unconvertible>;

/// An older version of a type, and the ways from and to the present one.
#[derive(Clone, Copy, Debug)]
pub struct Older {
    /// What it is.
    pub schema: Schema,
    /// Its whole layout.
    pub layout: u64,
    /// Makes it the present one.
    pub up: Convert,
    /// Makes the present one this; `None` if that is never done.
    pub down: Option<Convert>,
}

impl Older {
    /// The version of `schema`, laid out as `Old`, which becomes `New` and which `New` becomes.
    pub const fn both<Old, New>(schema: Schema) -> Self
    where
        Old: Layout + Encode + DecodeOwned + FromVersion<New>,
        New: Layout + Encode + DecodeOwned + FromVersion<Old>,
    {
        let down: Option<Convert> = Some(convert::<New, Old>);
        Self { schema, layout: Old::LAYOUT, up: convert::<Old, New>, down }
    }

    /// The version of `schema`, laid out as `Old`, which becomes `New` and is sent to nobody.
    pub const fn read_only<Old, New>(schema: Schema) -> Self
    where
        Old: Layout + DecodeOwned,
        New: Encode + FromVersion<Old>,
    {
        Self { schema, layout: Old::LAYOUT, up: convert::<Old, New>, down: None }
    }
}

/// Whether `Old` may be declared an older version of `New`: of one name, and before it.
pub const fn is_older<Old: Message, New: Message>() -> bool {
    let (old, new) = (Old::TYPE.as_bytes(), New::TYPE.as_bytes());
    if old.len() != new.len() || Old::VERSION >= New::VERSION {
        return false;
    }
    let mut at = 0;
    while at < old.len() {
        if old[at] != new[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Whether no two of these are one version.
pub const fn are_distinct(older: &[Older]) -> bool {
    let mut at = 0;
    while at < older.len() {
        let mut earlier = 0;
        while earlier < at {
            if older[earlier].schema.version == older[at].schema.version {
                return false;
            }
            earlier += 1;
        }
        at += 1;
    }
    true
}

fn convert<From, To>(body: &Body) -> Result<Body, Unconvertible>
where
    From: DecodeOwned,
    To: Encode + FromVersion<From>,
{
    let from = body.decode::<From>()?;
    // The program's own code: a panic in it ends this conversion and nothing else.
    let made =
        catch_unwind(AssertUnwindSafe(|| To::from_version(from).map(|to| Body::encode(&to))));
    made.unwrap_or_else(|_| Err(Unconvertible::Refused("it panicked".to_owned())))
}

/// `body`, of `schema`, as one of `present`: itself, or taken up from one of the `older` versions.
///
/// # Errors
/// [`Unconvertible::NoPath`] if it is of none of them.
pub fn taken_up(
    body: Body,
    schema: Schema,
    present: Schema,
    older: &[Older],
) -> Result<Body, Unconvertible> {
    if schema == present {
        return Ok(body);
    }
    let found = older.iter().find(|older| older.schema == schema);
    (found.ok_or(Unconvertible::NoPath)?.up)(&body)
}

/// The value of a body of the present or an older version of a message.
///
/// # Errors
/// As [`taken_up`]; [`Unconvertible::Undecodable`] if it is no archive.
pub fn read<M: Message>(body: Body, schema: Schema) -> Result<M, Unconvertible> {
    Ok(taken_up(body, schema, M::SCHEMA, M::OLDER)?.decode::<M>()?)
}

/// A type as this program has it: what it is called, its present version, the older ones.
#[derive(Clone, Debug)]
pub struct BodyType {
    /// What people call it.
    pub name: String,
    /// The present version.
    pub schema: Schema,
    /// Its whole layout.
    pub layout: u64,
    /// The versions that it was.
    pub older: &'static [Older],
}

impl BodyType {
    /// The type of a message.
    pub fn of<M: Message>() -> Self {
        let name = M::TYPE.to_owned();
        Self { name, schema: M::SCHEMA, layout: M::LAYOUT, older: M::OLDER }
    }

    /// It and its older versions, each with its layout.
    fn versions(&self) -> impl Iterator<Item = (Schema, u64)> {
        let older = self.older.iter().map(|older| (older.schema, older.layout));
        core::iter::once((self.schema, self.layout)).chain(older)
    }
}

/// One version of a type, as peers are told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostedType {
    /// Type, version, and what of the layout fits a frame's header.
    pub schema: Schema,
    /// The whole layout: two that differ are told apart by all 64 bits.
    pub layout: u64,
    /// What people call it. Does not travel.
    pub name: String,
}

/// Gives the bodies inside another body to a conversion, one by one; the whole anew, or `None` if
/// it changed none.
pub type Carry = fn(&Body, &mut dyn FnMut(Schema, &[u8]) -> Option<Converted>) -> Option<Body>;

/// A body in another version.
#[derive(Debug, PartialEq)]
pub struct Converted {
    /// What it is now.
    pub schema: Schema,
    /// Its archive.
    pub body: Body,
}

/// All types of a silo: what it tells its peers, and how it speaks to older ones.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    /// By their id, each at the newest version that something here takes or gives.
    types: BTreeMap<u32, BodyType>,
    /// Every version of each, with its layout, and what people call it.
    told: BTreeMap<(Schema, u64), String>,
    /// Bodies with bodies inside.
    carriers: BTreeMap<Schema, Carry>,
}

impl Versions {
    /// Adds a type. One that is there already, or a version that it was, changes nothing.
    pub fn add(&mut self, added: BodyType) {
        for (schema, layout) in added.versions() {
            self.told.entry((schema, layout)).or_insert_with(|| added.name.clone());
        }
        let known = self.types.get(&added.schema.type_id);
        if known.is_none_or(|known| known.schema.version < added.schema.version) {
            self.types.insert(added.schema.type_id, added);
        }
    }

    /// Says how to reach the bodies inside bodies of `schema`.
    pub fn add_carrier(&mut self, schema: Schema, carry: Carry) {
        self.carriers.insert(schema, carry);
    }

    /// Every version of every type, in order. Two layouts of one version are both there: no silo
    /// may start with such.
    pub fn told(&self) -> Vec<HostedType> {
        let told = self.told.iter();
        told.map(|((schema, layout), name)| HostedType {
            schema: *schema,
            layout: *layout,
            name: name.clone(),
        })
        .collect()
    }

    /// How to speak to a peer that has these; `None` if it has all that we would send.
    pub fn towards(&self, peer: &[Schema]) -> Option<PeerVersions> {
        let theirs: BTreeSet<Schema> = peer.iter().copied().collect();
        let mut ways = BTreeMap::new();
        for ours in self.types.values() {
            let sent = ours.versions().map(|(schema, _)| schema);
            for schema in sent.filter(|schema| !theirs.contains(schema)) {
                if let Some(way) = way(ours, schema, &theirs) {
                    ways.insert(schema, way);
                }
            }
        }
        (!ways.is_empty()).then(|| PeerVersions { ways, carriers: self.carriers.clone() })
    }
}

/// How a body of `from` becomes one that the peer has: the newest such.
fn way(ours: &BodyType, from: Schema, theirs: &BTreeSet<Schema>) -> Option<Way> {
    let up = ours.older.iter().find(|older| older.schema == from).map(|older| older.up);
    if theirs.contains(&ours.schema) {
        return Some(Way { up, down: None, to: ours.schema });
    }
    let known = ours.older.iter().filter(|older| theirs.contains(&older.schema));
    let reached = known.filter_map(|older| Some((older.schema, older.down?)));
    let (to, down) = reached.max_by_key(|(schema, _)| schema.version)?;
    Some(Way { up, down: Some(down), to })
}

#[derive(Clone, Copy, Debug)]
struct Way {
    /// To the present version, if it is none.
    up: Option<Convert>,
    /// From there.
    down: Option<Convert>,
    to: Schema,
}

impl Way {
    fn go(self, body: &Body) -> Result<Converted, Unconvertible> {
        let taken_up = self.up.map(|up| up(body)).transpose()?;
        let present = taken_up.as_ref().unwrap_or(body);
        let body = match self.down {
            Some(down) => down(present)?,
            None => taken_up.unwrap_or_else(|| body.clone()),
        };
        Ok(Converted { schema: self.to, body })
    }
}

/// What goes to one peer in another version than ours.
#[derive(Clone, Debug)]
pub struct PeerVersions {
    ways: BTreeMap<Schema, Way>,
    carriers: BTreeMap<Schema, Carry>,
}

impl PeerVersions {
    /// `body`, of `schema`, as the peer has it; `None` if it goes as it is: then the peer has it,
    /// or it judges what it gets. A body inside that cannot be handed down goes as it is.
    ///
    /// # Errors
    /// If a conversion that was declared refuses the value.
    pub fn hand_down(
        &self,
        schema: Schema,
        body: &Body,
    ) -> Result<Option<Converted>, Unconvertible> {
        if let Some(way) = self.ways.get(&schema) {
            return way.go(body).map(Some);
        }
        let Some(carry) = self.carriers.get(&schema) else { return Ok(None) };
        let mut inner = |schema: Schema, bytes: &[u8]| {
            let way = self.ways.get(&schema)?;
            way.go(&Body::copy_of(bytes)).ok()
        };
        Ok(carry(body, &mut inner).map(|body| Converted { schema, body }))
    }
}

#[cfg(test)]
mod tests;
