//! Byte ranges that have arrived.

use std::ops::Range;

/// A set of bytes as disjoint, sorted, non-adjacent ranges. Reads yield few, long ranges, so a vector is
/// enough.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<Range<u64>>);

impl RangeSet {
    /// Adds a range. Returns the range that it became part of, and how many of its bytes are new.
    pub(super) fn insert(&mut self, added: Range<u64>) -> (Range<u64>, u64) {
        if added.is_empty() {
            return (added, 0);
        }
        let before = self.0.partition_point(|r| r.end < added.start);
        let after = self.0.partition_point(|r| r.start <= added.end);
        let touched = &self.0[before..after];
        let held: u64 =
            touched.iter().map(|r| r.end.min(added.end).saturating_sub(r.start.max(added.start))).sum();
        let start = touched.first().map_or(added.start, |r| r.start.min(added.start));
        let end = touched.last().map_or(added.end, |r| r.end.max(added.end));
        self.0.splice(before..after, std::iter::once(start..end));
        (start..end, added.end - added.start - held)
    }

    /// The ranges, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Whether all of `range` is present.
    pub(super) fn contains(&self, range: &Range<u64>) -> bool {
        let after = self.0.partition_point(|r| r.start <= range.start);
        range.is_empty() || after.checked_sub(1).is_some_and(|i| self.0[i].end >= range.end)
    }

    /// The parts of `0..end` that are missing.
    pub(super) fn missing(&self, end: u64) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut next = 0;
        for r in self.0.iter().take_while(|r| r.start < end) {
            if r.start > next {
                gaps.push(next..r.start);
            }
            next = r.end;
        }
        if next < end {
            gaps.push(next..end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_bytes(
            added in prop::collection::vec((0u64..60, 0u64..20), 0..30), ask in 0u64..60, len in 0u64..20, end in 0u64..90,
        ) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (start, len) in added {
                let fresh = (start..start + len).filter(|b| model.insert(*b)).count() as u64;
                let (whole, new) = set.insert(start..start + len);
                prop_assert_eq!(new, fresh);
                prop_assert!(whole.start <= start && whole.end >= start + len && set.contains(&whole));
            }
            prop_assert_eq!(set.contains(&(ask..ask + len)), (ask..ask + len).all(|b| model.contains(&b)));
            let gaps: Vec<u64> = set.missing(end).into_iter().flatten().collect();
            prop_assert_eq!(gaps, (0..end).filter(|b| !model.contains(b)).collect::<Vec<_>>());
        }
    }
}
