//! The first release of a program: a message, and a grain that takes it, stores it and hears it.

use siloring::SiloBuilder;
use siloring::ctx::StateError;
use siloring::prelude::*;

/// What the next release changes. Read as the next one's, it would pass every check.
#[message(type = "test.line")]
pub(crate) struct Line {
    pub(crate) number: u64,
    from: u32,
    to: u32,
}

impl Line {
    pub(crate) const fn of(number: u64) -> Self {
        Self { number, from: 1, to: 2 }
    }

    /// Whether it is what somebody sent.
    pub(crate) const fn is_sound(&self) -> bool {
        self.from == 1 && self.to == 2
    }
}

/// Changed by the next release without a word, if it is told to be careless.
#[message(type = "test.careless")]
struct Careless {
    one: u32,
    other: u32,
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
    pub(crate) async fn take(&mut self, line: Line) -> Line {
        assert!(line.is_sound(), "a line was misread");
        Line::of(line.number + 1)
    }

    pub(crate) async fn keep(&mut self, ctx: &Ctx, line: Line) -> Result<(), Unreadable> {
        ctx.load_state::<Line>("line").await?;
        Ok(ctx.save_state("line", &line).await?)
    }

    pub(crate) async fn kept(&mut self, ctx: &Ctx) -> Result<Option<Line>, Unreadable> {
        Ok(ctx.load_state::<Line>("line").await?)
    }

    /// The number of the last line that it heard.
    pub(crate) async fn last(&self) -> u64 {
        self.last
    }

    /// Only this release has it.
    #[method(id = "own_of_first")]
    pub(crate) async fn own(&self) -> u64 {
        1
    }

    #[on_event]
    pub(crate) async fn on_line(&mut self, line: Line) {
        assert!(line.is_sound(), "a line was misread");
        self.last = line.number;
    }
}

/// What this release hosts.
pub(crate) fn hosted(builder: SiloBuilder) -> SiloBuilder {
    builder.host::<Board>().message::<Careless>()
}
