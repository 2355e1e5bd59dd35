//! Tables of elements that are spread like a logistic distribution: about as peaked as KV is, with tails for text that the sample
//! did not have.

use std::collections::BTreeMap;

use kvasir_types::LEVELS_MAX;

use crate::{
    profile::CoefficientCoding,
    rans::{ALPHABET, AliasTable, ESCAPE, TRITS_MAX, TableBank, TritTable, coarsen, digit},
};

/// Widest stage, in its steps: 16 symbols hold it, with few escapes if text is twice as wide.
const STAGE_WIDTH_MAX: f64 = 1.65;
/// Ratio of the widths of neighbouring tables: half of it costs less than 0.01 bit.
const WIDTH_RATIO: f64 = 1.15;
/// Narrowest table, in steps: below it nearly all values are zero.
const WIDTH_MIN: f64 = 0.05;
/// Refinements after which the digits of a wide distribution are equally likely.
const REFINEMENTS_MAX: u32 = 5;
/// Counts of a table add up to about this.
const COUNTS: f64 = (1u64 << 32) as f64;

/// Spread of a logistic distribution of unit standard deviation: √3 / π.
const SPREAD: f64 = 0.551_328_895_421_792_1;

/// The tables made so far. Each serves a width of the stage, in its own steps.
pub(super) struct Tables {
    levels: usize,
    stage: Vec<AliasTable>,
    shifts: Vec<[u8; LEVELS_MAX]>,
    trit: Vec<TritTable>,
    stage_ids: BTreeMap<i32, u8>,
    /// By width and refinement.
    trit_ids: BTreeMap<(i32, u32), u8>,
}

impl Tables {
    pub(super) fn new(levels: usize) -> Self {
        Self {
            levels,
            stage: Vec::new(),
            shifts: Vec::new(),
            trit: Vec::new(),
            stage_ids: BTreeMap::new(),
            trit_ids: BTreeMap::new(),
        }
    }

    /// The coding of an element of this width: its standard deviation in finest steps.
    pub(super) fn coding(&mut self, width: f64) -> CoefficientCoding {
        let levels = self.levels as i32 - 1;
        // All enter at level 0: an element that entered later would lose everything below that on text in
        // which it is wider.
        let inner = (width / 3f64.powi(levels) / STAGE_WIDTH_MAX).ln() / 3f64.ln();
        let inner = inner.ceil().clamp(0.0, f64::from(TRITS_MAX)) as u32;
        let class = class_of(width / 3f64.powi(levels + inner as i32));
        let mut coding = CoefficientCoding {
            entry: -(inner as i8),
            stage: self.stage(class),
            ..CoefficientCoding::ABSENT
        };
        if inner > 0 {
            coding.inner = self.trit(class, 1);
        }
        for level in 1..self.levels {
            coding.trits[level] = self.trit(class, inner + level as u32);
        }
        coding
    }

    fn stage(&mut self, class: i32) -> u8 {
        if let Some(id) = self.stage_ids.get(&class) {
            return *id;
        }
        let width = width_of(class);
        let mut counts = [0; ALPHABET];
        for (index, count) in counts.iter_mut().enumerate().take(ESCAPE) {
            *count = (COUNTS * probability(index as i32 - (ESCAPE as i32 / 2), width)) as u64;
        }
        let mut shifts = [0; LEVELS_MAX];
        for (depth, shift) in shifts.iter_mut().enumerate() {
            *shift = centroid_shift(width * 3f64.powi(depth as i32));
        }
        let id = self.stage.len() as u8; // classes are few: see the test
        self.stage.push(AliasTable::from_counts(&counts));
        self.shifts.push(shifts);
        self.stage_ids.insert(class, id);
        id
    }

