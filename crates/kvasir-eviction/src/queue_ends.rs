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

/// The worth of one end, and the period for which it holds.
#[derive(Debug, Clone, Copy)]
struct EndWorth {
    /// Last use of the group there.
    last: Moment,
    /// First and last moment of `worth`: ages within one bin are worth the same.
    from: Moment,
    to: Moment,
    worth: f32,
}

impl EndWorth {
    /// Of an empty queue: never the least, and never out of date.
    const NONE: Self = Self {
        last: Moment::from_micros(0),
        from: Moment::from_micros(0),
        to: Moment::from_micros(u64::MAX),
        worth: f32::INFINITY,
    };

    /// An end whose worth must still be computed: it holds at no moment.
    const fn unknown(last: Moment) -> Self {
        Self { last, from: Moment::from_micros(u64::MAX), to: Moment::from_micros(0), worth: 0.0 }
    }

    fn holds(&self, now: Moment) -> bool {
        (self.from..=self.to).contains(&now)
    }

    fn is_none(&self) -> bool {
        self.worth == f32::INFINITY
    }

    fn known(last: Moment, now: Moment, worth: &Worth) -> Self {
        let bin = bin_of(now, last);
        let (from, to) = bin_span(bin, last);
        // Finite, so that it is less than nothing at all.
        Self { last, from, to, worth: worth.at(bin).min(f32::MAX) }
    }
}

/// Both ends of every queue, one cache line per queue, and the last answer while it is valid.
///
/// The worth of an end changes when its age crosses the edge of a bin and when its group changes. A tier
/// evicts many entries at one moment, in sequence from the same few groups; then the last answer still holds.
#[derive(Debug, Default)]
pub(super) struct QueueEnds {
    queues: Vec<[EndWorth; 2]>,
    /// The end with the lowest worth at a moment, until something changes.
    least: Option<(Moment, usize, QueueEnd)>,
}

impl QueueEnds {
    /// One more queue, empty.
    pub(super) fn push(&mut self) {
        self.queues.push([EndWorth::NONE; 2]);
    }

    /// The last uses of a queue's front and back; `None` for an empty one.
    pub(super) fn set(&mut self, queue: usize, lasts: Option<(Moment, Moment)>) {
        let ends = &mut self.queues[queue];
        let Some((front, back)) = lasts else {
            *ends = [EndWorth::NONE; 2];
            self.least = None;
            return;
        };
        for (end, last) in ends.iter_mut().zip([front, back]) {
            if end.is_none() || end.last != last {
                *end = EndWorth::unknown(last);
                self.least = None;
            }
        }
    }

    /// The worths were updated.
    pub(super) fn relearn(&mut self, queue: usize) {
        for end in self.queues[queue].iter_mut().filter(|end| !end.is_none()) {
            *end = EndWorth::unknown(end.last);
        }
        self.least = None;
    }

    /// The end with the lowest worth at `now`; the first of several equal ones. `None` when all queues are
    /// empty.
    pub(super) fn least(&mut self, now: Moment, worths: &[Worth]) -> Option<(usize, QueueEnd)> {
        if let Some((_, queue, end_kind)) = self.least.filter(|(at, ..)| *at == now) {
            return Some((queue, end_kind));
        }
        let (mut least, mut found) = (f32::INFINITY, None);
        for (queue, (ends, worth)) in self.queues.iter_mut().zip(worths).enumerate() {
            for (end, end_kind) in ends.iter_mut().zip([QueueEnd::Front, QueueEnd::Back]) {
                if !end.holds(now) {
                    *end = EndWorth::known(end.last, now, worth);
                }
                if end.worth < least {
                    (least, found) = (end.worth, Some((queue, end_kind)));
                }
            }
        }
        self.least = found.map(|(queue, end_kind)| (now, queue, end_kind));
        found
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
