//! From observed reuse times to the worth of waiting for a reuse.
//!
//! Ages fall into bins, two an octave, so that a distribution of any scale is seen with the same relative
//! resolution. Per bin, the *hazard* is the share of those that reach it which are reused within it. It is
//! estimated as life tables are (Kaplan and Meier 1958): what is still waiting counts as at risk up to its
//! present age, so neither a young cache nor a long tail biases it.

use super::Moment;

/// Bins of age: below 2^16 µs, then two an octave up to 2^40 µs (13 days).
pub(super) const BINS: usize = 49;
/// log2 of the first edge in microseconds: reuse within 66 ms is all the same to a cache.
const FIRST_EDGE_LOG2: u32 = 16;
/// Observations' worth by which a class leans on the coarser class it is part of. Blocks of one request are reused
/// together, tens of them in chats: this is the evidence of some ten requests, not of 256.
const LEAN_OBSERVATIONS: f64 = 256.0;
/// Least horizon of a worth. Blocks of one request are reused together, so a narrow bin has the evidence of a few
/// requests, and the best of many short horizons is the luckiest one.
const HORIZON_SECONDS_MIN: f64 = 30.0;

/// The bin of an age.
pub(super) fn bin_of(now: Moment, since: Moment) -> usize {
    let micros = now.as_micros().saturating_sub(since.as_micros());
    let log2 = micros.max(1).ilog2();
    if log2 < FIRST_EDGE_LOG2 {
        return 0;
    }
    let upper_half = (micros >> (log2 - 1)) & 1;
    (1 + 2 * (log2 - FIRST_EDGE_LOG2) as usize + upper_half as usize).min(BINS - 1)
}

/// Lower edge of a bin in microseconds.
const fn edge_micros(bin: usize) -> u64 {
    match bin.checked_sub(1) {
        None => 0,
        Some(half) => {
            let octave = 1u64 << (FIRST_EDGE_LOG2 as usize + half / 2);
            if half % 2 == 1 { octave + octave / 2 } else { octave }
        }
    }
}

/// Lower edge of a bin in seconds.
fn edge_seconds(bin: usize) -> f64 {
    edge_micros(bin) as f64 * 1e-6
}

/// The first and the last moment at which an entry used at `since` has an age within `bin`.
pub(super) fn bin_span(bin: usize, since: Moment) -> (Moment, Moment) {
    let at = |age: u64| Moment::from_micros(since.as_micros().saturating_add(age));
    // If the clock went back, every entry is young; ages above the last edge are in the last bin.
    let from = if bin == 0 { Moment::default() } else { at(edge_micros(bin)) };
    let to = if bin + 1 >= BINS { Moment::from_micros(u64::MAX) } else { at(edge_micros(bin + 1) - 1) };
    (from, to)
}

/// Probability of reuse within each bin, for entries that reach the bin.
#[derive(Debug, Clone)]
pub(super) struct Hazards([f64; BINS]);

impl Hazards {
    /// Before any observation: equal in every bin. It has no time scale and makes the worth fall with age, so
    /// the policy starts as LRU. Bin 0 spans twice its neighbour.
    pub(super) const PRIOR: Self = {
        let mut hazards = [0.05; BINS];
        hazards[0] = 0.1;
        Self(hazards)
    };
}

/// Observed reuses and pending waits by age.
#[derive(Debug, Clone)]
pub(super) struct LifeTable {
    reused: [f64; BINS],
    waiting: [f64; BINS],
}

impl Default for LifeTable {
    fn default() -> Self {
        Self { reused: [0.0; BINS], waiting: [0.0; BINS] }
    }
}

impl LifeTable {
    /// Notes a reuse after a wait in `bin`.
    pub(super) fn note_reuse(&mut self, bin: usize) {
        self.reused[bin] += 1.0;
    }

    /// Notes that something has been waiting up to `bin`, until the next [`forget`](Self::forget).
    pub(super) fn note_waiting(&mut self, bin: usize) {
        self.waiting[bin] += 1.0;
    }

    /// Keeps a share of the reuses and none of the waits.
    pub(super) fn forget(&mut self, keep: f64) {
        self.reused.iter_mut().for_each(|count| *count *= keep);
        self.waiting = [0.0; BINS];
    }

