//! Models, profiles, namespaces and the capability probe.

use kvasir_types::{ModelId, Name, ProfileHash, RootHash};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Response to registering a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisteredModel {
    /// Identity of the spec.
    pub model_id: ModelId,
    /// False if it was already registered.
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

/// A profile's levels, as measured when it was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileLevels {
    /// The profile.
    pub profile_hash: ProfileHash,
    /// Origin: `first_save`, `trained` (to the bounds of quality `transparent`) or `by_hand`; `unknown` if the
    /// service cannot read the profile, which it stores unchanged. Then there are no levels.
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
    /// Number of the level.
    pub level: u8,
    /// Bits per KV element of everything up to this level, including the container.
    pub bits_per_element: f32,
    /// Error power relative to signal power.
    pub nmse: f32,
    /// Logit KL in nats per token against the uncompressed cache, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f32>,
    /// `transparent`: the level that the profile was made for; `exact`: bit for bit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<String>,
}

/// One profile of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileInfo {
    /// Its hash, which names it in bitstreams.
    pub profile_hash: ProfileHash,
    /// Its size.
    pub bytes: u64,
    /// Time of storage by the store's clock, in milliseconds since 1970. Present in lists, absent in
    /// responses to `PUT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_at_ms: Option<u64>,
}

/// A model's profiles, sorted by hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileList {
    /// The profiles.
    pub profiles: Vec<ProfileInfo>,
}

/// Requests the root hash of a namespace under a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceRequest {
    /// The namespace; the first request creates it.
    pub namespace: Name,
    /// The model.
    pub model_id: ModelId,
}

/// Gives a namespace a new salt: new chains share no name with earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceRotation {
    /// The namespace.
    pub namespace: Name,
    /// The model whose new root is returned; the salt is shared by all models.
    pub model_id: ModelId,
    /// How long lookups still find chunks stored before, in seconds; default a day, at most ten years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 315_360_000)]
    pub keep_s: Option<u64>,
}

impl NamespaceRotation {
    /// Longest time that an old generation is kept: ten years.
    pub const KEEP_S_MAX: u64 = 315_360_000;
    /// Default time that an old generation is kept: a day.
    pub const KEEP_S_DEFAULT: u64 = 86_400;
}

/// The root for deriving token chains. The salt behind it never leaves the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceResponse {
    /// Start of every chain in this namespace.
    pub root: RootHash,
}

/// The service's properties and limits: the capability probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigResponse {
    /// Version of the service.
    pub version: String,
    /// Container format versions it accepts, as `major.minor`.
    pub format_versions: Vec<String>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Largest accepted object, in bytes.
    pub chunk_bytes_max: u64,
    /// Most tokens of a lookup.
    pub lookup_tokens_max: u64,
    /// Capabilities of the object store.
    pub store: StoreCapabilities,
}

/// Capabilities of the object store, as probed at start-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreCapabilities {
    /// `file`, `s3` or `memory`.
    pub kind: String,
    /// Whether conditional creates are honoured; correctness does not need them.
    pub conditional_create: bool,
    /// Whether lookups can return presigned URLs, and uploads can be sent directly to the store.
    #[serde(default)]
    pub direct: bool,
    /// Whether the store verifies uploads against their signed SHA-256. If not, the service reads every
    /// direct upload back in full.
    #[serde(default)]
    pub checksums: bool,
}
