//! A prefix through the codec and back: the real object, at every level.

use std::sync::Arc;

use kvasir_codec::{
    ChunkDecoder, ChunkEncoder, ChunkInput, CpuDecoder, CpuEncoder, DecodeError, EncodeError, Profile,
    ProfileError, container::Head,
};
use kvasir_types::{ChainLink, Level, Loss};

use super::{Quality, Samples, compare_prefixes};
use crate::{error::EngineError, model::Model, paged::PagedKv};

/// Why a cache did not make it through the codec.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoundTripError {
    /// The profile does not serve this model.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Encoding failed.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// Decoding failed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The object's head does not parse: a bug of the encoder.
    #[error("the encoder's own object does not parse: {0}")]
    Head(#[from] kvasir_codec::container::ContainerError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// One level of an encoded prefix.
#[derive(Debug)]
pub struct DecodedLevel {
    /// The level.
    pub level: Level,
    /// Bytes of the object up to this level, head and tokens included.
    pub bytes: u64,
    /// The cache that an engine would load at this level.
    pub kv: PagedKv,
}

/// Encodes the whole of `kv` as one chunk with `profile` and decodes it at every level.
///
/// # Errors
/// [`RoundTripError`]; the codec takes at most 16,384 tokens as one chunk.
pub fn round_trip(
    model: &Model,
    profile: &Arc<Profile>,
    tokens: &[u32],
    kv: &PagedKv,
) -> Result<Vec<DecodedLevel>, RoundTripError> {
    let encoder = CpuEncoder::new(Arc::clone(model.spec()), Arc::clone(profile))?;
    let decoder = CpuDecoder::new(Arc::clone(model.spec()), Arc::clone(profile))?;
    let input = ChunkInput {
        tokens,
        preceding_token: None,
        first_position: 0,
        link: ChainLink::first([0; 32].into()), // nothing is looked up by it here
        beneath: Loss::NONE,
        kv,
    };
    let object = encoder.encode(&input)?;
    let head = Head::parse(&object)?;
    let decode = |level: Level| {
        let mut lossy = model.new_kv()?;
        lossy.reserve(tokens.len()).map_err(EngineError::from)?;
        let mut sink = lossy.sink(0).map_err(EngineError::from)?;
        decoder.decode(&head, &object, level, 0..tokens.len(), &mut sink)?;
        sink.finish().and_then(|()| lossy.commit(tokens.len())).map_err(EngineError::from)?;
        let bytes = head.level_bytes(level).unwrap_or(object.len() as u64);
        Ok(DecodedLevel { level, bytes, kv: lossy })
    };
    (0..encoder.level_count()).map(|level| decode(Level(level as u8))).collect()
}

/// Size and quality of one level over several contexts.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct LevelQuality {
    /// The level.
    pub level: Level,
    /// Bytes up to this level, all contexts together.
    pub bytes: u64,
    /// Bits a KV element, everything in the object counted.
    pub bits_per_element: f64,
    /// The quality of this level.
    pub quality: Quality,
}

/// Measures every level of `profile` on contexts of which the first `prefix` tokens go through the codec and
/// the rest is teacher forced over them.
///
/// # Errors
/// [`RoundTripError`]; [`EngineError::EmptyPrompt`] for a context without a suffix.
pub fn measure_levels(
    model: &Model,
    profile: &Arc<Profile>,
    contexts: &[&[u32]],
    prefix: usize,
) -> Result<Vec<LevelQuality>, RoundTripError> {
    let mut sums = vec![(0u64, Samples::default()); profile.level_count()];
    for context in contexts {
        let (before, suffix) = context.split_at_checked(prefix).ok_or(EngineError::EmptyPrompt)?;
        let kv = model.calculate_kv(before)?;
        for (decoded, (bytes, samples)) in round_trip(model, profile, before, &kv)?.iter().zip(&mut sums) {
            compare_prefixes(model, &kv, &decoded.kv, suffix, samples)?;
            *bytes += decoded.bytes;
        }
    }
    let elements = (contexts.len() * prefix * model.spec().elements_per_token()) as f64;
    let rows = sums.iter().enumerate().map(|(level, (bytes, samples))| LevelQuality {
        level: Level(level as u8),
        bytes: *bytes,
        bits_per_element: *bytes as f64 * 8.0 / elements,
        quality: samples.summary(),
    });
    Ok(rows.collect())
}
