//! SIEVE, S3-FIFO, ARC, LFU and the workload-aware policy as their papers write them down, over entries of one size, against the policies of this folder.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// A cache that decides by itself: makes room first, then takes in. Answers whether it was a hit.
trait Published {
    fn request(&mut self, key: u64) -> bool;
    fn resident(&self) -> Vec<u64>;
}

/// NSDI'24, algorithm 1. The front is the head, where new entries come in; the hand moves from the tail to the head.
struct PaperSieve {
    capacity: usize,
    queue: VecDeque<(u64, bool)>,
    hand: Option<u64>,
}

impl PaperSieve {
    fn evict(&mut self) {
        let tail = self.queue.len() - 1;
        let place = |queue: &VecDeque<(u64, bool)>, key| queue.iter().position(|(other, _)| *other == key);
        let mut at = self.hand.and_then(|hand| place(&self.queue, hand)).unwrap_or(tail);
        while self.queue[at].1 {
            self.queue[at].1 = false;
            at = at.checked_sub(1).unwrap_or(tail);
        }
        self.hand = at.checked_sub(1).map(|next| self.queue[next].0);
        self.queue.remove(at);
    }
}

impl Published for PaperSieve {
    fn request(&mut self, key: u64) -> bool {
        if let Some(entry) = self.queue.iter_mut().find(|(other, _)| *other == key) {
            entry.1 = true;
            return true;
        }
        if self.queue.len() == self.capacity {
            self.evict();
        }
        self.queue.push_front((key, false));
        false
    }

    fn resident(&self) -> Vec<u64> {
        self.queue.iter().map(|(key, _)| *key).collect()
    }
}

/// SOSP'23, algorithm 1. Backs are heads.
struct PaperS3Fifo {
    capacity: usize,
    small: VecDeque<(u64, u8)>,
    main: VecDeque<(u64, u8)>,
    ghosts: VecDeque<u64>,
}

impl PaperS3Fifo {
    fn evict(&mut self) {
        if self.small.len() >= self.capacity / 10 || self.main.is_empty() {
            while let Some((key, uses)) = self.small.pop_front() {
                if uses > 1 {
                    self.main.push_back((key, 0));
                } else {
                    self.ghosts.push_back(key);
                    return;
                }
            }
        }
        while let Some((key, uses)) = self.main.pop_front() {
            match uses.checked_sub(1) {
                Some(left) => self.main.push_back((key, left)),
                None => return,
            }
        }
    }
}

impl Published for PaperS3Fifo {
    fn request(&mut self, key: u64) -> bool {
        let mut entries = self.small.iter_mut().chain(&mut self.main);
        if let Some(entry) = entries.find(|(other, _)| *other == key) {
            entry.1 = (entry.1 + 1).min(3);
            return true;
        }
        if self.small.len() + self.main.len() == self.capacity {
            self.evict();
        }
        if let Some(ghost) = self.ghosts.iter().position(|other| *other == key) {
            self.ghosts.remove(ghost);
            self.main.push_back((key, 0));
        } else {
            self.small.push_back((key, 0));
        }
        false
    }

    fn resident(&self) -> Vec<u64> {
        self.small.iter().chain(&self.main).map(|(key, _)| *key).collect()
    }
}

/// FAST'03, figure 4. Fronts are the least recently used.
#[derive(Default)]
struct PaperArc {
    capacity: usize,
    target: usize,
    once: VecDeque<u64>,
    again: VecDeque<u64>,
    once_history: VecDeque<u64>,
    again_history: VecDeque<u64>,
}

impl PaperArc {
    fn replace(&mut self, from_again_history: bool) {
        let once = self.once.len();
        if once > 0 && (once > self.target || (from_again_history && once == self.target)) {
            self.once_history.extend(self.once.pop_front());
        } else if let Some(key) = self.again.pop_front() {
            self.again_history.push_back(key);
        } else {
            // Nothing was used twice: the figure leaves this case out.
            self.once_history.extend(self.once.pop_front());
        }
    }
}

