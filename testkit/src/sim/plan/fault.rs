//! What can be done to a world, and how plans write it.

use std::fmt;
use std::time::Duration;

use super::Slot;
use super::options::parse_count;
use super::span::{Span, parse_per_mille, parse_slot, parse_span};

/// Something that is done to the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// SIGKILL; connections are cut anywhere.
    Kill(Slot),
    /// The machine loses power; connections stay half-open.
    Vanish(Slot),
    /// A new silo starts in a slot that is empty.
    Start(Slot),
    /// SIGKILL, and a new silo starts at once: the same name at the same address.
    Restart(Slot),
    /// SIGTERM.
    Drain(Slot),
    /// Every silo is replaced, one by one, newcomer first.
    Roll,
    /// Silos are started with this release of the program from now on, from 1.
    Version(u16),
    /// SIGSTOP, then SIGCONT.
    Pause(Slot, Duration),
    /// Each run of a thread takes so much longer, for so long.
    Slow(Slot, Duration, Duration),
    /// What a thread waits for by the clock comes up to so much later, for so long.
    Late(Slot, Duration, Duration),
    /// The clock jumps forward.
    Jump(Slot, Duration),
    /// Every connection between two slots is reset, wherever its bytes are.
    Reset(Slot, Slot),
    /// Every connection between two slots is reset in the middle of what is written to it next.
    Tear(Slot, Slot),
    /// Every connection between two slots passes nothing any more, and nobody is told; new ones do.
    HalfOpen(Slot, Slot),
    /// Packets from the first to the second vanish, for so long.
    Mute(Slot, Slot, Duration),
    /// Packets between the two vanish both ways, for so long.
    Split(Slot, Slot, Duration),
    /// Packets between the slot and all others vanish, for so long.
    Isolate(Slot, Duration),
    /// Packets between the two vanish, then pass, each for a period, for so long.
    Flap(Slot, Slot, Duration, Duration),
    /// Dials from the first to the second are refused, and their connections reset, for so long.
    Refuse(Slot, Slot, Duration),
    /// Packets between the two take so much longer, for so long.
    Delay(Slot, Slot, Duration, Duration),
    /// Of a thousand packets between the two so many are lost, for so long.
    Lose(Slot, Slot, u16, Duration),
    /// The slot's process has no descriptor left for a new connection, for so long.
    NoFiles(Slot, Duration),
    /// Word of changed subscriptions is not told, for so long.
    HintsLost(Duration),
    /// It is told twice, for so long.
    HintsDoubled(Duration),
    /// It is told so much later, for so long.
    HintsLate(Duration, Duration),
    /// Word is told of what nobody changed, for so long.
    HintsForged(Duration),
    /// The store refuses everybody, for so long.
    StoreDown(Duration),
    /// The store accepts and never answers, for so long.
    StoreHang(Duration),
    /// The store takes so much longer, for so long.
    StoreDelay(Duration, Duration),
    /// Of a thousand answers of the store so many are lost after their effect, for so long.
    StoreLose(u16, Duration),
    /// The slot cannot reach the store, for so long.
    StoreCut(Slot, Duration),
    /// The slot's connections to the store are reset: each request under way was made, or was not.
    StoreReset(Slot),
    /// The store's replica hears of nothing for so long, then takes over: what was committed
    /// meanwhile is lost.
    StoreLag(Duration),
}

