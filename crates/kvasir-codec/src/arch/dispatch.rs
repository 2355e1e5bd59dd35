//! Choosing a decoder at run time.

#[cfg(target_arch = "x86_64")]
use super::x86_64::{Avx2, Avx512};
use crate::rans::{
    bank::TableBank,
    stream::{
        StreamFault, StreamJob,
        decode::decode_stream,
        encode::{Backward, EncodeJob, EncodedStream, Uncodable, encode_stream},
    },
};

/// A decoder of streams that this CPU can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamDecoder(Path);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl StreamDecoder {
    /// The fastest.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let wide = Avx512::new().map(Path::Avx512);
            if let Some(path) = wide.or_else(|| Avx2::new().map(Path::Avx2)) {
                return Self(path);
            }
        }
        Self::scalar()
    }

    /// The portable one.
    pub(crate) fn scalar() -> Self {
        Self(Path::Scalar)
    }

    /// All, slowest first.
    pub(crate) fn available() -> Vec<Self> {
        let mut paths = vec![Some(Path::Scalar)];
        #[cfg(target_arch = "x86_64")]
        paths.extend([Avx2::new().map(Path::Avx2), Avx512::new().map(Path::Avx512)]);
        paths.into_iter().flatten().map(Self).collect()
    }

    /// For reports.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Path::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(_) => "avx512",
        }
    }

    /// Decodes one stream.
    pub(crate) fn decode_one(
        self,
        bank: &TableBank,
        tokens: usize,
        job: StreamJob<'_>,
    ) -> Result<(), StreamFault> {
        match self.0 {
            Path::Scalar => decode_stream(bank, tokens, job),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(cpu) => cpu.decode_one(bank, tokens, job),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(cpu) => cpu.decode_one(bank, tokens, job),
        }
    }

    /// Decodes two streams of one piece, interleaved where that is faster.
    pub(crate) fn decode_pair(
        self,
        bank: &TableBank,
        tokens: usize,
        jobs: [StreamJob<'_>; 2],
    ) -> [Result<(), StreamFault>; 2] {
        match self.0 {
            Path::Scalar => jobs.map(|job| decode_stream(bank, tokens, job)),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(cpu) => cpu.decode_pair(bank, tokens, jobs),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(cpu) => cpu.decode_pair(bank, tokens, jobs),
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

    /// Encodes one stream, with a buffer that may have served others.
    pub(crate) fn encode(self, job: EncodeJob<'_>, words: &mut Backward) -> Result<EncodedStream, Uncodable> {
        match self.0 {
            EncoderPath::Scalar => encode_stream(job, words),
            #[cfg(target_arch = "x86_64")]
            EncoderPath::Avx512(cpu) => cpu.encode(job, words),
        }
    }
}
