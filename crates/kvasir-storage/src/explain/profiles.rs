//! For `explain`: the profiles of the matched chunks, and the quality that their encoders measured.

use kvasir_api::{ChunkMatch, LookupResponse, MatchedProfile};
use kvasir_types::{Level, Loss, Quality};

/// The profiles of the matched chunks, in the order of their first chunks.
pub(super) fn matched_profiles(found: &LookupResponse) -> Vec<MatchedProfile> {
    let mut profiles: Vec<MatchedProfile> = Vec::new();
    for chunk in &found.chunks {
        let loss = finest_loss(chunk);
        let known = profiles.iter().position(|of| of.profile_hash == chunk.profile_hash);
        let index = known.unwrap_or_else(|| {
            profiles.push(MatchedProfile {
                profile_hash: chunk.profile_hash,
                chunks: 0,
                tokens: 0,
                bytes: 0,
                error: loss.error,
                quality: None,
                hops: 0,
            });
            profiles.len() - 1
        });
        let profile = &mut profiles[index];
        profile.chunks += 1;
        profile.tokens += u64::from(chunk.matched_tokens);
        profile.bytes += chunk.bytes;
        profile.error = profile.error.max(loss.error);
        profile.quality = Quality::of(profile.error);
        profile.hops = profile.hops.max(loss.hops);
    }
    profiles
}

/// The loss of a chunk at its finest level, including that beneath it.
fn finest_loss(chunk: &ChunkMatch) -> Loss {
    let finest = chunk.level_bytes.len().saturating_sub(1);
    // An unknown KL adds nothing: the error alone is reported.
    chunk.loss_at(Level(u8::try_from(finest).unwrap_or(u8::MAX)), 0.0)
}

#[cfg(test)]
mod tests {
    use kvasir_api::{ChunkErrors, Via};
    use kvasir_types::{LevelError, Medium};

    use super::*;

    fn chunk(profile: u8, errors: Option<(f64, LevelError)>) -> ChunkMatch {
        let errors = errors.map(|(finest, beneath)| ChunkErrors {
            levels: vec![Quality::Small.error_max(), LevelError::at_least(finest)],
            beneath,
            hops: u8::from(beneath > LevelError::NONE),
        });
        ChunkMatch {
            seq_hash: [1; 32].into(),
            object_digest: [2; 32].into(),
            profile_hash: [profile; 32].into(),
            first_token: 0,
            tokens: 256,
            matched_tokens: 200,
            bytes: 1_000,
            head_bytes: 10,
            level_bytes: vec![400, 1_000],
            kl_beneath: 0.0,
            errors,
            medium: Medium::Object,
            via: Via::Proxy,
        }
    }

    #[test]
    fn a_profile_is_as_good_as_its_worst_chunk() {
        let transparent = Quality::Transparent.error_max();
        let chunks = vec![
            chunk(1, Some((0.5, LevelError::NONE))),
            chunk(2, Some((0.0, LevelError::NONE))),
            chunk(1, Some((0.5, Quality::Balanced.error_max()))),
            chunk(3, None),
            chunk(3, Some((0.0, LevelError::NONE))),
        ];
        let found = matched_profiles(&LookupResponse { matched_tokens: 1_000, chunks });
        let counted = |of: &MatchedProfile| (of.chunks, of.tokens, of.bytes, of.quality, of.hops);
        assert_eq!(
            found.iter().map(counted).collect::<Vec<_>>(),
            [
                (2, 400, 2_000, Some(Quality::Balanced), 2),
                (1, 200, 1_000, Some(Quality::Exact), 0),
                (2, 400, 2_000, None, 0),
            ]
        );
        assert_eq!(found[0].error, Quality::Balanced.error_max(), "of the KV beneath the second chunk");
        assert_eq!(found[2].error, LevelError::UNKNOWN, "one was not measured");
        let good =
            LookupResponse { matched_tokens: 200, chunks: vec![chunk(1, Some((1.0, LevelError::NONE)))] };
        let good = matched_profiles(&good);
        assert_eq!((good[0].error, good[0].quality), (transparent, Some(Quality::Transparent)));
        assert!(matched_profiles(&LookupResponse { matched_tokens: 0, chunks: Vec::new() }).is_empty());
    }
}
