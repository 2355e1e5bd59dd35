//! Choosing a decoder at run time.

use super::StreamCell;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
use super::aarch64::Neon;
#[cfg(target_arch = "x86_64")]
use super::x86_64::{Avx2, Avx512};
use crate::rans::{
    LevelRows, RowBits,
    bank::TableBank,
    stream::{
        StreamFault, StreamJob,
        cell::Fit,
        decode::decode_stream,
        encode::{BlockJob, EncodedStream, ReverseWords, Uncodable},
    },
};

/// A decoder of streams that this CPU can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamDecoder(StreamPath);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamPath {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon(Neon),
}

impl StreamDecoder {
    /// The fastest.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let wide = Avx512::new().map(StreamPath::Avx512);
            if let Some(path) = wide.or_else(|| Avx2::new().map(StreamPath::Avx2)) {
                return Self(path);
            }
        }
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        if let Some(cpu) = Neon::new() {
            return Self(StreamPath::Neon(cpu));
        }
        Self::scalar()
    }

    /// The portable one.
    pub(crate) fn scalar() -> Self {
        Self(StreamPath::Scalar)
    }

    /// All, slowest first.
    pub(crate) fn available() -> Vec<Self> {
        let mut paths = vec![Some(StreamPath::Scalar)];
        #[cfg(target_arch = "x86_64")]
        paths.extend([Avx2::new().map(StreamPath::Avx2), Avx512::new().map(StreamPath::Avx512)]);
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        paths.push(Neon::new().map(StreamPath::Neon));
        paths.into_iter().flatten().map(Self).collect()
    }

    /// For reports.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            StreamPath::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            StreamPath::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            StreamPath::Avx512(_) => "avx512",
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            StreamPath::Neon(_) => "neon",
        }
    }

    /// Number of streams to decode in parallel for the best speed.
    pub(crate) fn streams(self) -> usize {
        match self.0 {
            StreamPath::Scalar => 1,
            #[cfg(target_arch = "x86_64")]
            StreamPath::Avx2(_) => Avx2::STREAMS,
            #[cfg(target_arch = "x86_64")]
            StreamPath::Avx512(_) => Avx512::STREAMS,
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            StreamPath::Neon(_) => Neon::STREAMS,
        }
    }

    /// Decodes at most [`streams`](Self::streams) streams of one piece, in lockstep if that is faster.
    pub(crate) fn decode<V: StreamCell>(
        self,
        bank: &TableBank,
        tokens: usize,
        jobs: Vec<StreamJob<'_, V>>,
    ) -> Vec<Result<Fit, StreamFault>> {
        match self.0 {
            StreamPath::Scalar => jobs.into_iter().map(|job| decode_stream(bank, tokens, job)).collect(),
            #[cfg(target_arch = "x86_64")]
            StreamPath::Avx2(cpu) => match <[_; Avx2::STREAMS]>::try_from(jobs) {
                Ok(jobs) => cpu.decode(bank, tokens, jobs).into(),
                Err(few) => few.into_iter().flat_map(|job| cpu.decode(bank, tokens, [job])).collect(),
            },
            #[cfg(target_arch = "x86_64")]
            StreamPath::Avx512(cpu) => match <[_; Avx512::STREAMS]>::try_from(jobs) {
                Ok(jobs) => cpu.decode(bank, tokens, jobs).into(),
                Err(few) => few.into_iter().flat_map(|job| cpu.decode(bank, tokens, [job])).collect(),
            },
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            StreamPath::Neon(cpu) => {
                jobs.into_iter().flat_map(|job| cpu.decode(bank, tokens, [job])).collect()
            }
        }
    }
}

/// An encoder of streams that this CPU can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamEncoder(EncoderPath);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EncoderPath {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl StreamEncoder {
    /// The fastest.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(cpu) = Avx512::new() {
            return Self(EncoderPath::Avx512(cpu));
        }
        Self::scalar()
    }

    /// The portable one.
    pub(crate) fn scalar() -> Self {
        Self(EncoderPath::Scalar)
    }

    /// All, slowest first.
    pub(crate) fn available() -> Vec<Self> {
        let (scalar, best) = (Self::scalar(), Self::best());
        if best == scalar { vec![scalar] } else { vec![scalar, best] }
    }

    /// For reports.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            EncoderPath::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            EncoderPath::Avx512(_) => "avx512",
        }
    }

    /// Writes a coefficient's row, as [`LevelRows::write`].
    pub(crate) fn row(
        self,
        rows: &LevelRows<'_>,
        coefficient: usize,
        refines: bool,
        out: &mut [i32],
    ) -> RowBits {
        match self.0 {
            EncoderPath::Scalar => rows.write(coefficient, refines, out),
            #[cfg(target_arch = "x86_64")]
            EncoderPath::Avx512(cpu) => cpu.row(rows, coefficient, refines, out),
        }
    }

    /// Whether [`encode_blocks`](Self::encode_blocks) is available.
    pub(crate) fn takes_blocks(self) -> bool {
        self != Self::scalar()
    }

    /// Encodes one stream, or two alternately, from blocks; `None` if that is no faster than from rows.
    pub(crate) fn encode_blocks(
        self,
        jobs: &[BlockJob<'_>],
        words: &mut [ReverseWords; ENCODED_AT_ONCE],
    ) -> Option<Result<Vec<EncodedStream>, Uncodable>> {
        match (self.0, jobs) {
            #[cfg(target_arch = "x86_64")]
            (EncoderPath::Avx512(cpu), [one, rest @ ..]) if rest.len() < ENCODED_AT_ONCE => {
                let nothing = BlockJob { codings: &[], rows: &[], ..*one };
                let beside = rest.first().copied().unwrap_or(nothing);
                let streams = cpu.encode([*one, beside], words);
                Some(streams.map(|streams| streams.into_iter().take(jobs.len()).collect()))
            }
            _ => {
                let _ = words;
                None
            }
        }
    }
}

/// Streams that an encoder processes together.
pub(crate) const ENCODED_AT_ONCE: usize = 2;
