//! The connections of one shard, by number.
//!
//! A shard has a link for each silo of its cluster, and often one or two: the numbers lie in a list
//! of their own, in order, and each is found by halving that. So the order in which connections are
//! gone through is that of their numbers, whatever came before.

use siloring_runtime::mail::ConnId;

/// Something for each connection.
#[derive(Debug)]
pub(super) struct Conns<T> {
    /// In order.
    numbers: Vec<ConnId>,
    /// Of the number at the same place.
    values: Vec<T>,
}

impl<T> Default for Conns<T> {
    fn default() -> Self {
        Self { numbers: Vec::new(), values: Vec::new() }
    }
}

impl<T> Conns<T> {
    /// Adds a connection.
    ///
    /// # Panics
    /// If its number is taken.
    pub(super) fn insert(&mut self, conn: ConnId, value: T) {
        let at = self.numbers.binary_search(&conn).expect_err("a number is never used again");
        self.numbers.insert(at, conn);
        self.values.insert(at, value);
    }

    /// Takes a connection out.
    pub(super) fn remove(&mut self, conn: ConnId) -> Option<T> {
        let at = self.numbers.binary_search(&conn).ok()?;
        self.numbers.remove(at);
        Some(self.values.remove(at))
    }

    #[inline]
    pub(super) fn get(&self, conn: ConnId) -> Option<&T> {
        let at = self.numbers.binary_search(&conn).ok()?;
        Some(&self.values[at])
    }

    #[inline]
    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut T> {
        let at = self.numbers.binary_search(&conn).ok()?;
        Some(&mut self.values[at])
    }

    /// Their numbers, in order.
    pub(super) fn numbers(&self) -> &[ConnId] {
        &self.numbers
    }

    /// All of them, in order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnId, &T)> {
        self.numbers.iter().copied().zip(&self.values)
    }

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_number_and_gone_through_in_order() {
        let mut conns = Conns::default();
        for number in [5, 1, 9, 3] {
            conns.insert(ConnId(number), number * 10);
        }
        assert_eq!(conns.remove(ConnId(9)), Some(90));
        assert_eq!((conns.remove(ConnId(9)), conns.get(ConnId(2)), conns.len()), (None, None, 3));
        *conns.get_mut(ConnId(3)).expect("it is there") += 1;
        let all: Vec<_> = conns.iter().map(|(conn, value)| (conn.0, *value)).collect();
        assert_eq!(all, [(1, 10), (3, 31), (5, 50)]);
        assert_eq!(conns.numbers(), [ConnId(1), ConnId(3), ConnId(5)]);
    }
}
