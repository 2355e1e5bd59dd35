//! Limits of profiles and pieces, each with its reason. All are checked before anything is allocated.

/// Most coefficients of a scope: coefficient ids are u16 and a dense 65,535² basis is past any budget.
pub const SCOPE_COEFFICIENTS_MAX: usize = 65_535;
/// Most elements that one scope spans (all layers, joint): 80 layers × 2 × 1,024, with room for more.
pub const SCOPE_ELEMENTS_MAX: usize = 1 << 20;
/// Most scopes of a profile; section ids hold the scope as u16.
pub const SCOPES_MAX: usize = 4_096;
/// Most trits that follow a stage inside level 0: 7·3^8 covers every value an i16 escape can hold.
pub const TRITS_MAX: usize = 8;
/// Most exact tokens (attention sinks) at the start of a context; no published method keeps more than 4.
pub const EXACT_TOKENS_MAX: usize = 16;
/// Most factors (`k`) of a token predictor, both tokens together: int8 × int8 sums stay far inside i32.
pub const TOKEN_FACTORS_MAX: usize = 512;
/// Largest vocabulary of a token predictor: the largest public ones have 262,144 entries.
pub const VOCABULARY_MAX: usize = 1 << 20;
/// Largest profile file: four times the weights' share that a 70 B model's budget of 5 % allows is absurd.
pub const PROFILE_BYTES_MAX: u64 = 16 << 30;
/// Longest text field of a profile's metadata in bytes.
pub const NOTE_BYTES_MAX: usize = 4_096;
/// Largest quantised magnitude an encoder produces: FORMAT.md's escapes hold more, f32 products stay exact.
pub const QUANTISED_MAX: i32 = (1 << 22) - 1;
