//! Reproducible random numbers.
#![allow(dead_code, unreachable_pub, reason = "every test uses its own part")]

pub const VOCABULARY: u32 = 40;

/// A reproducible stream of numbers in −1/2 … 1/2.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1))
    }

    pub fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    }

    /// Roughly Gaussian of variance 1.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum()
    }

    pub fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| ((self.uniform() + 0.5) * VOCABULARY as f32) as u32 % VOCABULARY).collect()
    }
}
