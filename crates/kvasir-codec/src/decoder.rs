//! The decoder on the CPU.

use std::{ops::Range, sync::Arc};

use kvasir_container::Head;
use kvasir_types::{Level, ModelSpec};

use crate::{ChunkDecoder, DecodeError, KvSink, Profile, ProfileError};

/// Decodes chunks of one profile.
#[derive(Debug, Clone)]
pub struct CpuDecoder {
    profile: Arc<Profile>,
}

impl CpuDecoder {
    /// A decoder for a model.
    ///
    /// # Errors
    /// [`ProfileError`] where the profile is of another model.
    #[allow(clippy::needless_pass_by_value, reason = "kept by the decoder")]
    pub fn new(spec: Arc<ModelSpec>, profile: Arc<Profile>) -> Result<Self, ProfileError> {
        profile.check_model(&spec)?;
        Ok(Self { profile })
    }
}

impl ChunkDecoder for CpuDecoder {
    fn decode(
        &self,
        head: &Head,
        _object_prefix: &[u8],
        level: Level,
        _tokens: Range<usize>,
        _sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError> {
        let _ = head;
        Err(DecodeError::NoSuchLevel { level, top: self.profile.top_level() })
    }
}
