//! Models, profiles, namespaces and the capability probe.

use kvasir_types::{ModelId, Name, ProfileHash, RootHash};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer to registering a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisteredModel {
    /// Identity of the spec.
    pub model_id: ModelId,
    /// False when it had been registered before.
    pub created: bool,
}

/// The models of a tenant, by id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// The models, at most 1,000.
    pub models: Vec<ModelInfo>,
}

/// One registered model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelInfo {
    /// Identity of the spec.
    pub model_id: ModelId,
    /// The model's weights.
    pub model_name: String,
    /// Their revision.
    pub revision: String,
    /// Its adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_name: Option<String>,
}

/// What a profile says of its levels, as measured when it was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileLevels {
    /// The profile.
    pub profile_hash: ProfileHash,
    /// How it came about: `first_save`, `retrain` or `by_hand`; `unknown` where the service cannot read the profile, which it
    /// stores as it is. Then there are no levels.
    pub made: String,
    /// Name of the recipe.
    pub recipe: String,
    /// Free text: corpus, date, command.
    pub note: String,
    /// Tokens trained on.
    pub trained_tokens: u64,
    /// Tokens held out, on which the levels were measured.
    pub held_out_tokens: u64,
    /// Tokens at the start of a context that are stored exactly.
    pub exact_tokens: u64,
    /// The levels, coarsest first.
    pub levels: Vec<MeasuredLevel>,
}

/// One level of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MeasuredLevel {
    /// Its number.
    pub level: u8,
    /// Bits a KV element of everything up to this level, container included.
    pub bits_per_element: f32,
    /// Power of the error over the power of the signal.
    pub nmse: f32,
    /// Logit KL in nats a token against the uncompressed cache, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f32>,
    /// `transparent`: the level that the profile was made for; `exact`: bit for bit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<String>,
}

/// One profile of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileInfo {
    /// Its hash, by which bitstreams name it.
    pub profile_hash: ProfileHash,
    /// Its size.
    pub bytes: u64,
    /// When it was stored, by the store's clock: milliseconds since 1970. Lists say it, answers to a `PUT` do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_at_ms: Option<u64>,
}

/// A model's profiles, sorted by hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileList {
    /// The profiles.
    pub profiles: Vec<ProfileInfo>,
}

/// Asks for the root hash of a namespace under a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceRequest {
    /// The namespace; it comes into being by being asked for.
    pub namespace: Name,
    /// The model.
    pub model_id: ModelId,
}

/// Gives a namespace a new salt: chains that begin from now on share no name with those before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceRotation {
    /// The namespace.
    pub namespace: Name,
    /// The model whose new root is answered; the salt is that of all models.
    pub model_id: ModelId,
    /// How long lookups still find what was stored before, in seconds; a day unless given, at most ten years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 315_360_000)]
    pub keep_s: Option<u64>,
}

impl NamespaceRotation {
    /// Longest time that an old generation is kept: ten years.
    pub const KEEP_S_MAX: u64 = 315_360_000;
    /// How long one is kept where nobody says: a day.
    pub const KEEP_S_DEFAULT: u64 = 86_400;
}

/// The root that a caller derives token chains from. The salt behind it never leaves the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceResponse {
    /// Start of every chain in this namespace.
    pub root: RootHash,
}

/// What this service is and allows: the capability probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigResponse {
    /// Version of the service.
    pub version: String,
    /// Container format versions it accepts, as `major.minor`.
    pub format_versions: Vec<String>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Largest object it takes, in bytes.
    pub chunk_bytes_max: u64,
    /// Most tokens of a lookup.
    pub lookup_tokens_max: u64,
    /// What the object store behind it can do.
    pub store: StoreCapabilities,
}

/// What the object store was found able to do at start-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreCapabilities {
    /// `file`, `s3` or `memory`.
    pub kind: String,
    /// Whether conditional creates are honoured; correctness does not need them.
    pub conditional_create: bool,
    /// Whether lookups can answer presigned URLs, and uploads go to the store directly.
    #[serde(default)]
    pub direct: bool,
    /// Whether the store compares an upload with its signed SHA-256. Where it does not, the service reads every
    /// direct upload whole.
    #[serde(default)]
    pub checksums: bool,
}
