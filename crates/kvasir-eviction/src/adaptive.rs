//! The default policy: the Gittins index of observed reuse, dependants first.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;

use super::{
    Access, EntryKey, EvictionPolicy, Moment,
    hazard::{Hazards, LifeTable, Worth, bin_of},
    limits,
    member::{Counts, GONE, Member, ORPHANED},
    queue_ends::{QueueEnd, QueueEnds},
    reuse_sampler::ReuseSampler,
    table::{List, NONE, Slab, Slot, Table},
    use_memory::UseMemory,
};

/// The properties by which entries are grouped to estimate reuse, ordered from the strongest predictor to the
/// weakest. Estimates for a fine class lean on those for the class without its last fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Traits {
    /// Uses, those before an eviction included as long as they are remembered: 1, 2–3, 4–7, 8–15, 16–31, more.
    uses: u8,
    /// Pace of the conversation, in factors of four; 0 is unknown.
    pace: u8,
    /// The request's class.
    class: u16,
    /// Worth per byte, in factors of two; 0 where it is not stated.
    value: i8,
}

impl Traits {
    fn of<K>(access: &Access<K>, uses: u32) -> Self {
        let pace =
            access.pace_seconds.map_or(0, |pace| 1 + pace.clamp(1.0, PACE_SECONDS_MAX).log2() as u8 / 2);
        let class = if access.class.index() < limits::CLASSES_MAX { access.class.index() } else { 0 };
        let uses = (u32::BITS - uses.leading_zeros()).min(limits::USE_BUCKETS) as u8;
        let density = access.worth / access.bytes.max(1) as f32;
        let value = if density > 0.0 { density.log2().round() as i8 } else { 0 };
        Self { uses, pace, class: class as u16, value }
    }
}

/// Beyond this, the pace of a conversation is not distinguished.
const PACE_SECONDS_MAX: f32 = 4096.0;

/// The entries of like traits that one request used last: they live and die together, later ones first.
#[derive(Debug)]
struct Group {
    queue: u16,
    last: Moment,
    members: List,
}

/// Groups of like traits in order of last use.
#[derive(Debug)]
struct Queue {
    traits: Traits,
    groups: List,
    reuse: LifeTable,
}

/// Evicts the entry whose Gittins index is lowest: the best ratio, over all horizons, of the probability of
/// reuse to the time it would occupy the tier until then, times the [`worth`](Access::worth) of a byte.
///
/// - **Learnt, not tuned.** Hazards by age come from a sample of keys, whether cached or not, within a sliding
///   window, per traits of the entry: uses so far, pace of the conversation, request class. The uses of evicted entries
///   are remembered, so that an entry that comes back is not taken for a new one.
/// - **Both ends of a queue compete.** Reuse is unlikely just after a use (a person reads the answer), then
///   likely, then unlikely again. So the worth over age rises and falls, and the present entry with the lowest
///   worth is in the oldest or in the newest group. A small tier evicts the newest: the entries that have waited
///   longer are closer to their reuse. LRU would lose both.
/// - **Dependants first.** An entry is passed over while entries are present that name it as their
///   [`parent`](Access::parent): without it they would be useless. With blocks this keeps prefixes whole; with
///   sections it evicts refinements before bases.
///
/// An eviction compares two worths per queue, and there are at most [`limits::QUEUES_MAX`] queues, whatever the
/// number of entries. It compares nothing while it evicts more of the same group at the same moment.
#[derive(Debug)]
pub struct Adaptive<K> {
    table: Table<K, Member>,
    groups: Slab<Group>,
    queues: Vec<Queue>,
    worths: Vec<Worth>,
    ends: QueueEnds,
    queue_of: HashMap<Traits, u16, RandomState>,
    /// Entries admitted without the entry they depend on: useless, so they are evicted first.
    orphans: List,
    /// The group that the running request fills, and the offset reached.
    running: Slot,
    running_offset: u32,
    sampler: ReuseSampler<K, u16>,
    evicted: UseMemory,
    accesses_until_fit: usize,
    fitted_at: Moment,
}

