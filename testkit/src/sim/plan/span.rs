//! Words of plans: spans, slots, shares.

use std::fmt;
use std::time::Duration;

use super::Slot;

/// A span as plans write it: a whole number and the largest unit that keeps it one.
pub(super) struct Span(pub(super) Duration);

/// The units, largest first: name and nanoseconds.
const UNITS: [(&str, u128); 4] =
    [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        for (unit, size) in UNITS {
            if nanos.is_multiple_of(size) {
                return write!(out, "{}{unit}", nanos / size);
            }
        }
        Ok(())
    }
}

pub(super) fn parse_span(text: &str) -> Result<Duration, &'static str> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or("a span needs a unit")?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().or(Err("a span starts with a whole number"))?;
    let size = UNITS.iter().find(|(name, _)| *name == unit).ok_or("units are s, ms, us, ns")?;
    let nanos = u128::from(number) * size.1;
    u64::try_from(nanos).map(Duration::from_nanos).or(Err("the span is too long"))
}

pub(super) fn parse_slot(text: &str) -> Result<Slot, &'static str> {
    let number = text.strip_prefix('s').ok_or("a slot is s1, s2, …")?;
    match number.parse() {
        Ok(number) if number > 0 => Ok(Slot(number)),
        Ok(_) | Err(_) => Err("a slot is s1, s2, …"),
    }
}

pub(super) fn parse_per_mille(text: &str) -> Result<u16, &'static str> {
    text.parse().ok().filter(|share| *share <= 1000).ok_or("a share is 0 to 1000 per mille")
}
