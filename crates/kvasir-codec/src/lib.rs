#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod analysis;
#[allow(unsafe_code, reason = "CPU intrinsics; every block has its proof")]
mod arch;
mod bound;
mod chunk;
mod decoder;
mod encoder;
mod error;
mod exact;
mod kv;
mod levels;
pub mod limits;
mod lossless;
mod pool;
mod profile;
pub mod rans;
pub mod rope;
mod ropes;
mod rows;
pub mod train;
mod transform;

pub use kvasir_container as container;

pub use chunk::{ChunkDecoder, ChunkEncoder, ChunkInput, LayerGroup, ScopeReach};
pub use decoder::{
    CpuDecoder, DecodePath, MemberView, PieceBytes, PlanView, PredictorView, ScopeSpan, ScopeView,
};
pub use encoder::{CodedSpan, CpuEncoder, EncodeReport};
pub use error::{DecodeError, EncodeError, ProfileError, TrainError};
pub use kv::{Bf16Buffer, KvBuffer, KvSink, KvSource, Tokens};
pub use profile::{LevelNote, Profile, ProfileSummary, ScopeSummary, TrainingNote};

#[cfg(test)]
extern crate self as kvasir_codec;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
#[cfg(test)]
mod exactness_tests;
