//! The cost of keeping a cache, and the level that fits a link: arithmetic that uses no tenant's data except
//! a model's spec and levels.

use axum::{Json, body::Body, extract::State};
use kvasir_api::{
    PLAN_BANDWIDTHS_MAX, PlanBytes, PlanGpu, PlanLevel, PlanLink, PlanModel, PlanNumber, PlanOptions,
    PlanRate, PlanRequest, PlanResponse, PlanWay, routes,
};
use kvasir_model::plan::{
    Deployment, GPUS, KvBytes, LevelRate, LinkPlan, ModelPreset, Plan, Rate, Request, gpu, plan, preset,
    presets,
};
use kvasir_types::CHUNK_TOKENS_DEFAULT;

use super::body;
use crate::{api_error::ApiError, auth::Principal, limits, state::AppState};

/// Default number of tokens of a context.
const TOKENS: u64 = 8_192;
/// Default bandwidth of a link, in bits per second.
const BANDWIDTH: f64 = 3e9;
/// Default GPU.
const GPU: &str = "h100";

/// The models and GPUs that a plan may use.
#[utoipa::path(get, path = routes::PLAN, operation_id = "list_plan_options", tag = "service",
    responses((status = 200, description = "models and GPUs", body = PlanOptions)))]
pub(in crate::handlers) async fn options() -> Json<PlanOptions> {
    let model = |model: &ModelPreset| PlanModel {
        name: model.name.to_string(),
        parameters: model.parameters,
        active_parameters: model.active_parameters,
        context_tokens: known(model.context),
        source: model.source.to_string(),
    };
    let gpu = |gpu: &kvasir_model::plan::Gpu| PlanGpu {
        name: gpu.name.to_owned(),
        memory_bytes: gpu.memory.value as u64,
        flops: gpu.flops.value,
        usd_per_hour: gpu.hour.value,
    };
    Json(PlanOptions { models: presets().iter().map(model).collect(), gpus: GPUS.iter().map(gpu).collect() })
}

/// The size of a model's cache, the cost of keeping it, when that pays, and the level that fits links and a
/// deadline.
#[utoipa::path(post, path = routes::PLAN, operation_id = "plan", tag = "service", request_body = PlanRequest,
    responses((status = 200, description = "the plan", body = PlanResponse)))]
pub(in crate::handlers) async fn post(
    State(state): State<AppState>,
    principal: Principal,
    request_body: Body,
) -> Result<Json<PlanResponse>, ApiError> {
    let asked: PlanRequest = body::json(request_body).await?;
    let request = Request {
        model: model(&state, &principal, &asked).await?,
        levels: levels(&state, &principal, &asked).await?,
        tokens: within(asked.tokens.unwrap_or(TOKENS), 1, limits::PLAN_TOKENS_MAX, "tokens")?,
        chunk_tokens: CHUNK_TOKENS_DEFAULT as u64,
        bandwidths: bandwidths(&asked)?,
        slo: asked.slo_s.map(|slo| positive(slo, "slo_s")).transpose()?,
        deployment: deployment(&asked)?,
    };
    Ok(Json(response(plan(request))))
}

async fn model(
    state: &AppState,
    principal: &Principal,
    asked: &PlanRequest,
) -> Result<ModelPreset, ApiError> {
    let parameters = asked.parameters.map(|given| positive(given, "parameters")).transpose()?;
    let mut model = match (&asked.model, &asked.model_id) {
        (Some(name), None) => preset(name).cloned().ok_or_else(|| {
            let detail = format!("there is no well-known model {name:?}; GET {} lists them", routes::PLAN);
            ApiError::bad_request(detail)
        })?,
        (None, Some(model_id)) => {
            let spec = state.storage()?.catalog().model(&principal.tenant, model_id).await?;
            let parameters = parameters.ok_or_else(|| {
                ApiError::bad_request(
                    "a registered model's spec does not contain its number of parameters; send `parameters`",
                )
            })?;
            ModelPreset::from_spec(&spec, parameters, u64::MAX)
        }
        _ => return Err(ApiError::bad_request("name the model by either `model` or `model_id`")),
    };
    model.active_parameters = parameters.unwrap_or(model.active_parameters);
    Ok(model)
}

/// The measured levels of a profile, or the assumed ones.
async fn levels(
    state: &AppState,
    principal: &Principal,
    asked: &PlanRequest,
) -> Result<Vec<LevelRate>, ApiError> {
    let Some(profile_hash) = &asked.profile_hash else { return Ok(LevelRate::ASSUMED.to_vec()) };
    let Some(model_id) = &asked.model_id else {
        return Err(ApiError::bad_request("a profile belongs to a registered model; send its `model_id`"));
    };
    let profile =
        state.storage()?.catalog().profile_levels(&principal.tenant, model_id, profile_hash).await?;
    if profile.levels.is_empty() {
        return Err(ApiError::bad_request("the service cannot read the levels of this profile"));
    }
    let measured = profile.levels.iter().map(|level| LevelRate {
        bits_per_element: Rate::measured(level.bits_per_element.into()),
        kl: level.kl.map(|kl| Rate::measured(kl.into())),
    });
    Ok(measured.collect())
}

