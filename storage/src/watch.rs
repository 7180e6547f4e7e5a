//! When word of a change in the registry is due, as a machine.
//!
//! Two sources: what the server tells, and the newest version, looked at once in a while. A version
//! that moved although nothing was told means that word was lost, or that nobody tells (SQLite, a
//! pooler between): then everything may have changed. Input: connections, what is told, versions.
//! Output: hints. Deliberately absent: connections, time, and any promise that a change is told
//! once.

use siloring_core::ports::registry::{RegistryHint, SetVersion};

/// Says when word of a change in the registry is due; what connects, listens and looks is whoever
/// feeds it.
#[derive(Debug, Default)]
pub struct Watch {
    /// The newest version as last looked at.
    seen: SetVersion,
    /// Since then something was told.
    told: Told,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Told {
    #[default]
    Nothing,
    Something,
}

impl Watch {
    /// Takes note of a connection, and of the newest version that it showed after it began to
    /// listen: what changed before was told to nobody.
    pub const fn handle_connection(&mut self, newest: SetVersion) -> RegistryHint {
        *self = Self { seen: newest, told: Told::Nothing };
        RegistryHint::Everything
    }

    /// Takes what was told.
    pub const fn handle_hint(&mut self, hint: RegistryHint) -> RegistryHint {
        self.told = Told::Something;
        hint
    }

    /// Takes the newest version.
    pub fn handle_version(&mut self, newest: SetVersion) -> Option<RegistryHint> {
        let told = core::mem::take(&mut self.told);
        let before = core::mem::replace(&mut self.seen, newest);
        (newest != before && told == Told::Nothing).then_some(RegistryHint::Everything)
    }
}

#[cfg(test)]
mod tests {
    use siloring_core::AddressHash;

    use super::*;

    const STREAM: RegistryHint = RegistryHint::Stream(AddressHash(7));
    const EVERYTHING: Option<RegistryHint> = Some(RegistryHint::Everything);

    #[test]
    fn a_version_that_moved_untold_means_everything_once() {
        let mut watch = Watch::default();
        assert_eq!(watch.handle_connection(SetVersion(5)), RegistryHint::Everything);
        assert_eq!(watch.handle_version(SetVersion(5)), None);
        assert_eq!(watch.handle_version(SetVersion(9)), EVERYTHING);
        assert_eq!(watch.handle_version(SetVersion(9)), None);
        assert_eq!(watch.handle_version(SetVersion(3)), EVERYTHING, "the store was restored");
    }

    #[test]
    fn what_was_told_explains_the_version_once() {
        let mut watch = Watch::default();
        watch.handle_connection(SetVersion(5));
        assert_eq!(watch.handle_hint(STREAM), STREAM);
        assert_eq!(watch.handle_version(SetVersion(6)), None);
        assert_eq!(watch.handle_version(SetVersion(7)), EVERYTHING);
    }

    #[test]
    fn what_was_told_on_the_last_connection_explains_nothing_on_this_one() {
        let mut watch = Watch::default();
        watch.handle_connection(SetVersion(5));
        watch.handle_hint(STREAM);
        assert_eq!(watch.handle_connection(SetVersion(6)), RegistryHint::Everything);
        assert_eq!(watch.handle_version(SetVersion(7)), EVERYTHING);
    }
}
