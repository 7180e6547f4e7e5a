//! Derives and attributes of Siloring.
//!
//! A grain is a struct with [`macro@Grain`] and one impl block with [`macro@grain_methods`]; what
//! travels is a struct or enum with [`macro@message`]. Everything here expands to public traits of
//! the `siloring` crate: what a macro writes, a person could write. A mistake is reported at its
//! own place in the source, with the remedy. Deliberately absent: registration at link time (a silo
//! names what it hosts), and any code that runs.

mod errors;
mod grain;
mod message;
mod methods;
mod names;
#[cfg(test)]
mod snapshot;
mod travel;

use proc_macro::TokenStream;

/// Makes a struct the state of a grain: its type name, key and placement.
///
/// ```
/// # use siloring::prelude::*;
/// #[derive(Grain, Default)]
/// #[grain(type = "chat.room", placement = "hash", idle_after_s = 60)]
/// struct Room {
///     members: Vec<String>,
/// }
/// ```
///
/// | setting | meaning | default |
/// |---|---|---|
/// | `type = "…"` | the stable name, first part of the grain's address | required |
/// | `key = Type` | the type of the key | `String` |
/// | `placement = "…"` | `prefer_local`, `hash` or `random` | `prefer_local` |
/// | `reentrant` | a turn may begin while another waits | turns never overlap |
/// | `idle_after_s = N` | seconds without a message until it is collected | the silo's |
///
/// The struct must also be `Default`: that is how an activation begins.
#[proc_macro_derive(Grain, attributes(grain))]
pub fn derive_grain(input: TokenStream) -> TokenStream {
    grain::expand(input.into()).unwrap_or_else(darling::Error::write_errors).into()
}

/// Makes the `async fn`s of an impl block the methods of a grain.
///
/// ```
/// # use siloring::prelude::*;
/// # #[derive(Grain, Default)]
/// # #[grain(type = "chat.room")]
/// # struct Room { members: Vec<String>, lines: u64 }
/// # #[message(type = "chat.line")]
/// # struct Line { from: String }
/// # #[message(type = "chat.room_error")]
/// # struct RoomError { stranger: String }
/// #[grain_methods]
/// impl Room {
///     /// Adds a member and says how many there are.
///     async fn join(&mut self, name: String) -> u64 {
///         self.members.push(name);
///         self.members.len() as u64
///     }
///
///     #[on_event]
///     async fn on_line(&mut self, line: &Archived<Line>) {
///         self.lines += u64::from(line.from.as_str() != "");
///     }
///
///     async fn count(&self) -> u64 {
///         self.members.len() as u64
///     }
///
///     async fn post(&mut self, ctx: &Ctx, line: &Archived<Line>) -> Result<u64, RoomError> {
///         if self.members.iter().all(|member| line.from != member.as_str()) {
///             return Err(RoomError { stranger: format!("{} in {}", line.from, ctx.key()) });
///         }
///         self.lines += 1;
///         Ok(self.lines)
///     }
/// }
/// ```
///
/// - `&mut self` is a turn of its own; turns with `&self` may interleave.
/// - A parameter of type `&Ctx` is the turn's context; it does not travel.
/// - Every other parameter travels by value. `&Archived<T>` is the archived view of a `T`, read in
///   place; its caller passes a `T`.
/// - A method that returns `Result<V, E>` lets its caller tell its own error from a failed
///   delivery.
/// - `on_activate(&mut self)` and `on_deactivate(&mut self)`, with or without `ctx: &Ctx`, run when
///   an activation begins and ends. The first returns `Result<(), String>`: an error refuses it.
/// - Methods run on a shard's own executor: no tokio timers or sockets, and nothing that blocks.
///   Await `ctx.sleep`, calls and the silo's store; what blocks or needs another runtime runs on a
///   thread of the program's, which may call back through a `Handle`. A shard that stands still is
///   logged after two seconds as `ShardStalled`, and aborts the process after thirty: a silo with a
///   dead core helps nobody.
/// - A method is known by the hash of its name; `#[method(id = "…")]` keeps the old name's when it
///   is renamed.
/// - A method whose parameters or reply change gets another version, `#[method(version = 2)]`, and
///   says what it was: `#[was(1, fn(line: LineV1) -> u32)]`. Then silos of both releases call each
///   other: a parameter becomes the one of its name, a new one is its `Default`, one that is gone
///   is left out. Without `#[was]` such a call is `Incompatible`.
///
/// - A method with `#[on_event]` takes the events of streams: one message, as `&Archived<M>` or as
///   `M`, and `ctx: &Ctx` if it is needed. It returns nothing, or `Result<(), E>`: after an error
///   the stream delivers the event again. It cannot be called; a grain is subscribed with the
///   constant of its name, `Room::ON_LINE` for `on_line`.
///
/// The calls are a trait named after the grain (`RoomRef` for `Room`), as visible as the methods,
/// which `GrainRef<Room>` implements: `room.join(name).await`.
#[proc_macro_attribute]
pub fn grain_methods(settings: TokenStream, item: TokenStream) -> TokenStream {
    methods::expand(&settings.into(), &item.into()).into()
}

/// Makes a struct or enum able to travel: as an argument, a reply, a hub's message, a stored
/// record.
///
/// ```
/// # use siloring::prelude::*;
/// #[message(type = "chat.line", version = 1)]
/// struct Line {
///     from: String,
///     text: String,
/// }
/// ```
///
/// `type` is the stable name and stays when the Rust type is renamed. Raise `version` (1 by
/// default) with each change of the fields or variants: a layout that changed without it is
/// refused. `was(LineV1)` names an older version that is still understood, kept in the source under
/// the same `type`: it becomes this one, and this one it, by `From` or `TryFrom`. `reads(LineV1)`
/// only takes it up.
///
/// ```
/// # use siloring::prelude::*;
/// #[message(type = "chat.line")]
/// struct LineV1 {
///     text: String,
/// }
///
/// #[message(type = "chat.line", version = 2, reads(LineV1))]
/// struct Line {
///     text: String,
///     loud: bool,
/// }
///
/// impl From<LineV1> for Line {
///     fn from(old: LineV1) -> Self {
///         Self { text: old.text, loud: false }
///     }
/// }
/// ```
///
/// The attribute derives `Archive`, `Serialize` and `Deserialize` of rkyv and implements
/// `Layout` and `Message`; other derives are yours to add. Where `missing_docs` is on, a public
/// enum has tuple variants: rkyv does not document what it makes of a variant's named fields.
#[proc_macro_attribute]
pub fn message(settings: TokenStream, item: TokenStream) -> TokenStream {
    message::expand(settings.into(), &item.into()).into()
}
