//! Why training fails.

use kvasir_codec::{DecodeError, EncodeError, ProfileError};
use kvasir_types::SpecError;

use super::NonFinite;

/// Training that cannot succeed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// Too little KV.
    #[error(
        "training needs at least {needed} tokens with finite KV, {found} were given: add contexts{}",
        left_out.map_or_else(String::new, |left_out| format!(" ({left_out})"))
    )]
    TooFewTokens {
        /// Tokens needed.
        needed: usize,
        /// Usable tokens given.
        found: usize,
        /// Those whose values are not finite.
        left_out: Option<NonFinite>,
    },
    /// A context's KV and tokens differ in length, or its shape is not the spec's.
    #[error("context {context} has {tokens} tokens but KV of {kv_tokens}: both must be of the same text")]
    Mismatch {
        /// Index of the context.
        context: usize,
        /// Its tokens.
        tokens: usize,
        /// Tokens of its KV.
        kv_tokens: usize,
    },
    /// The recipe is not possible.
    #[error("no profile can be trained with this {field}: {why}")]
    Recipe {
        /// The field.
        field: &'static str,
        /// What is wrong and what would be valid.
        why: String,
    },
    /// The budget does not hold a basis that is worth having.
    #[error(
        "within {bytes} bytes the basis loses {:.0} % of the cache's power: allow more, or have scopes of fewer layers \
         or the recipe without a basis",
        100.0 * lost
    )]
    Budget {
        /// Most bytes of the profile.
        bytes: usize,
        /// Share of the power that would be lost, 0 to 1.
        lost: f32,
    },
    /// A profile cannot be packed into as few bytes.
    #[error("the profile packs into {least} bytes at least, not into {bytes}: allow more")]
    Size {
        /// Most bytes of the profile.
        bytes: usize,
        /// Fewest bytes that were reached.
        least: usize,
    },
    /// A basis loses too much for the quality `transparent`, however fine its levels are.
    #[error(
        "the basis loses {times:.0} times what `transparent` allows: allow more bytes and multiply-adds, have scopes of \
         fewer layers, or train on more contexts"
    )]
    NotTransparent {
        /// The error of held-out chunks over the bound.
        times: f32,
    },
    /// The limit of multiply-adds does not allow a basis that is worth having.
    #[error(
        "within {macs} multiply-adds a token the basis loses {:.0} % of the cache's power: allow more, or use the recipe \
         without a basis",
        100.0 * lost
    )]
    MultiplyAdds {
        /// Most multiply-adds per decoded token.
        macs: usize,
        /// Share of the power that would be lost, 0 to 1.
        lost: f32,
    },
    /// The spec is invalid, or has no KV at all.
    #[error("the model spec is invalid: {0}")]
    Spec(#[from] SpecError),
    /// The decomposition of a covariance failed.
    #[error("the covariance of scope {scope} has no eigendecomposition: is the KV constant or huge?")]
    Decomposition {
        /// The scope.
        scope: usize,
    },
    /// The trained profile does not fit the format.
    #[error("the trained profile does not fit the format: {0}")]
    Profile(#[from] ProfileError),
    /// A held-out chunk could not be encoded.
    #[error("the held-out check failed: {0}")]
    Encode(#[from] EncodeError),
    /// A held-out chunk could not be decoded again.
    #[error("the held-out check failed: {0}")]
    Check(#[source] DecodeError),
}
