//! Profiles: the per-model tables, bases and parameters that objects name by hash (FORMAT.md "Profile file").

mod bit_packing;
mod read;
mod scope;
mod summary;
mod token;
mod validate;
mod write;

use kvasir_container::PROFILE_MAGIC as MAGIC;
pub use kvasir_container::ProfileLevel as LevelNote;
use kvasir_types::{LEVELS_MAX, Level, ModelId, ModelSpec, ProfileHash};

pub use bit_packing::{PackedRows, packed_bytes};
pub(crate) use bit_packing::{pack, unpack};
pub use scope::{Basis, CoefficientCoding, Member, Predictor, Scope};
pub use summary::{ProfileSummary, ScopeSummary};
pub use token::TokenPredictor;

use crate::{ProfileError, rans::TableBank};

/// Version of profiles whose members have reference powers for errors.
pub(crate) const VERSION: u16 = 4;
/// Version of others with an exact level.
const VERSION_EXACT: u16 = 3;
/// Version of others without.
const VERSION_LOSSY: u16 = 2;

/// Everything needed to code one model's KV. Immutable; named by the BLAKE3 of its bytes.
#[derive(Debug, Clone)]
pub struct Profile {
    pub(crate) model_id: ModelId,
    /// Tokens at the start of a context that are stored exactly.
    pub(crate) exact_tokens: usize,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) bank: TableBank,
    /// Centroid shifts, `[stage table][depth]`, in 256ths of a step: depth 0 is the table's own level.
    pub(crate) shifts: Vec<[u8; LEVELS_MAX]>,
    /// One entry a level, coarsest first.
    pub(crate) levels: Vec<LevelNote>,
    pub(crate) training: TrainingNote,
    hash: ProfileHash,
}

/// The origin of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrainingNote {
    /// Name of the recipe.
    pub recipe: String,
    /// Free text: corpus, date, command.
    pub note: String,
    /// Tokens trained on.
    pub tokens: u64,
    /// Tokens held out, on which rates were measured.
    pub held_out_tokens: u64,
}

/// The fields of a [`Profile`] before it has a hash.
#[derive(Debug, Clone)]
pub struct ProfileParts {
    /// The model.
    pub model_id: ModelId,
    /// Tokens at the start of a context that are stored exactly.
    pub exact_tokens: usize,
    /// Every head of the model is a member of one of them.
    pub scopes: Vec<Scope>,
    /// The tables that codings name.
    pub bank: TableBank,
    /// Centroid shifts, `[stage table][depth]`, in 256ths of a step: depth 0 is the table's own level.
    pub shifts: Vec<[u8; LEVELS_MAX]>,
    /// One entry a level, coarsest first.
    pub levels: Vec<LevelNote>,
    /// The origin of the profile.
    pub training: TrainingNote,
}

