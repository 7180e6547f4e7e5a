//! An input read as a script: small numbers and runs of bytes, in order.
//!
//! Total: a tape that is over yields zeros and nothing, so that every input is a script and cutting
//! one anywhere leaves one.

/// What is left of an input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    pub(super) const fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    pub(super) const fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// All that is left.
    pub(super) const fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// Below `bound`.
    pub(super) fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    pub(super) fn is_odd(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(super) fn short(&mut self) -> u16 {
        u16::from(self.byte()) | u16::from(self.byte()) << 8
    }

    /// A number that is small most of the time, and else at an edge of its range or anything.
    pub(super) fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::MAX - 1,
            253 => 1 << 63,
            252 => (1 << 63) - 1,
            251 => self.bytes(8).iter().fold(0, |all, byte| all << 8 | u64::from(*byte)),
            small => u64::from(small),
        }
    }

    /// As many bytes, or all there are.
    pub(super) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
