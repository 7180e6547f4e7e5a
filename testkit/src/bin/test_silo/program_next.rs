//! The next release of a program: its line has other fields, and it knows what the line was.

use siloring::SiloBuilder;
use siloring::ctx::StateError;
use siloring::prelude::*;

#[message(type = "test.line")]
struct LineV1 {
    number: u64,
    from: u32,
    to: u32,
}

/// Fields in another order, and one more.
#[message(type = "test.line", version = 2, was(LineV1))]
pub(crate) struct Line {
    pub(crate) number: u64,
    to: u32,
    from: u32,
    note: Option<String>,
}

impl From<LineV1> for Line {
    fn from(old: LineV1) -> Self {
        Self { number: old.number, to: old.to, from: old.from, note: None }
    }
}

impl From<Line> for LineV1 {
    fn from(new: Line) -> Self {
        Self { number: new.number, from: new.from, to: new.to }
    }
}

impl Line {
    pub(crate) fn of(number: u64) -> Self {
        Self { number, to: 2, from: 1, note: Some("new".to_owned()) }
    }

    /// Whether it is what somebody sent.
    pub(crate) fn is_sound(&self) -> bool {
        let has_note = self.note.as_deref().is_none_or(|note| note == "new");
        self.from == 1 && self.to == 2 && has_note
    }
}

/// Changed without a new version.
#[message(type = "test.careless")]
struct Careless {
    other: u32,
    one: u32,
}

/// A record that this release cannot read.
#[message(type = "test.unreadable")]
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) why: String,
}

impl From<StateError> for Unreadable {
    fn from(error: StateError) -> Self {
        Self { why: error.to_string() }
    }
}

/// Takes lines.
#[derive(Grain, Default)]
#[grain(type = "test.board", placement = "hash")]
pub(crate) struct Board {
    last: u64,
}

#[grain_methods]
impl Board {
    #[method(version = 2)]
    #[was(1, fn(line: LineV1) -> LineV1)]
    pub(crate) async fn take(&mut self, line: Line) -> Line {
        assert!(line.is_sound(), "a line was misread");
        Line::of(line.number + 1)
    }

    #[method(version = 2)]
    #[was(1, fn(line: LineV1) -> Result<(), Unreadable>)]
    pub(crate) async fn keep(&mut self, ctx: &Ctx, line: Line) -> Result<(), Unreadable> {
        ctx.load_state::<Line>("line").await?;
        Ok(ctx.save_state("line", &line).await?)
    }

    #[method(version = 2)]
    #[was(1, fn() -> Result<Option<LineV1>, Unreadable>)]
    pub(crate) async fn kept(&mut self, ctx: &Ctx) -> Result<Option<Line>, Unreadable> {
        Ok(ctx.load_state::<Line>("line").await?)
    }

    /// The number of the last line that it heard.
    pub(crate) async fn last(&self) -> u64 {
        self.last
    }

    /// Only this release has it.
    #[method(id = "own_of_next")]
    pub(crate) async fn own(&self) -> u64 {
        2
    }

    #[on_event]
    pub(crate) async fn on_line(&mut self, line: Line) {
        assert!(line.is_sound(), "a line was misread");
        self.last = line.number;
    }
}

/// What this release hosts.
pub(crate) fn hosted(builder: SiloBuilder) -> SiloBuilder {
    let builder = builder.host::<Board>();
    if std::env::args().any(|argument| argument == "--careless") {
        return builder.message::<Careless>();
    }
    builder
}