impl Published for PaperArc {
    fn request(&mut self, key: u64) -> bool {
        let take = |list: &mut VecDeque<u64>| {
            let at = list.iter().position(|other| *other == key);
            at.and_then(|at| list.remove(at)).is_some()
        };
        if take(&mut self.once) || take(&mut self.again) {
            self.again.push_back(key);
            return true;
        }
        let (once, again) = (self.once_history.len(), self.again_history.len());
        let full = self.resident().len() == self.capacity;
        if take(&mut self.once_history) {
            self.target = (self.target + (again / once).max(1)).min(self.capacity);
            if full {
                self.replace(false);
            }
            self.again.push_back(key);
        } else if take(&mut self.again_history) {
            self.target = self.target.saturating_sub((once / again).max(1));
            if full {
                self.replace(true);
            }
            self.again.push_back(key);
        } else {
            if self.once.len() + once == self.capacity {
                if self.once.len() < self.capacity {
                    self.once_history.pop_front();
                    if full {
                        self.replace(false);
                    }
                } else {
                    self.once.pop_front();
                }
            } else if full {
                if self.resident().len() + once + again == 2 * self.capacity {
                    self.again_history.pop_front();
                }
                self.replace(false);
            }
            self.once.push_back(key);
        }
        false
    }

    fn resident(&self) -> Vec<u64> {
        self.once.iter().chain(&self.again).copied().collect()
    }
}

/// The fewest uses go; among equals what was used longest ago.
struct PaperLfu {
    capacity: usize,
    entries: Vec<(u64, u64, u64)>,
    clock: u64,
}

impl Published for PaperLfu {
    fn request(&mut self, key: u64) -> bool {
        self.clock += 1;
        if let Some(entry) = self.entries.iter_mut().find(|(.., other)| *other == key) {
            *entry = (entry.0 + 1, self.clock, key);
            return true;
        }
        if self.entries.len() == self.capacity {
            let least = self.entries.iter().min().copied();
            self.entries.retain(|entry| Some(*entry) != least);
        }
        self.entries.push((1, self.clock, key));
        false
    }

    fn resident(&self) -> Vec<u64> {
        self.entries.iter().map(|(.., key)| *key).collect()
    }
}

/// A tier of `capacity` entries under a policy: takes in, then lets go.
fn request(policy: &mut dyn EvictionPolicy<u64>, key: u64, step: u64, capacity: usize) -> bool {
    let access = Access::new(Moment::from_millis(step), ClassId::OTHER);
    let hit = policy.touch(&key, &access);
    if !hit {
        policy.insert(key, &access);
    }
    while policy.bytes() > capacity as u64 && policy.evict(access.now).is_some() {}
    hit
}

