//! The formulas.

use kvasir_types::KvLayout;
use serde::Serialize;

use super::{LevelRate, LinkPlan, ModelPreset, Plan, Rate, Request, Way, presets::LayerRun};

/// Bytes of the same KV by element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KvBytes {
    /// fp16 or bf16.
    pub fp16: u64,
    /// fp8 or int8 (scales not counted).
    pub fp8: u64,
    /// int4 (scales not counted).
    pub int4: u64,
}

impl KvBytes {
    fn of(elements: u64) -> Self {
        Self { fp16: elements.saturating_mul(2), fp8: elements, int4: elements.div_ceil(2) }
    }
}

/// Elements of one layer of a run for a context.
fn layer_elements(run: &LayerRun, tokens: u64) -> u64 {
    let per_token: u64 = run.layout.planes().iter().map(|(heads, dim)| (heads * dim) as u64).sum();
    let held = match run.layout {
        KvLayout::SlidingWindow { window, .. } => tokens.min(u64::from(window)),
        KvLayout::Gqa { .. } | KvLayout::Mla { .. } | KvLayout::None => tokens,
    };
    per_token.saturating_mul(held)
}

fn elements_at(model: &ModelPreset, tokens: u64) -> u64 {
    let run = |run: &LayerRun| u64::from(run.count).saturating_mul(layer_elements(run, tokens));
    model.layers.iter().map(run).fold(0, u64::saturating_add)
}

/// Bytes of a model's KV after `tokens` tokens.
pub fn bytes_at(model: &ModelPreset, tokens: u64) -> KvBytes {
    KvBytes::of(elements_at(model, tokens))
}

/// FLOP of a prefill: weights, and causal attention (2 FLOP × scores and values × half the square).
pub fn prefill_flops(model: &ModelPreset, tokens: u64) -> f64 {
    let tokens_f = tokens as f64;
    let pairs = |run: &LayerRun| match run.layout {
        KvLayout::SlidingWindow { window, .. } if u64::from(window) < tokens => {
            let w = f64::from(window);
            w * tokens_f - w * w / 2.0
        }
        KvLayout::None => 0.0,
        _ => tokens_f * tokens_f / 2.0,
    };
    let attention: f64 = model.layers.iter().map(|run| f64::from(run.count) * pairs(run)).sum();
    2.0 * model.active_parameters * 1e9 * tokens_f + 4.0 * model.query_elements as f64 * attention
}

/// Computes the plan of a request.
pub fn plan(request: Request) -> Plan {
    let Request { model, deployment: d, tokens, .. } = &request;
    let elements = elements_at(model, *tokens);
    let bytes = KvBytes::of(elements);
    let bytes_stored = request.levels.last().map_or(bytes.fp16, |level| level_bytes(elements, level));

    let flops = prefill_flops(model, *tokens);
    let peak = d.gpu.flops.value * f64::from(d.gpus) * d.prefill_efficiency.value;
    let recompute_seconds = flops / peak;
    let recompute_cost = recompute_seconds / 3600.0 * d.gpu_hour.value * f64::from(d.gpus);
    let reads = tokens.div_ceil(request.chunk_tokens.max(1)) as f64;
    let load_cost = reads * d.read_request.value + bytes_stored as f64 / 1e9 * d.gigabyte_read.value;
    let month_cost = bytes_stored as f64 / 1e9 * d.gigabyte_month.value;
    let saved = recompute_cost - load_cost;

    let weight_bytes = (model.parameters * 1e9 * model.weight_bits / 8.0) as u64;
    let gpus_needed = (weight_bytes.saturating_add(bytes.fp16) as f64 / d.gpu.memory.value).ceil() as u64;
    let context = Context { elements, bytes, recompute_seconds };
    let links =
        request.bandwidths.iter().map(|bandwidth| link_plan(&request, &context, *bandwidth)).collect();
    Plan {
        bytes_per_token: KvBytes::of(elements_at(model, 1)),
        bytes,
        bytes_stored,
        weight_bytes,
        gpus_needed,
        prefill_flops: flops,
        recompute_seconds,
        recompute_cost,
        load_cost,
        month_cost,
        break_even_reuses: (saved > 0.0).then(|| month_cost / saved),
        links,
        request,
    }
}

/// The values common to all links.
struct Context {
    elements: u64,
    bytes: KvBytes,
    recompute_seconds: f64,
}

/// Bytes of a level.
fn level_bytes(elements: u64, level: &LevelRate) -> u64 {
    (elements as f64 * level.bits_per_element.value / 8.0).ceil() as u64
}

fn link_plan(request: &Request, context: &Context, bandwidth: Rate) -> LinkPlan {
    let d = &request.deployment;
    let within = |seconds: f64| request.slo.map(|slo| seconds <= slo);
    let way = |name: String, bytes_moved: u64, decoder: Option<Rate>| {
        let link = bytes_moved as f64 * 8.0 / bandwidth.value;
        let decode = decoder.map_or(0.0, |rate| context.bytes.fp16 as f64 / rate.value);
        let seconds = d.round_trip.value + link.max(decode);
        Way { name, bytes: bytes_moved, seconds, within_slo: within(seconds) }
    };
    let levels = request.levels.iter().enumerate();
    let mut ways: Vec<Way> = levels
        .map(|(i, level)| {
            let bytes = level_bytes(context.elements, level);
            way(format!("level {i}"), bytes, Some(d.decode_rate_of(i)))
        })
        .collect();
    ways.push(way("int8".to_owned(), context.bytes.fp8, None));
    ways.push(way("fp16".to_owned(), context.bytes.fp16, None));
    let within_slo = within(context.recompute_seconds);
    ways.push(Way {
        name: "recompute".to_owned(),
        bytes: request.tokens.saturating_mul(4),
        seconds: context.recompute_seconds,
        within_slo,
    });
    let fits = best_within(&ways, request.levels.len());
    LinkPlan { bandwidth, ways, fits }
}

/// Recomputing is exact, so it wins if it meets the SLO; else the finest level that does.
fn best_within(ways: &[Way], levels: usize) -> Option<usize> {
    let in_time = |index: &usize| ways[*index].within_slo == Some(true);
    let recompute = ways.len() - 1;
    std::iter::once(recompute).chain((0..levels).rev()).find(in_time)
}
