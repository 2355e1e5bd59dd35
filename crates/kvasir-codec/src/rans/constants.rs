//! Constants of the bitstream and its limits, each with its reason.

use kvasir_types::LEVELS_MAX;

/// Interleaved coders of a stream: one GPU warp, two AVX-512 or four AVX2 registers.
pub const LANES: usize = 32;
/// Bits of a probability. 12 cost 0.0004–0.0007 bit a symbol against real numbers.
pub const PROBABILITY_BITS: u32 = 12;
/// Sum of a table's frequencies.
pub const PROBABILITY_ONE: u32 = 1 << PROBABILITY_BITS;
/// Smallest state after renormalisation; states stay below `2^31`, so signed comparisons work in SIMD.
pub const STATE_MIN: u32 = 1 << 15;
/// Symbols of a stage: `-7..=7`, escape.
pub const ALPHABET: usize = 16;
/// The escape symbol.
pub const ESCAPE: usize = 15;
/// First eight bits of an escape that announce 16 more.
pub(crate) const LONG_ESCAPE: u32 = 254;
/// Largest magnitude that an escape carries: 127 + 16 bits.
pub const ESCAPE_MAX: i32 = 127 + 0xffff;
/// Most stage tables of a bank: 16 KiB, which stays in L1 and in a CTA's shared memory.
pub const STAGE_TABLES_MAX: usize = 128;
/// Most trit tables of a bank (ids are bytes).
pub const TRIT_TABLES_MAX: usize = 256;
/// Most coefficients of a stream: 32 rows × 128 tables fill a shared-memory tile.
pub const STREAM_COEFFICIENTS_MAX: usize = 128;
/// Most words of a stream: their count is a `u16`. 128 × 256 symbols of 12 bits need 24,576.
pub const STREAM_WORDS_MAX: usize = 0xffff;
/// Most coefficients of a piece: the count shares a `u16` with the raw flag.
pub const COEFFICIENTS_MAX: usize = 0x7fff;
/// Most trits after a stage symbol: there are no more levels to pass through.
pub const TRITS_MAX: u8 = LEVELS_MAX as u8 - 1;
/// Largest magnitude of a value that an encoder accepts: exact in an `f32`.
pub const VALUE_MAX: i32 = (1 << 24) - 1;