impl<K: EntryKey> Default for Adaptive<K> {
    fn default() -> Self {
        Self {
            table: Table::default(),
            groups: Slab::new(),
            queues: Vec::new(),
            worths: Vec::new(),
            ends: QueueEnds::default(),
            queue_of: HashMap::default(),
            orphans: List::EMPTY,
            running: NONE,
            running_offset: 0,
            sampler: ReuseSampler::default(),
            evicted: UseMemory::default(),
            accesses_until_fit: limits::REFIT_ACCESSES,
            fitted_at: Moment::default(),
        }
    }
}

impl<K: EntryKey> Adaptive<K> {
    /// The queue of `traits`, created if there is capacity; else the one without the class, then without the pace, then
    /// the one whose value is nearest: values differ by more than anything else does.
    fn queue_index(&mut self, traits: Traits) -> u16 {
        if let Some(index) = self.queue_of.get(&traits) {
            return *index;
        }
        if traits.class != 0 && self.queues.len() >= limits::QUEUES_MAX - limits::QUEUES_UNCLASSED {
            return self.queue_index(Traits { class: 0, ..traits });
        }
        if self.queues.len() >= limits::QUEUES_MAX {
            if traits.pace != 0 {
                return self.queue_index(Traits { pace: 0, ..traits });
            }
            let distance = |index: &u16| {
                let other = self.queues[usize::from(*index)].traits;
                (
                    traits.value.abs_diff(other.value),
                    traits.uses.abs_diff(other.uses),
                    other.pace,
                    other.class,
                )
            };
            let nearest = (0..limits::QUEUES_MAX as u16).min_by_key(distance).unwrap_or(0);
            // At most one for each number of uses and value.
            self.queue_of.insert(traits, nearest);
            return nearest;
        }
        let index = u16::try_from(self.queues.len()).expect("QUEUES_MAX is below 2^16");
        self.queues.push(Queue { traits, groups: List::EMPTY, reuse: LifeTable::default() });
        self.ends.push();
        self.worths.push(Worth::of(&Hazards::PRIOR));
        self.queue_of.insert(traits, index);
        let pooled = self.pooled_hazards();
        self.learn_worth(usize::from(index), &pooled);
        index
    }

    fn observe(&mut self, key: K, queue: u16, now: Moment) {
        if let Some(seen) = self.sampler.note(key, queue, now) {
            self.queues[seen.class as usize].reuse.note_reuse(bin_of(now, seen.last));
        }
        self.accesses_until_fit -= 1;
        if self.accesses_until_fit == 0 {
            // As many accesses as sampled keys, so that a fit costs O(1) per access.
            self.accesses_until_fit = self.sampler.len().max(limits::REFIT_ACCESSES);
            self.fit(now);
        }
    }

    fn fit(&mut self, now: Moment) {
        let keep = (-now.seconds_since(self.fitted_at) / limits::REUSE_WINDOW_SECONDS).exp();
        self.fitted_at = now;
        self.queues.iter_mut().for_each(|queue| queue.reuse.forget(keep));
        for seen in self.sampler.iter() {
            self.queues[usize::from(seen.class)].reuse.note_waiting(bin_of(now, seen.last));
        }
        let pooled = self.pooled_hazards();
        (0..self.queues.len()).for_each(|index| self.learn_worth(index, &pooled));
    }

