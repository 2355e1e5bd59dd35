//! Finds the queue end with the lowest worth, for evictions.

use super::{
    Moment,
    hazard::{Worth, bin_of, bin_span},
};

/// An end of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueEnd {
    /// The least recently used group.
    Front,
    /// The group that was used last.
    Back,
}

/// One end of a queue.
#[derive(Debug, Clone, Copy)]
struct End {
    /// Last use of the group there; `None` for an empty queue.
    last: Option<Moment>,
    /// First and last moment at which its worth holds: ages within one bin are worth the same.
    from: Moment,
    to: Moment,
}

impl End {
    const EMPTY: Self = Self { last: None, from: Moment::from_micros(0), to: LAST_MOMENT };

    fn holds(&self, now: Moment) -> bool {
        (self.from..=self.to).contains(&now)
    }
}

/// The end of time.
const LAST_MOMENT: Moment = Moment::from_micros(u64::MAX);
/// Worth of an end of an empty queue: more than any other.
const EMPTY_WORTH: u32 = u32::MAX;

/// Both ends of every queue, and the last answer while it is valid.
///
/// The worth of an end changes when its age crosses the edge of a bin and when its group changes. A tier
/// evicts many entries at one moment, in sequence from the same few groups; then the last answer still holds, or the
/// least of the known worths is looked for.
#[derive(Debug)]
pub(super) struct QueueEnds {
    /// Worths of front and back, as bits: those of numbers that are not negative are in the order of the numbers.
    worths: Vec<[u32; 2]>,
    ends: Vec<[End; 2]>,
    /// Queues with an end that changed.
    changed: Vec<usize>,
    /// First and last moment at which the worths of all others hold.
    from: Moment,
    to: Moment,
    /// The end with the lowest worth at a moment, until something changes.
    least: Option<(Moment, usize, QueueEnd)>,
}

impl Default for QueueEnds {
    fn default() -> Self {
        Self {
            worths: Vec::new(),
            ends: Vec::new(),
            changed: Vec::new(),
            from: Moment::from_micros(0),
            to: LAST_MOMENT,
            least: None,
        }
    }
}

impl QueueEnds {
    /// One more queue, empty.
    pub(super) fn push(&mut self) {
        self.worths.push([EMPTY_WORTH; 2]);
        self.ends.push([End::EMPTY; 2]);
    }

    /// The last uses of a queue's front and back; `None` for an empty one.
    pub(super) fn set(&mut self, queue: usize, lasts: Option<(Moment, Moment)>) {
        let lasts = lasts.map_or([None; 2], |(front, back)| [Some(front), Some(back)]);
        let ends = &mut self.ends[queue];
        if ends.each_ref().map(|end| end.last) != lasts {
            ends.iter_mut().zip(lasts).for_each(|(end, last)| end.last = last);
            self.note_change(queue);
        }
    }

    /// The worths were updated.
    pub(super) fn relearn(&mut self, queue: usize) {
        self.note_change(queue);
    }

    fn note_change(&mut self, queue: usize) {
        self.least = None;
        // Neither end holds at any moment.
        self.ends[queue]
            .iter_mut()
            .for_each(|end| (end.from, end.to) = (LAST_MOMENT, Moment::from_micros(0)));
        if self.changed.len() < self.ends.len() {
            self.changed.push(queue);
        } else {
            // All are looked at anyway.
            (self.from, self.to) = (LAST_MOMENT, Moment::from_micros(0));
        }
    }

