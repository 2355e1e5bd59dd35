//! Uniform vector-wise quantisation: the paper's "default quantisation" baseline (CacheGen §7.1, after FlexGen).

use half::f16;
use kvasir_codec::KvBuffer;
use kvasir_types::LevelError;

use super::{Chunk, Coded, KvCodec, bits, channels, planes, set_channels};
use crate::BenchError;

/// One scale per token, layer and plane; fixed width; no entropy coding.
#[derive(Debug, Clone, Copy)]
pub struct Uniform {
    name: &'static str,
    width: u32,
}

impl Uniform {
    /// 3, 4 and 8 bits.
    pub const ALL: [Self; 3] = [
        Self { name: "uniform3", width: 3 },
        Self { name: "uniform4", width: 4 },
        Self { name: "uniform8", width: 8 },
    ];

    /// Steps on either side of zero.
    fn steps(self) -> f32 {
        ((1 << (self.width - 1)) - 1) as f32
    }

    fn encode(self, rows: &[f32], width: usize, out: &mut Vec<u8>) {
        for row in rows.chunks_exact(width) {
            let most = row.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scale = f16::from_f32(most / self.steps());
            out.extend_from_slice(&scale.to_le_bytes());
            let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
            let value = |x: &f32| {
                let q = (x * inverse).round_ties_even().clamp(-self.steps(), self.steps());
                (q + self.steps()) as u16
            };
            bits::pack(row.iter().map(value), self.width, out);
        }
    }

    fn decode(self, bytes: &[u8], width: usize, rows: &mut [f32]) {
        let stride = 2 + bits::packed_bytes(width, self.width);
        for (row, bytes) in rows.chunks_exact_mut(width).zip(bytes.chunks_exact(stride)) {
            let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            for (x, q) in row.iter_mut().zip(bits::unpack(&bytes[2..], self.width)) {
                *x = (f32::from(q) - self.steps()) * scale;
            }
        }
    }
}

impl KvCodec for Uniform {
    fn name(&self) -> &'static str {
        self.name
    }

    fn levels(&self) -> usize {
        1
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let mut kv = KvBuffer::new(chunk.spec, chunk.tokens.len());
        let mut total = 0;
        for (layer, plane, width) in planes(chunk.spec) {
            let mut rows = channels(chunk.spec, chunk.kv, layer, plane);
            let mut bytes = Vec::new();
            self.encode(&rows, width, &mut bytes);
            self.decode(&bytes, width, &mut rows);
            set_channels(chunk.spec, &mut kv, layer, plane, &rows);
            total += bytes.len();
        }
        Ok(vec![Coded { bytes: total as u64, error: LevelError::UNKNOWN, kv }])
    }
}