    /// Hazards by uses and pace, each leaning on those by uses, and these on those by fewer uses: an entry that was
    /// used often resembles one that was used half as often more than it resembles the rest.
    fn pooled_hazards(&self) -> BTreeMap<(u8, u8), Hazards> {
        let mut all = LifeTable::default();
        let mut by_uses: BTreeMap<u8, LifeTable> = BTreeMap::new();
        let mut by_pace: BTreeMap<(u8, u8), LifeTable> = BTreeMap::new();
        for Queue { traits, reuse, .. } in &self.queues {
            all.add(reuse);
            by_uses.entry(traits.uses).or_default().add(reuse);
            by_pace.entry((traits.uses, traits.pace)).or_default().add(reuse);
        }
        let mut fewer = all.hazards(&Hazards::PRIOR);
        let by_uses: BTreeMap<u8, Hazards> = by_uses
            .into_iter()
            .map(|(uses, table)| {
                fewer = table.hazards(&fewer);
                (uses, fewer.clone())
            })
            .collect();
        by_pace.into_iter().map(|(key, table)| (key, table.hazards(&by_uses[&key.0]))).collect()
    }

    fn learn_worth(&mut self, index: usize, pooled: &BTreeMap<(u8, u8), Hazards>) {
        let Queue { traits, reuse, .. } = &self.queues[index];
        let worth = Worth::of(&reuse.hazards(&pooled[&(traits.uses, traits.pace)]));
        self.worths[index] = worth.scaled(f32::from(traits.value).exp2());
        self.ends.relearn(index);
    }

    /// The running request's group, or a new one when `access` does not continue it.
    fn group_for(&mut self, queue: u16, access: &Access<K>) -> Slot {
        if self.running != NONE {
            let group = self.groups.get(self.running);
            let continues = group.queue == queue && group.last == access.now;
            if continues && access.offset > self.running_offset {
                self.running_offset = access.offset;
                return self.running;
            }
        }
        self.running_offset = access.offset;
        self.running = self.add_group(queue, access.now);
        self.running
    }

    fn add_group(&mut self, queue: u16, last: Moment) -> Slot {
        let slot = self.groups.add(Group { queue, last, members: List::EMPTY });
        self.queues[usize::from(queue)].groups.push_back(&mut self.groups, slot);
        self.note_ends(queue);
        slot
    }

    fn drop_group(&mut self, slot: Slot) {
        let queue = self.groups.get(slot).queue;
        self.queues[usize::from(queue)].groups.unlink(&mut self.groups, slot);
        self.groups.free(slot);
        self.note_ends(queue);
        if self.running == slot {
            self.running = NONE;
        }
    }

    fn note_ends(&mut self, queue: u16) {
        let groups = self.queues[usize::from(queue)].groups;
        let ends = groups.front().zip(groups.back());
        let last = |slot| self.groups.get(slot).last;
        self.ends.set(usize::from(queue), ends.map(|(front, back)| (last(front), last(back))));
    }

    fn link(&mut self, slot: Slot, group: Slot) {
        self.table.meta_mut(slot).group = group;
        self.groups.get_mut(group).members.push_back(&mut self.table.slab, slot);
    }

    fn unlink(&mut self, slot: Slot) {
        let group = std::mem::replace(&mut self.table.meta_mut(slot).group, NONE);
        if group == ORPHANED {
            self.orphans.unlink(&mut self.table.slab, slot);
        } else if group != NONE {
            self.groups.get_mut(group).members.unlink(&mut self.table.slab, slot);
            if self.groups.get(group).members.is_empty() {
                self.drop_group(group);
            }
        }
    }

    /// Moves an entry to the running request's group.
    fn use_once(&mut self, slot: Slot, access: &Access<K>) {
        let uses = self.table.meta_mut(slot).counts.note_use();
        let traits = Traits::of(access, uses);
        let queue = self.queue_index(traits);
        self.observe(self.table.key(slot), queue, access.now);
        self.unlink(slot);
        let group = self.group_for(queue, access);
        self.link(slot, group);
    }

    /// Removes an entry; its parent waits in its stead if it was the last dependant.
    fn take(&mut self, slot: Slot) -> K {
        let Member { group, parent, counts } = *self.table.meta(slot);
        if parent != NONE {
            self.leave(parent, group);
        }
        self.unlink(slot);
        if counts.dependants() == 0 {
            return self.table.drop_slot(slot);
        }
        self.table.meta_mut(slot).group = GONE;
        self.table.drop_key(slot)
    }

