//! The cache in 16 bits, unchanged and through general-purpose compressors; and no cache at all.

use half::{bf16, f16};
use kvasir_codec::KvBuffer;
use kvasir_types::{KvDtype, LevelError};

use super::{Chunk, Coded, KvCodec};
use crate::BenchError;

/// How 16-bit values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// As they are.
    Raw,
    /// Through zstd, level 19.
    Zstd,
    /// Low bytes, then high bytes, through zstd, level 19.
    SplitZstd,
}

/// `raw16` and two lossless baselines.
#[derive(Debug, Clone, Copy)]
pub struct Plain(pub Storage);

const ZSTD_LEVEL: i32 = 19;

fn to_bits(dtype: KvDtype, value: f32) -> u16 {
    match dtype {
        KvDtype::Bf16 => bf16::from_f32(value).to_bits(),
        _ => f16::from_f32(value).to_bits(),
    }
}

fn from_bits(dtype: KvDtype, bits: u16) -> f32 {
    match dtype {
        KvDtype::Bf16 => bf16::from_bits(bits).to_f32(),
        _ => f16::from_bits(bits).to_f32(),
    }
}

/// A value as a 16-bit cache holds it.
pub(super) fn rounded(dtype: KvDtype, value: f32) -> f32 {
    from_bits(dtype, to_bits(dtype, value))
}

impl KvCodec for Plain {
    fn name(&self) -> &'static str {
        match self.0 {
            Storage::Raw => "raw16",
            Storage::Zstd => "zstd19",
            Storage::SplitZstd => "zstd19_split",
        }
    }

    fn levels(&self) -> usize {
        1
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let dtype = chunk.spec.kv_dtype;
        let bits = chunk.kv.as_slice().iter().map(|value| to_bits(dtype, *value));
        let plain: Vec<u8> = match self.0 {
            Storage::Raw | Storage::Zstd => bits.flat_map(u16::to_le_bytes).collect(),
            Storage::SplitZstd => bits.clone().map(|b| b as u8).chain(bits.map(|b| (b >> 8) as u8)).collect(),
        };
        let stored = match self.0 {
            Storage::Raw => plain,
            Storage::Zstd | Storage::SplitZstd => zstd::bulk::compress(&plain, ZSTD_LEVEL)?,
        };
        let mut kv = KvBuffer::new(chunk.spec, chunk.tokens.len());
        let count = kv.as_slice().len();
        let back = match self.0 {
            Storage::Raw => stored.clone(),
            Storage::Zstd | Storage::SplitZstd => zstd::bulk::decompress(&stored, 2 * count)?,
        };
        for (index, value) in kv.as_mut_slice().iter_mut().enumerate() {
            let bytes = match self.0 {
                Storage::Raw | Storage::Zstd => [back[2 * index], back[2 * index + 1]],
                Storage::SplitZstd => [back[index], back[count + index]],
            };
            *value = from_bits(dtype, u16::from_le_bytes(bytes));
        }
        Ok(vec![Coded { bytes: stored.len() as u64, error: LevelError::UNKNOWN, kv }])
    }
}

/// `zeros`: nothing is stored, and the reader gets zeros. The loss is the value of the prefix.
#[derive(Debug, Clone, Copy)]
pub struct Zeros;

impl KvCodec for Zeros {
    fn name(&self) -> &'static str {
        "zeros"
    }

    fn levels(&self) -> usize {
        1
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let kv = KvBuffer::new(chunk.spec, chunk.tokens.len());
        Ok(vec![Coded { bytes: 0, error: LevelError::UNKNOWN, kv }])
    }
}