impl Profile {
    /// Reads and checks a profile file.
    ///
    /// # Errors
    /// [`ProfileError`] for anything a writer of this version does not produce. Total: no bytes panic, and
    /// nothing is allocated that the file is not long enough for.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ProfileError> {
        Self::from_bytes_within(bytes, u64::MAX)
    }

    /// As [`from_bytes`](Self::from_bytes), of a file that somebody else made: refuses it before it unpacks what
    /// would make the multiply-adds of decoding a token more than `macs_max`.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes); [`ProfileError::TooMuch`].
    pub fn from_bytes_within(bytes: &[u8], macs_max: u64) -> Result<Self, ProfileError> {
        let parts = read::parse(bytes, macs_max)?;
        validate::check(&parts)?;
        Ok(Self::with_hash(parts, ProfileHash::of(bytes)))
    }

    /// The profile file.
    pub fn to_bytes(&self) -> Vec<u8> {
        write::serialise(self)
    }

    /// Puts a profile together, checks it as [`from_bytes`](Self::from_bytes) does, and names it.
    ///
    /// # Errors
    /// [`ProfileError::Invalid`] for parts that no profile file may have.
    pub fn assemble(parts: ProfileParts) -> Result<Self, ProfileError> {
        validate::check(&parts)?;
        let mut profile = Self::with_hash(parts, ProfileHash::from([0; 32]));
        profile.hash = ProfileHash::of(&profile.to_bytes());
        Ok(profile)
    }

    fn with_hash(parts: ProfileParts, hash: ProfileHash) -> Self {
        let ProfileParts { model_id, exact_tokens, scopes, bank, shifts, levels, training } = parts;
        Self { model_id, exact_tokens, scopes, bank, shifts, levels, training, hash }
    }

    /// The same profile with the measurements of a quality oracle, one KL per level, coarsest first. It is a
    /// different file, so it has a different hash.
    ///
    /// # Errors
    /// [`ProfileError::Invalid`] if a number is negative or not finite, or there is not one per level.
    pub fn with_predicted_kl(&self, kl: &[f32]) -> Result<Self, ProfileError> {
        if kl.len() != self.levels.len() {
            let found = format!("{} numbers for {} levels", kl.len(), self.levels.len());
            return Err(ProfileError::Invalid { field: "predicted KL", found });
        }
        let mut parts = self.parts();
        for (level, kl) in parts.levels.iter_mut().zip(kl) {
            level.kl = Some(*kl);
        }
        Self::assemble(parts)
    }

    /// The same profile with another number of exact tokens at the start of a context. It is a different file, so it
    /// has a different hash.
    ///
    /// # Errors
    /// [`ProfileError::Invalid`] beyond [`EXACT_TOKENS_MAX`](crate::limits::EXACT_TOKENS_MAX).
    pub fn with_exact_tokens(&self, exact_tokens: usize) -> Result<Self, ProfileError> {
        Self::assemble(ProfileParts { exact_tokens, ..self.parts() })
    }

    /// The same profile with measurements of its levels, coarsest first. It is a different file, so it has a
    /// different hash.
    ///
    /// # Errors
    /// As [`with_predicted_kl`](Self::with_predicted_kl).
    pub fn with_levels(&self, levels: &[LevelNote]) -> Result<Self, ProfileError> {
        if levels.len() != self.levels.len() {
            let found = format!("{} notes for {} levels", levels.len(), self.levels.len());
            return Err(ProfileError::Invalid { field: "level notes", found });
        }
        Self::assemble(ProfileParts { levels: levels.to_vec(), ..self.parts() })
    }

    /// A copy of the fields, to make another profile of.
    pub fn parts(&self) -> ProfileParts {
        let Self { model_id, exact_tokens, scopes, bank, shifts, levels, training, hash: _ } = self.clone();
        ProfileParts { model_id, exact_tokens, scopes, bank, shifts, levels, training }
    }

    /// BLAKE3 of the file.
    pub fn hash(&self) -> ProfileHash {
        self.hash
    }

    /// The model it was trained for.
    pub fn model_id(&self) -> ModelId {
        self.model_id
    }

    /// Number of quality levels.
    pub fn level_count(&self) -> usize {
        self.levels.len()
    }

    /// The tables that pieces name.
    pub fn bank(&self) -> &TableBank {
        &self.bank
    }

    /// The finest level.
    pub fn top_level(&self) -> Level {
        Level(self.levels.len().saturating_sub(1) as u8)
    }

    /// Tokens at the start of a context that are stored exactly.
    pub fn exact_tokens(&self) -> usize {
        self.exact_tokens
    }

    /// Predicted logit KL of a level in nats per token, if it was measured.
    pub fn predicted_kl(&self, level: Level) -> Option<f32> {
        self.levels.get(level.index())?.kl
    }

    /// Loss caused by a level's errors, summed over scopes: predicted KL in nats per token if an engine
    /// measured the cost of errors by layer and plane, else NMSE summed over planes.
    pub fn loss_of_errors(&self, level: Level) -> f32 {
        self.scopes.iter().filter_map(|scope| scope.loss.get(level.index())).sum()
    }

    /// The notes about each level, coarsest first.
    pub fn levels(&self) -> &[LevelNote] {
        &self.levels
    }

    /// The origin of the profile.
    pub fn training(&self) -> &TrainingNote {
        &self.training
    }

    /// Levels below the exact one; all of them if there is none.
    pub fn lossy_levels(&self) -> usize {
        self.levels.len() - usize::from(self.is_lossless())
    }

    /// Whether the finest level restores the cache bit for bit.
    pub fn is_lossless(&self) -> bool {
        self.scopes.iter().any(|scope| scope.lossless.is_some())
    }

    /// Whether chunks record the errors of their levels.
    pub fn is_measured(&self) -> bool {
        self.scopes.iter().all(Scope::is_measured)
    }

    /// Whether reconstruction is bit-exact: no trained basis, no matrix product.
    pub fn is_direct(&self) -> bool {
        self.scopes.iter().all(|scope| matches!(scope.basis, Basis::Identity))
    }

    /// Coefficients of a trained basis that an element of the cache is a sum of, on average over its elements; 0 if the
    /// profile [is direct](Self::is_direct). A decode's time grows with it.
    pub fn basis_rank(&self) -> f64 {
        let with_basis = self.scopes.iter().filter(|scope| !matches!(scope.basis, Basis::Identity));
        let products: usize = with_basis.map(|scope| scope.rank() * scope.elements()).sum();
        let elements: usize = self.scopes.iter().map(Scope::elements).sum();
        products as f64 / elements.max(1) as f64
    }

    /// Checks that the profile belongs to a model and covers its KV exactly.
    ///
    /// # Errors
    /// [`ProfileError::ForeignModel`], or `Invalid` where the members are not the model's heads.
    pub fn check_model(&self, spec: &ModelSpec) -> Result<(), ProfileError> {
        spec.validate()?;
        let model = spec.model_id();
        if self.model_id != model {
            return Err(ProfileError::ForeignModel { profile: self.model_id, model });
        }
        validate::check_coverage(&self.scopes, spec)
    }
}