fn agree(kind: ComparedPolicy, published: &mut dyn Published, keys: &[u64], capacity: usize) {
    let mut policy = kind.build::<u64>(capacity as u64);
    for (step, key) in keys.iter().enumerate() {
        let hit = request(&mut *policy, *key, step as u64, capacity);
        assert_eq!(hit, published.request(*key), "{kind}, request {step} of {keys:?}");
        let resident = published.resident();
        assert!(policy.len() == resident.len() && resident.iter().all(|key| policy.contains(key)), "{kind}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn policies_are_those_of_their_papers(
        keys in prop::collection::vec(prop_oneof![3 => 0..12u64, 1 => 0..200u64], 1..300),
        capacity in 1..24usize,
    ) {
        let sieve = &mut PaperSieve { capacity, queue: VecDeque::new(), hand: None };
        agree(ComparedPolicy::FrontFirst(Baseline::Sieve), sieve, &keys, capacity);
        let (small, main, ghosts) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        agree(ComparedPolicy::FrontFirst(Baseline::S3Fifo), &mut PaperS3Fifo { capacity, small, main, ghosts }, &keys, capacity);
        let arc = &mut PaperArc { capacity, ..PaperArc::default() };
        agree(ComparedPolicy::FrontFirst(Baseline::Arc), arc, &keys, capacity);
        agree(ComparedPolicy::FrontFirst(Baseline::Lfu), &mut PaperLfu { capacity, entries: Vec::new(), clock: 0 }, &keys, capacity);
    }
}

/// ATC'25 §5 for one class: the block unused for longest goes, and of one request's blocks the one furthest back.
#[derive(Default)]
struct PaperWorkload {
    /// Last use, block, offset.
    entries: Vec<(u64, std::cmp::Reverse<u32>, u64)>,
}

impl PaperWorkload {
    fn use_block(&mut self, key: u64, offset: u32, at: u64, capacity: usize) {
        self.entries.retain(|(.., other)| *other != key);
        self.entries.push((at, std::cmp::Reverse(offset), key));
        while self.entries.len() > capacity {
            let least = self.entries.iter().min().copied();
            self.entries.retain(|entry| Some(*entry) != least);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Requests as large as the room and larger: their own blocks go for those behind them.
    #[test]
    fn workload_is_that_of_its_paper(
        requests in prop::collection::vec((0..5u64, 1..40u32), 1..40),
        capacity in 1..24usize,
    ) {
        let mut policy = ComparedPolicy::Workload.build::<u64>(capacity as u64);
        let mut published = PaperWorkload::default();
        for (step, (chain, blocks)) in requests.iter().enumerate() {
            for offset in 0..*blocks {
                let key = chain * 1_000 + u64::from(offset);
                let access = Access::new(Moment::from_millis(step as u64), ClassId::OTHER).at(offset, None);
                serve(&mut *policy, key, &access, capacity as u64);
                published.use_block(key, offset, step as u64, capacity);
                let mut resident = published.entries.iter().map(|(.., key)| *key);
                prop_assert!(policy.len() == published.entries.len() && resident.all(|key| policy.contains(&key)));
            }
        }
    }
}

/// By hand: A, B, C come in and are used again; D finds all marked, so the hand clears A, B, C and comes back to A.
/// E finds the hand at B, unmarked. D is used. F takes C. G finds D marked, spares it and takes E.
#[test]
fn sieve_by_hand() {
    let (mut policy, capacity) = (ComparedPolicy::FrontFirst(Baseline::Sieve).build::<u64>(3), 3);
    let [a, b, c, d, e, f, g] = [0, 1, 2, 3, 4, 5, 6u64];
    let requests = [a, b, c, a, b, c, d, e, d, f, g];
    let hits: Vec<bool> = requests
        .iter()
        .enumerate()
        .map(|(step, key)| request(&mut *policy, *key, step as u64, capacity))
        .collect();
    assert_eq!(
        hits,
        [3, 4, 5, 8].iter().fold([false; 11], |mut all, hit| {
            all[*hit] = true;
            all
        })
    );
    assert_eq!(
        (0..7).map(|key| policy.contains(&key)).collect::<Vec<_>>(),
        [false, false, false, true, false, true, true]
    );
}

/// Once all that is there was used, newcomers still come in and take the place of what was there.
#[test]
fn nobody_is_stuck_with_what_was_once_popular() {
    for kind in [
        ComparedPolicy::FrontFirst(Baseline::Sieve),
        ComparedPolicy::FrontFirst(Baseline::S3Fifo),
        ComparedPolicy::FrontFirst(Baseline::Lfu),
        ComparedPolicy::FrontFirst(Baseline::Gdsf),
        ComparedPolicy::FrontFirst(Baseline::Arc),
        ComparedPolicy::FrontFirst(Baseline::LeCar),
        ComparedPolicy::Shipped(PolicyKind::Lru),
    ] {
        let mut policy = kind.build::<u64>(20);
        for (step, key) in (0..20).chain(0..20).chain(0..20).enumerate() {
            request(&mut *policy, key, step as u64, 20);
        }
        request(&mut *policy, 100, 60, 20);
        assert!(policy.contains(&100), "{kind}");
        assert!(request(&mut *policy, 100, 61, 20), "{kind}: used at once");
    }
}