    /// The table of the `refinement`-th trit after the stage, from 1.
    fn trit(&mut self, class: i32, refinement: u32) -> u8 {
        let refinement = refinement.min(REFINEMENTS_MAX);
        if let Some(id) = self.trit_ids.get(&(class, refinement)) {
            return *id;
        }
        let fine = width_of(class) * 3f64.powi(refinement as i32);
        let mut shares = [[0f64; 3]; 2];
        let reach = (8.0 * fine) as i32 + 2;
        for value in -reach..=reach {
            let (coarse, digit) = (coarsen(value), digit(value));
            let folded = if coarse < 0 { -digit } else { digit };
            shares[usize::from(coarse != 0)][(folded + 1) as usize] += probability(value, fine);
        }
        let id = self.trit.len() as u8;
        self.trit.push(TritTable::from_counts(&shares.map(|row| row.map(|share| (COUNTS * share) as u64))));
        self.trit_ids.insert((class, refinement), id);
        id
    }

    pub(super) fn finish(self) -> (TableBank, Vec<[u8; LEVELS_MAX]>) {
        let bank = TableBank::new(self.stage, self.trit).expect("fewer classes than a bank holds tables");
        (bank, self.shifts)
    }
}

fn class_of(width: f64) -> i32 {
    (width.clamp(WIDTH_MIN, STAGE_WIDTH_MAX).ln() / WIDTH_RATIO.ln()).round() as i32
}

fn width_of(class: i32) -> f64 {
    WIDTH_RATIO.powi(class)
}

/// Share of values below `x` with the standard deviation `width`.
fn below(x: f64, width: f64) -> f64 {
    1.0 / (1.0 + (-x / (SPREAD * width)).exp())
}

/// Share of values that are rounded to `value`.
fn probability(value: i32, width: f64) -> f64 {
    // From the tail's side, without cancellation.
    let at = -f64::from(value.abs());
    below(at + 0.5, width) - below(at - 0.5, width)
}

/// Average distance, in 256ths of a step, by which values are nearer to zero than the middles of their cells.
fn centroid_shift(width: f64) -> u8 {
    let spread = SPREAD * width;
    let outside = 1.0 - below(0.5, width);
    // Σ_{q ≥ 1} q P(q) = Σ_{q ≥ 1} P(x > q − ½), less ∫ x f(x) from ½ on.
    let middles: f64 = (1..=(40.0 * width) as i32 + 2).map(|q| below(0.5 - f64::from(q), width)).sum();
    let values = 0.5 * outside + spread * (-0.5 / spread).exp().ln_1p();
    let shift = 256.0 * (middles - values) / outside.max(f64::MIN_POSITIVE);
    shift.round().clamp(0.0, 127.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rans::{STAGE_TABLES_MAX, TRIT_TABLES_MAX};

    #[test]
    fn every_width_has_a_coding_and_tables_are_few() {
        let mut tables = Tables::new(3);
        for step in -400..400 {
            let coding = tables.coding(1.1f64.powi(step));
            assert!((-7..=0).contains(&coding.entry), "{coding:?}");
        }
        for width in [0.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY, f64::NAN] {
            assert_ne!(tables.coding(width).entry, CoefficientCoding::NEVER);
        }
        assert!(tables.stage.len() < STAGE_TABLES_MAX / 2, "{}", tables.stage.len());
        assert!(tables.trit.len() < TRIT_TABLES_MAX, "{}", tables.trit.len());
        assert_eq!(tables.shifts.len(), tables.stage.len());
    }

    #[test]
    fn shares_add_up_and_shifts_shrink_with_the_step() {
        for width in [0.1, 0.6, 1.5, 20.0] {
            let sum: f64 = (-4000..=4000).map(|value| probability(value, width)).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{width}: {sum}");
        }
        let shifts: Vec<u8> = [0.3, 1.0, 3.0, 30.0].into_iter().map(centroid_shift).collect();
        assert!(shifts.is_sorted_by(|a, b| a > b), "{shifts:?}");
        assert!(shifts[0] > 20 && shifts[3] < 3, "{shifts:?}");
    }
}
