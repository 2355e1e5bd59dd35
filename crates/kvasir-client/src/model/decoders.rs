//! A model's decoders by profile, at most [`PROFILES_MAX`].

use std::{collections::BTreeMap, sync::Arc};

use kvasir_codec::ChunkDecoder;
use kvasir_types::ProfileHash;
use tokio::time::Instant;

use crate::{
    Error,
    limits::{PROFILE_RETRY, PROFILES_MAX},
};

/// Whether chunks of a profile can be decoded.
pub(super) enum DecoderState {
    Ready(Arc<dyn ChunkDecoder>),
    Fetching,
    /// The profile could not be fetched or is not usable; retried after [`PROFILE_RETRY`].
    Failed(Instant),
}

impl DecoderState {
    pub(super) fn of(profile: ProfileHash, fetched: Result<Arc<dyn ChunkDecoder>, Error>) -> Self {
        fetched.map_or_else(
            |error| {
                tracing::warn!(%error, %profile, "a profile could not be loaded; chunks encoded with it count as misses");
                Self::Failed(Instant::now())
            },
            Self::Ready,
        )
    }
}

/// The states of profiles, each with the time of its last use.
#[derive(Default)]
pub(super) struct Decoders {
    states: BTreeMap<ProfileHash, (DecoderState, Instant)>,
}

impl Decoders {
    /// The state of a profile, which is used.
    pub(super) fn get(&mut self, profile: &ProfileHash) -> Option<&DecoderState> {
        let (state, used) = self.states.get_mut(profile)?;
        *used = Instant::now();
        Some(state)
    }

    /// Sets a profile's state. If there is no room, drops the profile that was not used for the longest time.
    /// Refuses if all others are in use: then a client would fetch profiles in turns.
    pub(super) fn insert(&mut self, profile: ProfileHash, state: DecoderState) -> bool {
        if self.states.len() >= PROFILES_MAX && !self.states.contains_key(&profile) {
            let unused = self.states.iter().filter(|(_, (state, used))| match state {
                DecoderState::Ready(_) => used.elapsed() >= PROFILE_RETRY,
                DecoderState::Fetching => false,
                DecoderState::Failed(_) => true,
            });
            let Some(dropped) = unused.min_by_key(|(_, (_, used))| *used).map(|(hash, _)| *hash) else {
                return false;
            };
            self.states.remove(&dropped);
        }
        self.states.insert(profile, (state, Instant::now()));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use kvasir_codec::{DecodeError, KvSink, container::Head};
    use kvasir_types::Level;

    use super::*;

    /// Decodes nothing.
    struct NoDecoder;

    impl ChunkDecoder for NoDecoder {
        fn decode(
            &self,
            _: &Head,
            _: &[u8],
            _: Level,
            _: Range<usize>,
            _: &mut dyn KvSink,
        ) -> Result<(), DecodeError> {
            Ok(())
        }
    }

    fn hash(n: usize) -> ProfileHash {
        [n as u8; 32].into()
    }

    fn ready() -> DecoderState {
        DecoderState::Ready(Arc::new(NoDecoder))
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_profile_displaces_one_that_nobody_uses() {
        let mut decoders = Decoders::default();
        for n in 0..PROFILES_MAX {
            assert!(decoders.insert(hash(n), ready()));
        }
        assert!(!decoders.insert(hash(99), DecoderState::Fetching), "all are in use");
        tokio::time::advance(PROFILE_RETRY).await;
        for n in (0..PROFILES_MAX).filter(|&n| n != 3) {
            assert!(decoders.get(&hash(n)).is_some());
        }
        assert!(decoders.insert(hash(99), DecoderState::Fetching));
        assert!(decoders.get(&hash(3)).is_none());
        // One that failed, at once; one that is being fetched, never.
        assert!(decoders.insert(hash(5), DecoderState::Failed(Instant::now())));
        assert!(decoders.insert(hash(100), ready()));
        assert!(decoders.get(&hash(5)).is_none() && decoders.get(&hash(99)).is_some());
        tokio::time::advance(PROFILE_RETRY).await;
        for n in 200..200 + PROFILES_MAX {
            decoders.insert(hash(n), ready());
        }
        assert!(decoders.get(&hash(99)).is_some());
    }
}
