//! Deterministic numbers.

/// Numbers from a seed.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }

    /// True in this many of a thousand cases.
    pub fn chance(&mut self, per_mille: usize) -> bool {
        self.below(1_000) < per_mille
    }
}
