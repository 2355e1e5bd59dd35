//! Codecs that are profiles of ours: Kvasir's own, and the paper's CacheGen.

use std::sync::Arc;

use kvasir_codec::{ChunkDecoder, ChunkEncoder, ChunkInput, CpuDecoder, CpuEncoder, KvBuffer, Profile};
use kvasir_container::Head;
use kvasir_types::{ChainLink, Level, LevelError, Loss, ModelSpec};

use super::{Chunk, Coded, KvCodec};
use crate::BenchError;

/// A profile as a codec; its levels are prefixes of one object.
#[derive(Debug)]
pub struct ProfileCodec {
    name: &'static str,
    variant: String,
    encoder: CpuEncoder,
    decoder: CpuDecoder,
    profile: Arc<Profile>,
}

impl ProfileCodec {
    /// A profile under a codec's name; `variant` distinguishes several profiles.
    ///
    /// # Errors
    /// The profile is of another model.
    pub fn new(
        name: &'static str,
        variant: impl Into<String>,
        spec: &Arc<ModelSpec>,
        profile: Arc<Profile>,
    ) -> Result<Self, BenchError> {
        let encoder = CpuEncoder::new(Arc::clone(spec), Arc::clone(&profile))?;
        let decoder = CpuDecoder::new(Arc::clone(spec), Arc::clone(&profile))?;
        Ok(Self { name, variant: variant.into(), encoder, decoder, profile })
    }

    /// The profile.
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    pub(super) fn decoder(&self) -> &CpuDecoder {
        &self.decoder
    }

    /// The object of a chunk.
    pub(crate) fn encode(&self, chunk: &Chunk<'_>) -> Result<Vec<u8>, BenchError> {
        Ok(self.encoder.encode(&ChunkInput {
            tokens: chunk.tokens,
            preceding_token: chunk.preceding_token,
            first_position: chunk.first_position as u64,
            link: ChainLink::first([0; 32].into()), // nothing is looked up by it here
            beneath: Loss::NONE,
            kv: chunk.kv,
        })?)
    }

    /// The cache that a reader of an object's prefix gets.
    pub(crate) fn decode(&self, spec: &ModelSpec, object: &[u8], level: Level) -> Result<Coded, BenchError> {
        let head = Head::parse(object)?;
        let tokens = head.tokens.len();
        let bytes = head.level_bytes(level).unwrap_or(object.len() as u64);
        let mut kv = KvBuffer::new(spec, tokens);
        self.decoder.decode(&head, &object[..bytes as usize], level, 0..tokens, &mut kv)?;
        Ok(Coded { bytes, error: error_of(&head, level), kv })
    }
}

/// The error of a level of an object, as its encoder measured it.
pub(super) fn error_of(head: &Head, level: Level) -> LevelError {
    head.measured().map_or(LevelError::UNKNOWN, |measured| measured.error(level))
}

impl KvCodec for ProfileCodec {
    fn name(&self) -> &'static str {
        self.name
    }

    fn variant(&self) -> &str {
        &self.variant
    }

    fn levels(&self) -> usize {
        self.encoder.level_count()
    }

    fn profile_bytes(&self) -> u64 {
        self.profile.to_bytes().len() as u64
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let object = self.encode(chunk)?;
        (0..self.levels()).map(|level| self.decode(chunk.spec, &object, Level(level as u8))).collect()
    }
}

/// Profiles of one recipe at several steps as one codec: its sweep.
#[derive(Debug)]
pub struct Sweep(pub Vec<ProfileCodec>);

impl KvCodec for Sweep {
    fn name(&self) -> &'static str {
        self.0.first().map_or("", |codec| codec.name)
    }

    fn levels(&self) -> usize {
        self.0.iter().map(KvCodec::levels).sum()
    }

    fn profile_bytes(&self) -> u64 {
        self.0.iter().map(KvCodec::profile_bytes).max().unwrap_or(0)
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let mut all = Vec::new();
        for codec in &self.0 {
            all.extend(codec.code(chunk)?);
        }
        all.sort_by_key(|coded| coded.bytes);
        Ok(all)
    }
}
