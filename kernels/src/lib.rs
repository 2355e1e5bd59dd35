//! CUDA sources of the Kvasir codec, and the records and constants they share with the host.

#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

#[macro_use]
mod records;
mod encode_records;
mod header;
mod kernel;

pub use encode_records::*;
pub use header::{c_structs, format_header};
pub use kernel::{KERNELS, Kernel, SOURCES, translation_unit, translation_unit_with};
pub use records::*;

/// No index, no offset.
pub const NONE: u32 = u32::MAX;
/// Coding word of a coefficient that a level does not touch.
pub const CODING_NONE: u32 = 0;
/// Coding word of a stage: kind, trits at bit 4, stage table at bit 8, trit table at bit 16.
pub const CODING_STAGE: u32 = 1;
/// Coding word of a trit: kind, trit table at bit 16.
pub const CODING_TRIT: u32 = 2;
/// The task refines values that scratch holds.
pub const TASK_REFINES: u32 = 1;
/// The task is a raw piece.
pub const TASK_RAW: u32 = 2;
/// The stream ended as it should. 0 means that no kernel came by, which is an error too.
pub const STATUS_OK: u32 = 1;
/// A state out of range at the start.
pub const STATUS_STATE: u32 = 2;
/// A word behind the last one was needed.
pub const STATUS_UNDERRUN: u32 = 3;
/// The end is not where the encoder began.
pub const STATUS_FINAL: u32 = 4;
/// A raw digit out of range.
pub const STATUS_DIGIT: u32 = 5;
/// Encoder: a value is not finite or out of range.
pub const STATUS_RANGE: u32 = 6;
/// Encoder: the tables cannot express a value.
pub const STATUS_UNCODABLE: u32 = 7;
/// Encoder: a stream's words or a piece's bytes do not fit the room that was set aside.
pub const STATUS_SPACE: u32 = 8;
/// Encoder: the piece is stored raw.
pub const STATUS_RAW: u32 = 9;
/// Raw bits of an exact level that tell no pattern, or that are too few or too many.
pub const STATUS_PATTERN: u32 = 10;
/// What a gather makes of rows: finest steps in f32.
pub const GATHER_STEPS: u32 = 0;
/// What a gather makes of rows: quantised values.
pub const GATHER_INTEGERS: u32 = 1;
/// What a gather makes of rows: nothing else.
pub const GATHER_ROWS: u32 = 2;
/// Bit of [`Symbol::shift`]: the symbol has no frequency of its own and is coded by the escape.
pub const SYMBOL_ESCAPE: u32 = 0x100;
/// Marks a raw piece in its first field.
pub const RAW_FLAG: u32 = 0x8000;
/// Coefficients and tokens of a CTA that multiplies by an analysis matrix.
pub const ANALYSIS_TILE: u32 = 64;
/// Elements of a step of it.
pub const ANALYSIS_DEPTH: u32 = 16;
/// Threads of a CTA that decodes to scratch: 8 warps share a bank of at most 18 KiB.
pub const DECODE_THREADS: u32 = 256;
/// Threads of a CTA with tiles: 4 warps of 17 KiB.
pub const TILE_THREADS: u32 = 128;
/// Threads of a CTA that multiplies: 8 warps of 32 tokens by 64 elements.
pub const PRODUCT_THREADS: u32 = 256;
/// Tokens of a product's block.
pub const PRODUCT_TOKENS: u32 = 128;
/// Elements of a product's block.
pub const PRODUCT_ELEMENTS: u32 = 128;
/// Ranks are padded to a multiple of this.
pub const PRODUCT_DEPTH: u32 = 32;
/// Floats from one coefficient of a tile to the next.
pub const TILE_STRIDE: u32 = 33;

/// Types of values in pages and exact pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Dtype {
    /// IEEE single.
    F32 = 0,
    /// IEEE half.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// FP8, 4 exponent bits, saturating.
    Fp8E4m3 = 3,
}

impl Dtype {
    /// Bytes of a value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8E4m3 => 1,
        }
    }
}