impl Fault {
    /// Every word with which one begins.
    pub const NAMES: &'static [&'static str] = &[
        "kill",
        "vanish",
        "start",
        "restart",
        "drain",
        "roll",
        "version",
        "pause",
        "slow",
        "late",
        "jump",
        "reset",
        "tear",
        "half-open",
        "mute",
        "split",
        "isolate",
        "flap",
        "refuse",
        "delay",
        "lose",
        "no-files",
        "hints-lost",
        "hints-doubled",
        "hints-late",
        "hints-forged",
        "store-down",
        "store-hang",
        "store-delay",
        "store-lose",
        "store-cut",
        "store-reset",
        "store-lag",
    ];

    /// The word with which it begins.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::Vanish(_) => "vanish",
            Self::Start(_) => "start",
            Self::Restart(_) => "restart",
            Self::Drain(_) => "drain",
            Self::Roll => "roll",
            Self::Version(_) => "version",
            Self::Pause(..) => "pause",
            Self::Slow(..) => "slow",
            Self::Late(..) => "late",
            Self::Jump(..) => "jump",
            Self::Reset(..) => "reset",
            Self::Tear(..) => "tear",
            Self::HalfOpen(..) => "half-open",
            Self::Mute(..) => "mute",
            Self::Split(..) => "split",
            Self::Isolate(..) => "isolate",
            Self::Flap(..) => "flap",
            Self::Refuse(..) => "refuse",
            Self::Delay(..) => "delay",
            Self::Lose(..) => "lose",
            Self::NoFiles(..) => "no-files",
            Self::HintsLost(_) => "hints-lost",
            Self::HintsDoubled(_) => "hints-doubled",
            Self::HintsLate(..) => "hints-late",
            Self::HintsForged(_) => "hints-forged",
            Self::StoreDown(_) => "store-down",
            Self::StoreHang(_) => "store-hang",
            Self::StoreDelay(..) => "store-delay",
            Self::StoreLose(..) => "store-lose",
            Self::StoreCut(..) => "store-cut",
            Self::StoreReset(_) => "store-reset",
            Self::StoreLag(_) => "store-lag",
        }
    }

    /// How long it lasts; `None` if it is done at once.
    pub const fn span(self) -> Option<Duration> {
        match self {
            Self::Kill(_)
            | Self::Vanish(_)
            | Self::Start(_)
            | Self::Restart(_)
            | Self::Drain(_)
            | Self::Roll
            | Self::Version(_)
            | Self::Jump(..)
            | Self::Reset(..)
            | Self::Tear(..)
            | Self::HalfOpen(..)
            | Self::StoreReset(_) => None,
            Self::Pause(_, span)
            | Self::Slow(_, _, span)
            | Self::Late(_, _, span)
            | Self::Mute(_, _, span)
            | Self::Split(_, _, span)
            | Self::Isolate(_, span)
            | Self::Flap(_, _, _, span)
            | Self::Refuse(_, _, span)
            | Self::Delay(_, _, _, span)
            | Self::Lose(_, _, _, span)
            | Self::NoFiles(_, span)
            | Self::HintsLost(span)
            | Self::HintsDoubled(span)
            | Self::HintsLate(_, span)
            | Self::HintsForged(span)
            | Self::StoreDown(span)
            | Self::StoreHang(span)
            | Self::StoreDelay(_, span)
            | Self::StoreLose(_, span)
            | Self::StoreLag(span)
            | Self::StoreCut(_, span) => Some(span),
        }
    }

    /// Whom it is done to.
    pub(super) const fn slots(self) -> [Option<Slot>; 2] {
        match self {
            Self::Kill(slot)
            | Self::Vanish(slot)
            | Self::Start(slot)
            | Self::Restart(slot)
            | Self::Drain(slot)
            | Self::Pause(slot, _)
            | Self::Slow(slot, _, _)
            | Self::Late(slot, _, _)
            | Self::Jump(slot, _)
            | Self::Isolate(slot, _)
            | Self::NoFiles(slot, _)
            | Self::StoreReset(slot)
            | Self::StoreCut(slot, _) => [Some(slot), None],
            Self::Reset(one, other)
            | Self::Tear(one, other)
            | Self::HalfOpen(one, other)
            | Self::Mute(one, other, _)
            | Self::Split(one, other, _)
            | Self::Flap(one, other, _, _)
            | Self::Refuse(one, other, _)
            | Self::Delay(one, other, _, _)
            | Self::Lose(one, other, _, _) => [Some(one), Some(other)],
            Self::Roll
            | Self::Version(_)
            | Self::HintsLost(_)
            | Self::HintsDoubled(_)
            | Self::HintsLate(..)
            | Self::HintsForged(_)
            | Self::StoreDown(_)
            | Self::StoreHang(_)
            | Self::StoreDelay(..)
            | Self::StoreLose(..)
            | Self::StoreLag(_) => [None, None],
        }
    }

    /// Reads a fault's words.
    pub(super) fn parse(words: &[&str]) -> Result<Self, &'static str> {
        Ok(match *words {
            ["kill", slot] => Self::Kill(parse_slot(slot)?),
            ["vanish", slot] => Self::Vanish(parse_slot(slot)?),
            ["start", slot] => Self::Start(parse_slot(slot)?),
            ["restart", slot] => Self::Restart(parse_slot(slot)?),
            ["drain", slot] => Self::Drain(parse_slot(slot)?),
            ["roll"] => Self::Roll,
            ["version", number] => Self::Version(parse_count(number)?),
            ["jump", slot, by] => Self::Jump(parse_slot(slot)?, parse_span(by)?),
            ["reset", one, other] => Self::Reset(parse_slot(one)?, parse_slot(other)?),
            ["tear", one, other] => Self::Tear(parse_slot(one)?, parse_slot(other)?),
            ["half-open", one, other] => Self::HalfOpen(parse_slot(one)?, parse_slot(other)?),
            ["store-reset", slot] => Self::StoreReset(parse_slot(slot)?),
            [ref front @ .., "for", span] => Self::parse_lasting(front, parse_span(span)?)?,
            _ => return Err("no such fault"),
        })
    }

    fn parse_lasting(words: &[&str], span: Duration) -> Result<Self, &'static str> {
        Ok(match *words {
            ["pause", slot] => Self::Pause(parse_slot(slot)?, span),
            ["slow", slot, by] => Self::Slow(parse_slot(slot)?, parse_span(by)?, span),
            ["late", slot, by] => Self::Late(parse_slot(slot)?, parse_span(by)?, span),
            ["mute", from, to] => Self::Mute(parse_slot(from)?, parse_slot(to)?, span),
            ["split", one, other] => Self::Split(parse_slot(one)?, parse_slot(other)?, span),
            ["isolate", slot] => Self::Isolate(parse_slot(slot)?, span),
            ["flap", one, other, period] => {
                Self::Flap(parse_slot(one)?, parse_slot(other)?, parse_span(period)?, span)
            }
            ["refuse", from, to] => Self::Refuse(parse_slot(from)?, parse_slot(to)?, span),
            ["delay", one, other, by] => {
                Self::Delay(parse_slot(one)?, parse_slot(other)?, parse_span(by)?, span)
            }
            ["lose", one, other, lost] => {
                Self::Lose(parse_slot(one)?, parse_slot(other)?, parse_per_mille(lost)?, span)
            }
            ["no-files", slot] => Self::NoFiles(parse_slot(slot)?, span),
            ["hints-lost"] => Self::HintsLost(span),
            ["hints-doubled"] => Self::HintsDoubled(span),
            ["hints-late", by] => Self::HintsLate(parse_span(by)?, span),
            ["hints-forged"] => Self::HintsForged(span),
            ["store-down"] => Self::StoreDown(span),
            ["store-hang"] => Self::StoreHang(span),
            ["store-delay", by] => Self::StoreDelay(parse_span(by)?, span),
            ["store-lose", lost] => Self::StoreLose(parse_per_mille(lost)?, span),
            ["store-lag"] => Self::StoreLag(span),
            ["store-cut", slot] => Self::StoreCut(parse_slot(slot)?, span),
            _ => return Err("no such fault"),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.name())?;
        match *self {
            Self::Kill(slot)
            | Self::Vanish(slot)
            | Self::Start(slot)
            | Self::Restart(slot)
            | Self::Drain(slot)
            | Self::StoreReset(slot)
            | Self::Pause(slot, _)
            | Self::Isolate(slot, _)
            | Self::NoFiles(slot, _)
            | Self::StoreCut(slot, _) => write!(out, " {slot}")?,
            Self::Slow(slot, by, _) | Self::Late(slot, by, _) | Self::Jump(slot, by) => {
                write!(out, " {slot} {}", Span(by))?;
            }
            Self::Reset(one, other)
            | Self::Tear(one, other)
            | Self::HalfOpen(one, other)
            | Self::Mute(one, other, _)
            | Self::Split(one, other, _)
            | Self::Refuse(one, other, _) => write!(out, " {one} {other}")?,
            Self::Flap(one, other, by, _) | Self::Delay(one, other, by, _) => {
                write!(out, " {one} {other} {}", Span(by))?;
            }
            Self::Lose(one, other, share, _) => write!(out, " {one} {other} {share}")?,
            Self::HintsLate(by, _) | Self::StoreDelay(by, _) => write!(out, " {}", Span(by))?,
            Self::StoreLose(share, _) => write!(out, " {share}")?,
            Self::Version(number) => write!(out, " {number}")?,
            Self::Roll
            | Self::HintsLost(_)
            | Self::HintsDoubled(_)
            | Self::HintsForged(_)
            | Self::StoreDown(_)
            | Self::StoreHang(_)
            | Self::StoreLag(_) => {}
        }
        match self.span() {
            Some(span) => write!(out, " for {}", Span(span)),
            None => Ok(()),
        }
    }
}