    /// Counts one dependant of `parent` less, which waited in `group`.
    fn leave(&mut self, parent: Slot, group: Slot) {
        let above = self.table.meta_mut(parent);
        above.counts.remove_dependant();
        if above.counts.dependants() > 0 {
            return;
        }
        match above.group {
            GONE => self.table.slab.free(parent),
            // A removed entry that had dependants waits nowhere; its parent is then next.
            NONE if group == NONE || group == ORPHANED => self.orphan(parent),
            NONE => self.link(parent, group),
            _ => {}
        }
    }

    fn orphan(&mut self, slot: Slot) {
        self.table.meta_mut(slot).group = ORPHANED;
        self.orphans.push_back(&mut self.table.slab, slot);
    }

    /// The group at either end of a queue that is worth least.
    fn cheapest(&mut self, now: Moment) -> Option<Slot> {
        let (queue, side) = self.ends.least(now, &self.worths)?;
        let groups = self.queues[queue].groups;
        match side {
            QueueEnd::Front => groups.front(),
            QueueEnd::Back => groups.back(),
        }
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Adaptive<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if let Some(slot) = self.table.find(&key) {
            self.table.resize(slot, access.bytes);
            self.use_once(slot, access);
            return;
        }
        let counts = Counts::of_uses(self.evicted.recall(key));
        let mut member = Member { group: NONE, parent: NONE, counts };
        // Only an entry admitted earlier can be a parent, so the relation has no cycles.
        let parent = access.parent.and_then(|parent| self.table.find(&parent));
        if let Some(parent) = parent
            && self.table.meta_mut(parent).counts.add_dependant()
        {
            member.parent = parent;
        }
        let slot = self.table.add(key, access.bytes, member);
        self.use_once(slot, access);
        if access.parent.is_some() && parent.is_none() {
            self.unlink(slot);
            self.orphan(slot);
        }
    }

    fn touch(&mut self, key: &K, access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.use_once(slot, access);
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.take(slot);
        true
    }

    fn evict(&mut self, now: Moment) -> Option<K> {
        // Ends: each round removes an entry or sets one aside, and an entry without dependants always waits.
        loop {
            let leaf = match self.orphans.back() {
                Some(orphan) => orphan,
                None => {
                    let group = self.cheapest(now)?;
                    self.groups.get(group).members.back()?
                }
            };
            let counts = self.table.meta(leaf).counts;
            if counts.dependants() == 0 {
                let (uses, entries) = (counts.uses(), self.table.len());
                let key = self.take(leaf);
                self.evicted.remember(key, uses, entries);
                return Some(key);
            }
            self.unlink(leaf);
        }
    }

    fn contains(&self, key: &K) -> bool {
        self.table.find(key).is_some()
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn bytes(&self) -> u64 {
        self.table.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClassId;

    /// What takes the place of a removed parent is not bound by the parent's dependants, and the place is not lost.
    #[test]
    fn the_slot_of_a_removed_parent_is_freed_with_its_last_dependant() {
        let mut policy = Adaptive::<u64>::default();
        for round in 0..1_000 {
            let access = Access::new(Moment::from_millis(round), ClassId::OTHER);
            policy.insert(0, &access);
            policy.insert(1, &access.at(1, Some(0)));
            policy.insert(2, &access.at(1, Some(0)));
            assert!(policy.remove(&0));
            policy.insert(3, &access);
            assert!(policy.remove(&1) && policy.remove(&2));
            let slot = policy.table.find(&3).unwrap();
            assert_eq!(policy.table.meta(slot).counts.dependants(), 0);
            assert!(policy.remove(&3));
        }
        assert!(policy.table.slab.capacity() <= 16, "{}", policy.table.slab.capacity());
    }
}
