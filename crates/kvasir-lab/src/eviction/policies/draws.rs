//! Draws that are the same in every run: policies published with random choices stay repeatable.

/// Xorshift (Marsaglia 2003) of a fixed seed.
#[derive(Debug)]
pub(super) struct Draws(u64);

impl Default for Draws {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Draws {
    pub(super) fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Within 0 and 1, without 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `count`, which is not 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.draw() % count as u64) as usize
    }
}