fn bandwidths(asked: &PlanRequest) -> Result<Vec<Rate>, ApiError> {
    if asked.bandwidths.len() > PLAN_BANDWIDTHS_MAX {
        return Err(ApiError::bad_request(format!(
            "at most {PLAN_BANDWIDTHS_MAX} bandwidths in one request"
        )));
    }
    if asked.bandwidths.is_empty() {
        return Ok(vec![Rate::assumed(BANDWIDTH)]);
    }
    asked.bandwidths.iter().map(|bits| positive(*bits, "bandwidths").map(Rate::assumed)).collect()
}

fn deployment(asked: &PlanRequest) -> Result<Deployment, ApiError> {
    let name = asked.gpu.as_deref().unwrap_or(GPU);
    let card = gpu(name).ok_or_else(|| {
        ApiError::bad_request(format!("there is no known GPU {name:?}; GET {} lists them", routes::PLAN))
    })?;
    let gpus = within(asked.gpus.unwrap_or(1).into(), 1, limits::PLAN_GPUS_MAX, "gpus")?;
    Ok(Deployment { gpus: u32::try_from(gpus).unwrap_or(1), ..Deployment::on(*card) })
}

fn within(value: u64, least: u64, most: u64, name: &str) -> Result<u64, ApiError> {
    let is_within = (least..=most).contains(&value);
    is_within
        .then_some(value)
        .ok_or_else(|| ApiError::bad_request(format!("{name} must be {least} to {most}")))
}

/// A number above zero, small enough that results remain finite.
fn positive(value: f64, name: &str) -> Result<f64, ApiError> {
    let is_sound = (1e-9..=1e18).contains(&value);
    is_sound
        .then_some(value)
        .ok_or_else(|| ApiError::bad_request(format!("{name} must be a number from 1e-9 to 1e18")))
}

/// A maximum context; the largest number stands for unknown.
fn known(context: u64) -> Option<u64> {
    (context != u64::MAX).then_some(context)
}

fn response(plan: Plan) -> PlanResponse {
    let Request { model, tokens, levels, deployment: d, .. } = plan.request;
    let level = |level: &LevelRate| PlanLevel {
        bits_per_element: number(level.bits_per_element),
        kl: level.kl.map(number),
    };
    let rate = |name: &str, rate: Rate, unit: &str| PlanRate {
        name: name.to_owned(),
        value: rate.value,
        unit: unit.to_owned(),
        source: rate.source.as_str().to_owned(),
    };
    PlanResponse {
        model: model.name.into_owned(),
        model_source: model.source.into_owned(),
        context_tokens: known(model.context),
        tokens,
        bytes_per_token: bytes(plan.bytes_per_token),
        bytes: bytes(plan.bytes),
        bytes_stored: plan.bytes_stored,
        weight_bytes: plan.weight_bytes,
        gpus_needed: plan.gpus_needed,
        recompute_s: plan.recompute_seconds,
        recompute_usd: plan.recompute_cost,
        load_usd: plan.load_cost,
        month_usd: plan.month_cost,
        break_even_reuses: plan.break_even_reuses,
        levels: levels.iter().map(level).collect(),
        links: plan.links.into_iter().map(link).collect(),
        rates: vec![
            rate("gpu_flops", d.gpu.flops, "FLOP/s"),
            rate("gpu_memory", d.gpu.memory, "bytes"),
            rate("gpu_hour", d.gpu_hour, "USD"),
            rate("prefill_efficiency", d.prefill_efficiency, "share"),
            rate("gigabyte_month", d.gigabyte_month, "USD"),
            rate("read_request", d.read_request, "USD"),
            rate("gigabyte_read", d.gigabyte_read, "USD"),
            rate("round_trip", d.round_trip, "seconds"),
            rate("decode_rate", d.decode_rate, "bytes/s"),
        ],
    }
}

fn number(rate: Rate) -> PlanNumber {
    PlanNumber { value: rate.value, source: rate.source.as_str().to_owned() }
}

const fn bytes(kv: KvBytes) -> PlanBytes {
    PlanBytes { fp16: kv.fp16, fp8: kv.fp8, int4: kv.int4 }
}

fn link(link: LinkPlan) -> PlanLink {
    let way = |way: kvasir_model::plan::Way| PlanWay {
        name: way.name,
        bytes: way.bytes,
        seconds: way.seconds,
        within_slo: way.within_slo,
    };
    PlanLink {
        bits_per_second: link.bandwidth.value,
        ways: link.ways.into_iter().map(way).collect(),
        fits: link.fits,
    }
}