    /// The end with the lowest worth at `now`; the first of several equal ones. `None` when all queues are
    /// empty.
    pub(super) fn least(&mut self, now: Moment, worths: &[Worth]) -> Option<(usize, QueueEnd)> {
        if let Some((_, queue, end_kind)) = self.least.filter(|(at, ..)| *at == now) {
            return Some((queue, end_kind));
        }
        if (self.from..=self.to).contains(&now) {
            while let Some(queue) = self.changed.pop() {
                self.update(queue, now, &worths[queue]);
            }
        } else {
            self.changed.clear();
            (self.from, self.to) = (Moment::from_micros(0), LAST_MOMENT);
            for (queue, worth) in worths.iter().enumerate() {
                self.update(queue, now, worth);
            }
        }
        let flat = self.worths.as_flattened();
        let least = flat.iter().copied().min().filter(|worth| *worth != EMPTY_WORTH)?;
        let place = flat.iter().position(|worth| *worth == least)?;
        let found = (place / 2, if place % 2 == 0 { QueueEnd::Front } else { QueueEnd::Back });
        self.least = Some((now, found.0, found.1));
        Some(found)
    }

    /// Brings the worths of a queue's ends up to `now`.
    fn update(&mut self, queue: usize, now: Moment, worth: &Worth) {
        for (end, known) in self.ends[queue].iter_mut().zip(&mut self.worths[queue]) {
            if !end.holds(now) {
                if let Some(last) = end.last {
                    let bin = bin_of(now, last);
                    (end.from, end.to) = bin_span(bin, last);
                    *known = worth.at(bin).to_bits();
                } else {
                    *end = End::EMPTY;
                    *known = EMPTY_WORTH;
                }
            }
            self.from = self.from.max(end.from);
            self.to = self.to.min(end.to);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hazard::{Hazards, LifeTable};

    #[derive(Debug, Clone)]
    enum Op {
        Set(usize, Option<(u64, u64)>),
        Relearn(usize, usize),
        Clock(u64),
        Tick(u64),
        Ask,
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let lasts = prop::option::of((0..1u64 << 34, 0..1u64 << 34));
        let op = prop_oneof![
            6 => (0..6usize, lasts).prop_map(|(queue, lasts)| Op::Set(queue, lasts)),
            1 => (0..6usize, 0..49usize).prop_map(|(queue, bin)| Op::Relearn(queue, bin)),
            1 => prop_oneof![Just(0), Just(u64::MAX), 0..1u64 << 35].prop_map(Op::Clock),
            4 => prop_oneof![0..100_000u64, 0..1u64 << 30].prop_map(Op::Tick),
            8 => Just(Op::Ask),
        ];
        prop::collection::vec(op, 0..120)
    }

    proptest! {
        /// The remembered answer equals that of a walk over everything.
        #[test]
        fn the_least_is_that_of_a_walk(ops in ops()) {
            let (mut ends, mut lasts, mut now) = (QueueEnds::default(), vec![None; 6], 0u64);
            let mut worths = vec![Worth::of(&Hazards::PRIOR); 6];
            (0..6).for_each(|_| ends.push());
            for op in ops {
                match op {
                    Op::Set(queue, of) => {
                        lasts[queue] = of.map(|(a, b)| (Moment::from_micros(a), Moment::from_micros(b)));
                        ends.set(queue, lasts[queue]);
                    }
                    Op::Relearn(queue, bin) => {
                        let mut table = LifeTable::default();
                        (0..1_000).for_each(|_| table.note_reuse(bin));
                        worths[queue] = Worth::of(&table.hazards(&Hazards::PRIOR));
                        ends.relearn(queue);
                    }
                    Op::Clock(micros) => now = micros,
                    Op::Tick(micros) => now = now.saturating_add(micros),
                    Op::Ask => {
                        let at = Moment::from_micros(now);
                        let mut walk: Option<(f32, (usize, QueueEnd))> = None;
                        for (queue, of) in lasts.iter().enumerate() {
                            let Some((front, back)) = of else { continue };
                            for (last, end_kind) in [(front, QueueEnd::Front), (back, QueueEnd::Back)] {
                                let worth = worths[queue].at(bin_of(at, *last));
                                if walk.is_none_or(|(least, _)| worth < least) {
                                    walk = Some((worth, (queue, end_kind)));
                                }
                            }
                        }
                        prop_assert_eq!(ends.least(at, &worths), walk.map(|(_, end)| end));
                    }
                }
            }
        }
    }
}
