//! What the default policy keeps of an entry, in twelve bytes: there may be millions.

use super::{
    limits,
    table::{NONE, Slot},
};

/// Group of the entries that came without the entry they depend on.
pub(super) const ORPHANED: Slot = NONE - 1;
/// Group of an entry that was removed while others depend on it: its slot is freed with the last of them, so that they never
/// name another entry.
pub(super) const GONE: Slot = NONE - 2;

#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    /// The group that it waits in; [`NONE`] while it is passed over because dependants are present.
    pub(super) group: Slot,
    /// The entry it depends on; [`NONE`] if there is none.
    pub(super) parent: Slot,
    pub(super) counts: Counts,
}

/// The uses of an entry, up to [`Self::USES_MAX`], and the present entries that depend on it, up to
/// [`Self::DEPENDANTS_MAX`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts(u32);

impl Counts {
    const USES_BITS: u32 = 6;
    /// More uses are counted as this many.
    const USES_MAX: u32 = (1 << Self::USES_BITS) - 1;
    /// 67 million, each with an entry of its own. An entry more is not bound to its parent.
    const DEPENDANTS_MAX: u32 = u32::MAX >> Self::USES_BITS;

    pub(super) fn of_uses(uses: u32) -> Self {
        Self(uses.min(Self::USES_MAX))
    }

    pub(super) const fn uses(self) -> u32 {
        self.0 & Self::USES_MAX
    }

    /// Notes a use and returns how many there were with it.
    pub(super) fn note_use(&mut self) -> u32 {
        if self.uses() < Self::USES_MAX {
            self.0 += 1;
        }
        self.uses()
    }

    pub(super) const fn dependants(self) -> u32 {
        self.0 >> Self::USES_BITS
    }

    /// Counts one more dependant; `false` if there are too many to count one more.
    pub(super) fn add_dependant(&mut self) -> bool {
        let fits = self.dependants() < Self::DEPENDANTS_MAX;
        self.0 += if fits { 1 << Self::USES_BITS } else { 0 };
        fits
    }

    /// Counts one less, of at least one.
    pub(super) fn remove_dependant(&mut self) {
        self.0 -= 1 << Self::USES_BITS;
    }
}

// Uses that are not told apart by their bucket may share a count.
const _: () = assert!(Counts::USES_MAX >= 1 << (limits::USE_BUCKETS - 1));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_and_dependants_do_not_run_into_each_other() {
        assert_eq!(size_of::<Member>(), 12);
        let mut counts = Counts::of_uses(1_000);
        assert_eq!((counts.uses(), counts.note_use(), counts.dependants()), (63, 63, 0));
        let mut counts = Counts::of_uses(61);
        assert!(counts.add_dependant() && counts.add_dependant());
        assert_eq!((counts.note_use(), counts.note_use(), counts.note_use()), (62, 63, 63));
        counts.remove_dependant();
        assert_eq!((counts.uses(), counts.dependants()), (63, 1));
        let mut full = Counts(u32::MAX - (1 << Counts::USES_BITS));
        assert!(full.add_dependant() && !full.add_dependant());
        assert_eq!((full.uses(), full.dependants()), (Counts::USES_MAX, Counts::DEPENDANTS_MAX));
    }
}
