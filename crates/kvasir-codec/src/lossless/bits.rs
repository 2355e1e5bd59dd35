//! A run of integers of varying width, least significant bit first.

/// Writes them.
#[derive(Debug, Default)]
pub(super) struct BitWriter {
    bytes: Vec<u8>,
    held: u64,
    filled: u32,
}

impl BitWriter {
    /// Appends the low `width` (at most 32) bits of a value.
    pub(super) fn push(&mut self, value: u32, width: u32) {
        self.held |= u64::from(value) << self.filled;
        self.filled += width;
        if self.filled >= 32 {
            self.bytes.extend((self.held as u32).to_le_bytes());
            self.held >>= 32;
            self.filled -= 32;
        }
    }

    /// All bytes, the last one filled with zeros.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let held = self.held.to_le_bytes();
        self.bytes.extend(&held[..self.filled.div_ceil(8) as usize]);
        self.bytes
    }
}

/// Reads them.
#[derive(Debug)]
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    held: u64,
    filled: u32,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, held: 0, filled: 0 }
    }

    /// The next `width` (at most 32) bits; `None` if there are fewer.
    pub(super) fn take(&mut self, width: u32) -> Option<u32> {
        while self.filled < width {
            let (byte, rest) = self.bytes.split_first()?;
            self.held |= u64::from(*byte) << self.filled;
            self.filled += 8;
            self.bytes = rest;
        }
        let value = self.held & ((1u64 << width) - 1);
        self.held >>= width;
        self.filled -= width;
        Some(value as u32)
    }

    /// Whether only the padding of the last byte is left, and is zero.
    pub(super) fn is_at_end(&self) -> bool {
        self.bytes.is_empty() && self.filled < 8 && self.held == 0
    }
}
