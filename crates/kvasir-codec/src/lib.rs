#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod analysis;
#[allow(unsafe_code, reason = "CPU intrinsics and matrix kernels; every block has its proof")]
mod arch;
pub mod authoring;
mod buffer_pool;
mod chunk;
mod decoder;
mod direct_rows;
pub mod e4m3;
mod encoder;
mod error;
mod exact_piece;
mod kv;
mod levels;
pub mod limits;
mod lossless;
mod matrix;
mod plane_errors;
mod prepared_scope;
mod profile;
pub mod rans;
pub mod rope;
mod scope_layout;
mod span_ropes;
mod starter;
mod synthesis;
mod transform;

pub use kvasir_container as container;

pub use chunk::{ChunkDecoder, ChunkEncoder, ChunkInput, LayerGroup, ScopeReach};
pub use decoder::{
    CpuDecoder, DecodePath, LosslessBytes, MemberView, PieceBytes, PlanView, PredictorView, ScopeSpan,
    ScopeView,
};
pub use encoder::{CodedSpan, CpuEncoder, EncodeReport};
pub use error::{DecodeError, EncodeError, ProfileError};
pub use kv::{Bf16Buffer, HeadRows, KvBuffer, KvSink, KvSource, Rows, Tokens};
pub use kvasir_container::{STARTER_RECIPE, TRANSPARENT_NOTE};
pub use profile::{LevelNote, Profile, ProfileSummary, ScopeSummary, TrainingNote};
pub use starter::{
    STARTER_SINKS, STARTER_TOKENS_MAX, STARTER_TOKENS_MIN, StarterError, exact_starter, starter,
};

#[cfg(test)]
extern crate self as kvasir_codec;
#[cfg(test)]
#[path = "../tests/common/noise.rs"]
mod noise;
