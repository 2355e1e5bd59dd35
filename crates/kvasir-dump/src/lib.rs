#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod limits;
mod read;
mod write;

use kvasir_codec::KvBuffer;
use kvasir_types::{KvDtype, ModelSpec, Plane, SpecError};
use safetensors::SafeTensorError;

pub use read::{parse_dump, read_dump};
pub use write::{DumpDtype, write_dump};

/// Metadata key of the model spec.
pub const MODEL_SPEC_KEY: &str = "model_spec";
/// Name of the token tensor.
pub const TOKENS_NAME: &str = "tokens";

/// A context's KV cache with everything needed to encode it or to train on it.
#[derive(Debug, Clone, PartialEq)]
pub struct KvDump {
    /// Identity and layout.
    pub spec: ModelSpec,
    /// The context's tokens.
    pub tokens: Vec<u32>,
    /// Their KV, widened to f32.
    pub kv: KvBuffer,
}

/// Name of a plane's tensor.
fn tensor_name(layer: usize, plane: Plane) -> String {
    match plane {
        Plane::K => format!("k.{layer}"),
        Plane::V => format!("v.{layer}"),
    }
}

/// The file is not a valid KV dump.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The file could not be read or written.
    #[error("cannot access {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Larger than the limit for one read.
    #[error("the file has {bytes} bytes, but the limit is {max}; split the dump")]
    TooLarge {
        /// Size found.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// Not a safetensors file.
    #[error("not a safetensors file: {0}")]
    Format(#[from] SafeTensorError),
    /// No metadata `model_spec`.
    #[error("metadata `model_spec` is missing: write the model spec's JSON there")]
    NoSpec,
    /// `model_spec` is not a model spec.
    #[error("metadata `model_spec` is malformed: {0}")]
    SpecJson(#[source] serde_json::Error),
    /// `model_spec` is invalid.
    #[error("metadata `model_spec`: {0}")]
    Spec(#[from] SpecError),
    /// A tensor that the spec requires is missing.
    #[error("tensor `{name}` is missing")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor of a layer that has no such plane.
    #[error("tensor `{name}` belongs to no layer with a cache in the spec")]
    Unexpected {
        /// Its name.
        name: String,
    },
    /// A tensor of the wrong shape.
    #[error("tensor `{name}` must have the shape {expected:?}, found {found:?}")]
    Shape {
        /// Its name.
        name: String,
        /// Shape by the spec and the token count.
        expected: Vec<usize>,
        /// Shape found.
        found: Vec<usize>,
    },
    /// A tensor of a type that the format does not support.
    #[error("tensor `{name}` is {found}, expected {expected}")]
    Dtype {
        /// Its name.
        name: String,
        /// Types allowed.
        expected: &'static str,
        /// Type found.
        found: String,
    },
    /// A value that the model's cache cannot hold.
    #[error(
        "tensor `{name}` holds {value:e}, which a {kv_dtype:?} cache cannot hold; set `kv_dtype` of `model_spec` to the type \
         that the engine caches, and dump its values unrounded"
    )]
    Value {
        /// Its name.
        name: String,
        /// The first such value.
        value: f32,
        /// The type of the model's cache.
        kv_dtype: KvDtype,
    },
    /// No token, or more than the limit.
    #[error("a dump must hold 1 to {max} tokens, but this one holds {tokens}")]
    Tokens {
        /// Tokens found.
        tokens: usize,
        /// The limit.
        max: usize,
    },
    /// A token id below zero.
    #[error("token {index} is {token}; ids must not be negative")]
    NegativeToken {
        /// Its position.
        index: usize,
        /// Its value.
        token: i32,
    },
}

#[cfg(test)]
mod tests;
