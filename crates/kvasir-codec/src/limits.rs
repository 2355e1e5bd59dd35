//! Limits of profiles, each with its reason. All are checked before anything is allocated. The limits of
//! pieces and tables are in [`crate::rans`].

/// Most elements that one scope spans (all layers, joint): 126 layers × 2 × 2,048, with room for more.
pub const SCOPE_ELEMENTS_MAX: usize = 1 << 20;
/// Most scopes of a profile; section ids hold the scope as u16.
pub const SCOPES_MAX: usize = 4_096;
/// Most exact tokens (attention sinks) at the start of a context; no published method keeps more than 4.
pub const EXACT_TOKENS_MAX: usize = kvasir_container::EXACT_TOKENS_MAX as usize;
/// Most factors of a token predictor, both tokens together: their int8 × int8 sums stay below 2^24.
pub const TOKEN_FACTORS_MAX: usize = 512;
/// Largest shift of a predicted sum: sums are below 2^24, so a larger one would make every prediction 0.
pub const TOKEN_SHIFT_MAX: u8 = 24;
/// Largest vocabulary of a token predictor: the largest public ones have 262,144 entries.
pub const VOCABULARY_MAX: usize = 1 << 20;
/// Most anchor steps in a delta step: anchors have 8 bits, so more would be wider than their range.
pub const ANCHOR_RATIO_MAX: i32 = 256;
/// Largest profile file: the f16 bases of a 70 B model's all-layer scope at full rank, with room for more.
pub const PROFILE_BYTES_MAX: u64 = 1 << 36;
/// Most bits of an entry of a packed basis: as many as f16 keeps.
pub const ROW_BITS_MAX: u8 = 11;
/// Largest rank for which an encoder solves for its analysis matrix (`rank²` products of rows when the
/// profile is loaded). Above it, the synthesis matrix is used, whose rows are then packed finely enough to be
/// orthogonal.
pub const LEAST_SQUARES_RANK_MAX: usize = 2_048;
pub use kvasir_container::NOTE_BYTES_MAX;
/// Largest magnitude of a quantised coefficient; spans that would exceed it are stored exactly. Leaves
/// reconstruction (value × 3^7 + prediction) inside i32 and exact in f32 at the finest level.
pub const QUANTISED_MAX: i32 = (1 << 16) - 1;
