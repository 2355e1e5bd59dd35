//! Model specs.

use std::sync::Arc;

use kvasir_types::{KvDtype, KvLayout, ModelSpec, Pairing, hf::HfOptions};
use pyo3::prelude::*;

use crate::{error::Failure, tensors::dtype_name};

/// Layout and identity of a model's cache.
#[pyclass(frozen, module = "kvasir._kvasir")]
pub(crate) struct Spec(pub(crate) Arc<ModelSpec>);

/// Parses Python's name of a dtype, such as `bfloat16`, or a spec's, such as `bf16`.
pub(crate) fn dtype(name: &str) -> Result<KvDtype, Failure> {
    match name.trim_start_matches("torch.") {
        "bfloat16" | "bf16" => Ok(KvDtype::Bf16),
        "float16" | "f16" => Ok(KvDtype::F16),
        "float32" | "f32" => Ok(KvDtype::F32),
        "float8_e4m3fn" | "fp8_e4m3" => Ok(KvDtype::Fp8E4m3),
        other => Err(Failure::input(
            "wrong_dtype",
            format!("caches cannot have the type {other}"),
            "use bfloat16, float16, float32 or float8_e4m3fn",
        )),
    }
}

fn pairing(name: &str) -> Result<Pairing, Failure> {
    match name {
        "half" => Ok(Pairing::Half),
        "interleaved" => Ok(Pairing::Interleaved),
        other => Err(Failure::input(
            "invalid_config",
            format!("{other} is not a layout of rotary pairs"),
            "use half or interleaved",
        )),
    }
}

#[pymethods]
impl Spec {
    #[staticmethod]
    fn from_json(text: &str) -> Result<Self, Failure> {
        let spec: ModelSpec = serde_json::from_str(text).map_err(|error| {
            Failure::input("invalid_model_spec", format!("not a model spec: {error}"), "correct the spec")
        })?;
        spec.validate()?;
        Ok(Self(Arc::new(spec)))
    }

    #[staticmethod]
    #[pyo3(signature = (config, weights, revision, adapter, kv_dtype, pairing, context))]
    fn from_hf(
        config: &str,
        weights: String,
        revision: String,
        adapter: Option<String>,
        kv_dtype: Option<&str>,
        pairing: Option<&str>,
        context: Option<u64>,
    ) -> Result<Self, Failure> {
        let kv_dtype = kv_dtype.map(dtype).transpose()?;
        let pairing = pairing.map(self::pairing).transpose()?;
        let options = HfOptions { weights, revision, adapter, kv_dtype, pairing, context };
        Ok(Self(Arc::new(ModelSpec::from_hf(config, &options)?)))
    }

    fn to_json(&self) -> Result<String, Failure> {
        crate::json(&*self.0)
    }

    #[getter]
    fn model_id(&self) -> String {
        self.0.model_id().to_string()
    }

    #[getter]
    fn kv_dtype(&self) -> &'static str {
        dtype_name(self.0.kv_dtype)
    }

    #[getter]
    fn bytes_per_token(&self) -> usize {
        self.0.bytes_per_token()
    }

    /// For each layer: its kind, and heads and elements of K and of V.
    #[getter]
    fn layers(&self) -> Vec<(&'static str, [(usize, usize); 2])> {
        let layer = |layer: &kvasir_types::LayerKv| {
            let kind = match layer.layout {
                KvLayout::Gqa { .. } => "gqa",
                KvLayout::SlidingWindow { .. } => "sliding_window",
                KvLayout::Mla { .. } => "mla",
                KvLayout::None => "none",
            };
            (kind, layer.layout.planes())
        };
        self.0.layers.iter().map(layer).collect()
    }
}
