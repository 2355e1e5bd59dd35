//! The first profile of a model, made from one cache: suitable for any text, smallest for none.
//!
//! Only means and scales come from the sample. Coefficients are elements, every one is coded at the finest
//! level, and tables follow from a distribution instead of counts. So the error of a level is that of its
//! step, whatever is encoded later: text that differs from the sample costs bits, never quality. The one for quality exact has
//! counted tables: it loses nothing on other text, either.

mod exact;
mod measure;
mod statistics;
mod tables;

use kvasir_container::STARTER_RECIPE;
use std::ops::Range;

use kvasir_types::{ModelSpec, Quality};

use crate::{
    DecodeError, EncodeError, KvSource, Profile, ProfileError, TrainingNote, authoring::ProfileParts,
    levels::ratio, profile::LevelNote, scope_layout::scopes_of,
};

pub use exact::exact_starter;

/// Most tokens of a sample that are used: scales do not change any more after them.
pub const STARTER_TOKENS_MAX: usize = 1_024;
/// Fewest tokens that means and scales can be taken from.
pub const STARTER_TOKENS_MIN: usize = 128;
/// Tokens at the start of a context that are omitted: the norms of attention sinks differ.
pub const STARTER_SINKS: usize = 4;
/// Fewest distinct tokens among them: the KV of a repeated token says nothing about the spread of others.
const DISTINCT_TOKENS_MIN: usize = 16;
/// Levels: the finest, and two with a step three times as wide each.
const LEVELS: usize = 3;
/// Layers of a scope: they decode together.
const SCOPE_LAYERS: usize = 4;
/// Margin for rows that deviate from the quantiser's model, and for the rounding of the cache's type.
const ERROR_MARGIN: f64 = 0.9;

/// Gains stay normal numbers whose inverses are finite.
const GAIN_MIN: f64 = 1e-30;
const GAIN_MAX: f64 = 1e30;
/// Powers are normal numbers, too.
const POWER_MIN: f64 = 1e-36;
const POWER_MAX: f64 = 1e36;

/// Why no starter can be made from a cache.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StarterError {
    /// Too short, or too repetitive.
    #[error(
        "a first profile needs a cache of {STARTER_TOKENS_MIN} tokens with {DISTINCT_TOKENS_MIN} different ones and finite values, \
         this one has {usable} usable tokens, {distinct} different ones"
    )]
    Sample {
        /// Tokens whose KV is finite.
        usable: usize,
        /// Distinct tokens among all those examined.
        distinct: usize,
    },
    /// The spec is impossible or has no KV.
    #[error("a first profile does not fit the format: {0}")]
    Profile(#[from] ProfileError),
    /// The sample could not be encoded.
    #[error("a first profile failed on its own sample: {0}")]
    Encode(#[from] EncodeError),
    /// The sample could not be decoded again.
    #[error("a first profile failed on its own sample: {0}")]
    Decode(#[source] DecodeError),
}

/// The starter of a model, made of the KV of `tokens`, which begin at `first_position` of their context. `kv` counts from
/// there. The first [`STARTER_TOKENS_MAX`] tokens are looked at.
///
/// The finest level's error is below 2.5e-4 of the power of keys and 1e-3 of that of values about their means in the sample, by
/// layer and without positions; a level below it has 9 times as much. Rows that repeat may have more, and errors that do not
/// average out: an encoder stores a span exactly whose finest level would not be `transparent`.
///
/// # Errors
/// [`StarterError::Sample`] for a cache that says too little; the others do not happen with a valid spec.
pub fn starter(
    spec: &ModelSpec,
    tokens: &[u32],
    first_position: u64,
    kv: &dyn KvSource,
) -> Result<Profile, StarterError> {
    let tokens = &tokens[..tokens.len().min(STARTER_TOKENS_MAX)];
    measure::note_levels(spec, parts_of(spec, tokens, first_position, kv)?, tokens, first_position, kv)
}

/// The parts of a starter that is not measured yet.
fn parts_of(
    spec: &ModelSpec,
    tokens: &[u32],
    first_position: u64,
    kv: &dyn KvSource,
) -> Result<ProfileParts, StarterError> {
    let mut distinct = tokens.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let distinct = distinct.len();
    let mut tables = tables::Tables::new(LEVELS);
    let mut scopes = scopes_of(spec, scope_layers(spec.layers.len()), false, true);
    for scope in &mut scopes {
        let found = statistics::of(spec, scope, tokens.len(), first_position, kv);
        if found.tokens < STARTER_TOKENS_MIN || distinct < DISTINCT_TOKENS_MIN {
            return Err(StarterError::Sample { usable: found.tokens, distinct });
        }
        scope.mean.clone_from(&found.mean);
        let mut start = 0;
        for member in &mut scope.members {
            let power = found.plane_power(member.layer);
            let error =
                ERROR_MARGIN * Quality::transparent_error(spec.layers[member.layer].layout, member.plane);
            // A quantiser of step s has an error of s²/12.
            member.gain = (12.0 * error * power).sqrt().clamp(GAIN_MIN, GAIN_MAX) as f32;
            member.power = power.clamp(POWER_MIN, POWER_MAX) as f32;
            let variances = &found.variance[start..start + member.dim];
            let widths = variances.iter().map(|variance| variance.sqrt() / f64::from(member.gain));
            scope.coding.extend(widths.map(|width| tables.coding(width)));
            start += member.dim;
        }
        scope.loss = vec![0.0; LEVELS];
    }
    let (bank, shifts) = tables.finish();
    Ok(ProfileParts {
        model_id: spec.model_id(),
        exact_tokens: 0,
        scopes,
        bank,
        shifts,
        levels: vec![LevelNote::default(); LEVELS],
        training: TrainingNote {
            recipe: STARTER_RECIPE.to_owned(),
            note: "levels were measured on the sample itself".to_owned(),
            tokens: tokens.len() as u64,
            held_out_tokens: 0,
        },
    })
}

/// Layers of each scope. The first layer's cache depends on the token alone, so its errors repeat when tokens
/// repeat, and it is stored exactly there. It has a separate scope so that nothing else is.
fn scope_layers(count: usize) -> impl Iterator<Item = Range<usize>> {
    let later = (1..count).step_by(SCOPE_LAYERS).map(move |start| start..(start + SCOPE_LAYERS).min(count));
    std::iter::once(0..1).chain(later)
}

/// The error of a level over that of the finest.
fn error_ratio(level: usize) -> f32 {
    let ratio = ratio((LEVELS - 1 - level) as u32) as f32;
    ratio * ratio
}