    /// Adds another table's observations.
    pub(super) fn add(&mut self, other: &Self) {
        for bin in 0..BINS {
            self.reused[bin] += other.reused[bin];
            self.waiting[bin] += other.waiting[bin];
        }
    }

    /// The hazards, leaning on `coarser` if there are few observations.
    pub(super) fn hazards(&self, coarser: &Hazards) -> Hazards {
        let mut hazards = Hazards::PRIOR;
        let mut at_risk = 0.0;
        for bin in (0..BINS).rev() {
            at_risk += self.reused[bin] + self.waiting[bin];
            // An entry that waits within the bin has been at risk for half of it on average.
            let exposed = at_risk - self.waiting[bin] / 2.0;
            let reused = self.reused[bin] + LEAN_OBSERVATIONS * coarser.0[bin];
            hazards.0[bin] = (reused / (exposed + LEAN_OBSERVATIONS)).clamp(0.0, 1.0);
        }
        hazards
    }
}

/// The Gittins index by age: the best ratio, over horizons from [`HORIZON_SECONDS_MIN`], of the probability of reuse
/// within the horizon to the expected time that the entry occupies its place until then (Gittins 1979; Aalto et al. 2009
/// for ages).
#[derive(Debug, Clone)]
pub(super) struct Worth([f32; BINS]);

impl Worth {
    pub(super) fn of(hazards: &Hazards) -> Self {
        let mut worth = [0.0; BINS];
        for (age, slot) in worth.iter_mut().enumerate() {
            let (mut alive, mut gain, mut seconds, mut best) = (1.0, 0.0, 0.0, 0.0f64);
            for bin in age..BINS {
                let hazard = hazards.0[bin];
                let width = edge_seconds(bin + 1) - edge_seconds(bin);
                gain += alive * hazard;
                seconds += alive * width * (1.0 - hazard / 2.0);
                alive *= 1.0 - hazard;
                if edge_seconds(bin + 1) >= edge_seconds(age) + HORIZON_SECONDS_MIN || bin + 1 == BINS {
                    best = best.max(gain / seconds);
                }
            }
            *slot = best as f32;
        }
        Self(worth)
    }

    /// The same worth in units of the gain of a reuse.
    pub(super) fn scaled(mut self, gain: f32) -> Self {
        self.0.iter_mut().for_each(|worth| *worth *= gain);
        self
    }

    /// Expected reuses per second of occupancy for something of the age `bin`.
    pub(super) fn at(&self, bin: usize) -> f32 {
        self.0[bin]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_cover_every_age_in_order() {
        let at = |micros| bin_of(Moment::from_micros(micros), Moment::default());
        assert_eq!((at(0), at(65_535), at(65_536), at(98_303), at(98_304)), (0, 0, 1, 1, 2));
        assert_eq!(at(u64::MAX), BINS - 1);
        for bin in 1..BINS {
            assert_eq!((at(edge_micros(bin)), at(edge_micros(bin) - 1)), (bin, bin - 1));
        }
        assert_eq!(bin_of(Moment::from_millis(1), Moment::from_millis(9)), 0, "a clock that went back");
    }

    #[test]
    fn the_prior_is_lru() {
        let worth = Worth::of(&Hazards::PRIOR);
        assert!((2..BINS).all(|bin| worth.at(bin) <= worth.at(bin - 1)), "{worth:?}");
        assert!((4..BINS).all(|bin| worth.at(bin) < worth.at(bin - 3)));
    }

    #[test]
    fn waiting_for_a_known_reuse_is_worth_more_the_closer_it_is() {
        let mut table = LifeTable::default();
        (0..100_000).for_each(|_| table.note_reuse(20));
        let worth = Worth::of(&table.hazards(&Hazards::PRIOR));
        assert!(worth.at(20) > worth.at(19) && worth.at(19) > worth.at(15), "{worth:?}");
        assert!(worth.at(21) < worth.at(20) / 10.0, "once it is overdue, little is left");
    }

    #[test]
    fn hazards_count_what_still_waits() {
        let mut table = LifeTable::default();
        (0..100_000).for_each(|_| table.note_reuse(10));
        (0..300_000).for_each(|_| table.note_waiting(30));
        let hazards = table.hazards(&Hazards::PRIOR);
        assert!((hazards.0[10] - 0.25).abs() < 0.01, "{}", hazards.0[10]);
        assert!(hazards.0[12] < 0.001);
    }
}
