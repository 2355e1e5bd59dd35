//! The codec and plans, without a service.

use std::sync::Arc;

use kvasir_codec::{
    ChunkDecoder as _, ChunkEncoder as _, ChunkInput, CpuDecoder, CpuEncoder,
    container::{Head, ObjectVerifier},
};
use kvasir_model::plan::{self, Deployment, LevelRate, ModelPreset, Rate, Request};
use kvasir_types::{CHUNK_TOKENS_DEFAULT, ChainLink, Level, LevelError, Loss, Quality, RootHash};
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    error::Failure,
    profile::Profile,
    runtime::compute,
    spec::Spec,
    tensors::{Sink, Tensors, Use},
};

/// Encodes one chunk object that starts a context. Its root is that of the namespace `local` of the tenant
/// `local` without a salt, as with `kvasir object encode`; objects of a service take their root from the
/// service.
#[pyfunction]
pub(crate) fn encode<'py>(
    py: Python<'py>,
    spec: &Spec,
    profile: &Profile,
    tokens: Vec<u32>,
    kv: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let tensors = Tensors::borrow(&spec.0, kv, tokens.len(), Use::Read)?;
    let object = compute(py, || {
        let encoder = CpuEncoder::new(Arc::clone(&spec.0), Arc::clone(&profile.0))?;
        let root = RootHash::derive("local", "local", b"", &spec.0.model_id());
        let input = ChunkInput {
            tokens: &tokens,
            preceding_token: None,
            first_position: 0,
            link: ChainLink::first(root),
            beneath: Loss::NONE,
            kv: &*tensors,
        };
        Ok(encoder.encode(&input)?)
    })?;
    Ok(PyBytes::new(py, &object))
}

/// Decodes an object, or a prefix of one that contains the level, into tensors.
#[pyfunction]
pub(crate) fn decode(
    py: Python<'_>,
    spec: &Spec,
    profile: &Profile,
    object: &[u8],
    level: Option<u8>,
    into: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let head = Head::parse(object).map_err(Failure::from)?;
    let count = head.tokens.len();
    let tensors = Tensors::borrow(&spec.0, into, count, Use::Write)?;
    compute(py, || {
        head.verify_chain()?;
        let level = Level(level.unwrap_or(head.header.level_count.saturating_sub(1)));
        let decoder = CpuDecoder::new(Arc::clone(&spec.0), Arc::clone(&profile.0))?;
        Ok(decoder.decode(&head, object, level, 0..count, &mut Sink(&tensors))?)
    })
}

/// Tokens of an object, from its head only.
#[pyfunction]
pub(crate) fn tokens_of(object: &[u8]) -> Result<Vec<u32>, Failure> {
    Ok(Head::parse(object)?.tokens.to_vec())
}

/// The contents of an object as JSON, after checking every byte.
#[pyfunction]
pub(crate) fn inspect(py: Python<'_>, object: &[u8]) -> PyResult<String> {
    compute(py, || {
        let mut verifier = ObjectVerifier::new();
        verifier.push(object)?;
        let head = verifier.finish()?;
        let header = &head.header;
        let prefixes: Vec<u64> =
            (0..header.level_count).map(|level| head.level_bytes(Level(level)).unwrap_or(0)).collect();
        let quality = |level| {
            let error = head.measured().map_or(LevelError::UNKNOWN, |measured| measured.error(Level(level)));
            Quality::of(error).map(Quality::name)
        };
        let qualities: Vec<_> = (0..header.level_count).map(quality).collect();
        crate::json(&serde_json::json!({
            "model_id": header.model_id.to_string(),
            "profile_id": header.profile_hash.to_string(),
            "seq_hash": header.seq_hash.to_string(),
            "first_position": header.first_position,
            "tokens": header.token_count,
            "exact_tokens": header.exact_tokens,
            "kl_beneath": header.kl_beneath,
            "head_bytes": header.head_bytes(),
            "object_bytes": header.object_bytes,
            "level_bytes": prefixes,
            "qualities": qualities,
        }))
    })
}

/// The model of a plan: a preset's name, the text of a Hugging Face configuration, or a spec with its
/// parameters in 10⁹.
fn planned_model(
    name: Option<&str>,
    config: Option<&str>,
    spec: Option<&Spec>,
    parameters: Option<f64>,
) -> Result<ModelPreset, Failure> {
    let unknown = |message: String, remedy| Failure::input("unknown_model", message, remedy);
    let mut model = match (name, config, spec) {
        (Some(name), ..) => plan::preset(name).cloned().ok_or_else(|| {
            unknown(format!("there is no preset {name}"), "see `kvasir plan --list`, or give a config")
        })?,
        (None, Some(config), _) => ModelPreset::from_config("config.json", config)?,
        (None, None, Some(spec)) => {
            let without =
                || unknown("a spec does not contain the number of parameters".to_owned(), "give parameters=");
            ModelPreset::from_spec(&spec.0, parameters.ok_or_else(without)?, u64::MAX)
        }
        (None, None, None) => return Err(unknown("no model is given".to_owned(), "name one")),
    };
    model.active_parameters = parameters.unwrap_or(model.active_parameters);
    Ok(model)
}

/// Size and cost of a context's KV, and the level that fits each link, as JSON. Without a profile, sizes are
/// those assumed by `kvasir plan`.
#[pyfunction]
#[pyo3(signature = (name, config, spec, parameters, tokens, bandwidths, slo, gpu, gpus, profile))]
#[allow(clippy::too_many_arguments, reason = "the arguments of one function of Python's, in its order")]
pub(crate) fn plan_json(
    name: Option<&str>,
    config: Option<&str>,
    spec: Option<&Spec>,
    parameters: Option<f64>,
    tokens: u64,
    bandwidths: Vec<f64>,
    slo: Option<f64>,
    gpu: &str,
    gpus: u32,
    profile: Option<&Profile>,
) -> Result<String, Failure> {
    if tokens == 0 || bandwidths.iter().any(|bits| !(bits.is_finite() && *bits > 0.0)) {
        let message = "tokens and bandwidths must be above 0";
        return Err(Failure::input("invalid_setting", message, "correct the setting"));
    }
    let model = planned_model(name, config, spec, parameters)?;
    let card = plan::gpu(gpu).ok_or_else(|| {
        let message = format!("there is no known GPU {gpu}");
        Failure::input("unknown_gpu", message, "see `kvasir plan --list`")
    })?;
    let level = |bits_per_element, kl| LevelRate { bits_per_element, kl };
    let levels = profile.map_or_else(
        || {
            vec![
                level(Rate::assumed(0.6), None),
                level(Rate::assumed(1.2), None),
                level(Rate::published(2.29), None),
            ]
        },
        |profile| {
            let measured = |rate: f32| Rate::measured(f64::from(rate));
            profile
                .0
                .levels()
                .iter()
                .map(|l| level(measured(l.bits_per_element), l.kl.map(measured)))
                .collect()
        },
    );
    crate::json(&plan::plan(Request {
        levels,
        model,
        tokens,
        chunk_tokens: CHUNK_TOKENS_DEFAULT as u64,
        bandwidths: bandwidths.into_iter().map(Rate::assumed).collect(),
        slo,
        deployment: Deployment { gpus: gpus.max(1), ..Deployment::on(*card) },
    }))
}
