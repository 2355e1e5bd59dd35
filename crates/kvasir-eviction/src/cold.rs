//! The same policies for a tier that keeps no records itself: which objects of a listing to drop.

use super::{Access, ClassId, EntryKey, Moment, PolicyKind};

/// The known facts about one object of the cold tier when its capacity is enforced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColdObject<K> {
    /// Its key.
    pub key: K,
    /// Its size.
    pub bytes: u64,
    /// When it was stored.
    pub stored: Moment,
    /// When it was last read; [`stored`](Self::stored) for one that never was.
    pub last_read: Moment,
    /// Class of the requests that read it, if known.
    pub class: ClassId,
    /// Its position in its context, from 0: later chunks go first.
    pub offset: u32,
    /// The chunk before it in its context: it is dropped only after all that follow it.
    pub parent: Option<K>,
}

impl<K> ColdObject<K> {
    fn access(&self, now: Moment) -> Access<K>
    where
        K: Copy,
    {
        Access::new(now, self.class).bytes(self.bytes).at(self.offset, self.parent)
    }
}

/// The objects to drop, worst first, so that the rest hold at most `capacity_bytes` under `policy`.
///
/// A store keeps two moments per object: when it was stored and when it was last read. The policy receives
/// these in the order of time and also learns from them how long objects of a class wait. Memory: the objects
/// and the policy's records, about 200 bytes each.
///
/// ```
/// use kvasir_eviction::{ClassId, ColdObject, Moment, PolicyKind, victims};
///
/// let object = |key: u64, read: u64| ColdObject {
///     key,
///     bytes: 100,
///     stored: Moment::from_millis(key),
///     last_read: Moment::from_millis(read),
///     class: ClassId::OTHER,
///     offset: 0,
///     parent: None,
/// };
/// let objects = [object(1, 900), object(2, 2), object(3, 3)];
/// assert_eq!(victims(PolicyKind::Lru, 200, &objects, Moment::from_millis(1_000)), [2]);
/// ```
pub fn victims<K: EntryKey>(
    policy: PolicyKind,
    capacity_bytes: u64,
    objects: &[ColdObject<K>],
    now: Moment,
) -> Vec<K> {
    let mut book = policy.build();
    // Within one moment, parents come before their dependants.
    let mut events: Vec<(Moment, bool, u32, usize)> = Vec::with_capacity(2 * objects.len());
    for (index, object) in objects.iter().enumerate() {
        events.push((object.stored, false, object.offset, index));
        if object.last_read > object.stored {
            events.push((object.last_read, true, object.offset, index));
        }
    }
    events.sort_unstable();
    for (at, read, _, index) in events {
        let object = &objects[index];
        if read {
            book.touch(&object.key, &object.access(at));
        } else {
            book.insert(object.key, &object.access(at));
        }
    }
    let mut victims = Vec::new();
    while book.bytes() > capacity_bytes {
        let Some(victim) = book.evict(now) else { break };
        victims.push(victim);
    }
    victims
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(key: u64, bytes: u64, stored: u64, last_read: u64) -> ColdObject<u64> {
        ColdObject {
            key,
            bytes,
            stored: Moment::from_millis(stored),
            last_read: Moment::from_millis(last_read),
            class: ClassId::OTHER,
            offset: 0,
            parent: None,
        }
    }

    proptest! {
        #[test]
        fn as_much_goes_as_must_and_no_more(
            objects in prop::collection::vec((0..1_000u64, 0..100_000u64, 0..100_000u64), 0..60),
            capacity in 0..20_000u64,
            now in 0..200_000u64,
        ) {
            let objects: Vec<_> = objects
                .iter()
                .enumerate()
                .map(|(key, (bytes, stored, read))| object(key as u64, *bytes, *stored, *read))
                .collect();
            for kind in PolicyKind::ALL {
                let gone = victims(kind, capacity, &objects, Moment::from_millis(now));
                let mut distinct = gone.clone();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(distinct.len(), gone.len(), "{}", kind);
                let bytes = |keys: &[u64]| keys.iter().map(|key| objects[*key as usize].bytes).sum::<u64>();
                let all: u64 = objects.iter().map(|object| object.bytes).sum();
                prop_assert!(all - bytes(&gone) <= capacity, "{}", kind);
                if let [rest @ .., _] = gone.as_slice() {
                    prop_assert!(all - bytes(rest) > capacity, "{}: the last one need not have gone", kind);
                }
            }
        }
    }

    #[test]
    fn later_chunks_of_a_context_go_first() {
        // Two contexts of four chunks each; one was read recently.
        let chunk = |context: u64, index: u32, read: u64| ColdObject {
            offset: index,
            parent: index.checked_sub(1).map(|before| context * 10 + u64::from(before)),
            ..object(context * 10 + u64::from(index), 100, context, read)
        };
        let objects: Vec<_> =
            (0..4).flat_map(|index| [chunk(1, index, 60_000), chunk(2, index, 2)]).collect();
        let now = Moment::from_millis(61_000);
        assert_eq!(victims(PolicyKind::Adaptive, 600, &objects, now), [23, 22]);
        assert_eq!(victims(PolicyKind::Adaptive, 0, &objects, now).len(), 8);
    }
}
