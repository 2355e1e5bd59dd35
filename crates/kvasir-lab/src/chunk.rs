//! The input of a codec, and the trait of all compared codecs.

use kvasir_codec::KvBuffer;
use kvasir_types::{LevelError, ModelSpec};

use crate::BenchError;

/// A chunk of a context. Keys are as the engine caches them: after RoPE.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// Its tokens.
    pub tokens: &'a [u32],
    /// The preceding token, unless the chunk begins the context.
    pub preceding_token: Option<u32>,
    /// Position of its first token.
    pub first_position: usize,
    /// KV of `tokens`.
    pub kv: &'a KvBuffer,
}

/// A chunk at one setting of a codec, as a reader gets it back.
#[derive(Debug, Clone)]
pub struct Coded {
    /// Everything that has to be stored and fetched for this chunk, container included; profiles are not.
    pub bytes: u64,
    /// The largest error that the encoder measured; [`LevelError::UNKNOWN`] where it measures none.
    pub error: LevelError,
    /// The decoded bytes.
    pub kv: KvBuffer,
}

/// A codec with a ladder of settings, coarsest first.
///
/// Whatever [`code`](Self::code) returns came out of the bytes it counted: implementations write bytes and read
/// them back.
pub trait KvCodec: Sync {
    /// Name in the rows of a report.
    fn name(&self) -> &'static str;

    /// Which profile or variant, for a codec with several; empty otherwise.
    fn variant(&self) -> &str {
        ""
    }

    /// Settings.
    fn levels(&self) -> usize;

    /// Bytes that every reader must hold in addition to the chunks, once per model.
    fn profile_bytes(&self) -> u64 {
        0
    }

    /// Codes a chunk at every setting.
    ///
    /// # Errors
    /// [`BenchError`], for example if a codec cannot read its own bytes.
    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError>;
}
