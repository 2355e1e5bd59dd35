//! The vocabulary of Kvasir: ids, hashes, [`ModelSpec`], units and format constants.
//!
//! This crate is a leaf: no IO, no async, no tensors. The words are those of ARCHITECTURE.md and have no
//! synonyms anywhere in the workspace.
//!
//! ```
//! use kvasir_types::{BLOCK_TOKENS, RootHash, TokenChain};
//!
//! let root = RootHash::derive("acme", "chat", b"server-held salt", &[7; 32].into());
//! let chain = TokenChain::new(root, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]);
//! assert_eq!(chain.blocks().len(), 2); // one full block and a tail of one token
//! assert_eq!(chain.tokens_through(0), BLOCK_TOKENS);
//! ```

#![forbid(unsafe_code)]

mod chain;
mod hash;
mod limits;
mod model;
mod name;
mod object_key;
mod quality;
mod route;
#[cfg(feature = "openapi")]
mod schema;
mod units;

pub use chain::{ChainKey, ChainLink, TokenChain};
pub use hash::{ModelId, ObjectDigest, ParseHashError, ProfileHash, RootHash, SeqHash};
pub use limits::{
    BLOCK_TOKENS, CHUNK_TOKENS_DEFAULT, CHUNK_TOKENS_MAX, CHUNK_TOKENS_STEP, LAYERS_MAX, LEVELS_MAX,
    NAME_BYTES_MAX, OBJECT_KEY_BYTES_MAX, ROTARY_DIMS_MAX, SPAN_TOKENS,
};
pub use model::{
    KvDtype, KvLayout, LayerKv, ModelSpec, Pairing, Reuse, Rope, RopeError, RopeFormula, RopeScaling,
    SpecError, Thinning, hf,
};
pub use name::{Name, NameError};
pub use object_key::{ObjectKey, ObjectKeyError};
pub use quality::{LevelError, Loss, Quality, QualityError};
pub use route::{ParseRouteKeyError, ROUTE_TOKENS, RouteKey};
pub use units::{Level, Medium, Plane, TokenRange};
