//! `kvasir plan`: the size of a KV cache, the cost of keeping it, and the level that fits a link and an SLO.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use kvasir_client::tuning::decoding_cores;
use kvasir_codec::Profile;
use kvasir_model::plan::{
    Deployment, GPUS, LevelRate, LinkPlan, ModelPreset, Plan, Rate, Request, bytes_at, gpu, plan, preset,
    presets,
};
use kvasir_types::{CHUNK_TOKENS_DEFAULT, ModelSpec};
use serde::Serialize;

use crate::{
    decode_speed::{self, LevelSpeed},
    error::{CliError, CliResult, Exit, read_file},
    inputs,
    output::{bytes, columns, print, print_json},
    units,
};

/// Arguments of `kvasir plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// Name of a well-known model (`kvasir plan --list`), or a model spec as JSON.
    #[arg(long, value_name = "NAME|FILE", required_unless_present_any = ["config", "list"])]
    model: Option<String>,
    /// A Hugging Face config.json, or the folder that holds it, instead of a model.
    #[arg(long, value_name = "FILE|FOLDER", conflicts_with = "model")]
    config: Option<PathBuf>,
    /// Print the known models and GPUs, with sources.
    #[arg(long)]
    list: bool,
    /// Tokens of the context.
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..))]
    tokens: u64,
    /// Link bandwidths with units, separated by commas: 3gbit, 400MB/s.
    #[arg(long, value_delimiter = ',', value_parser = units::bandwidth, default_value = "3gbit")]
    bandwidth: Vec<f64>,
    /// Target time to first token, with its unit: 250ms, 1s.
    #[arg(long, value_name = "TIME", value_parser = units::seconds)]
    slo: Option<f64>,
    /// GPU that would otherwise compute the context.
    #[arg(long, default_value = "h100")]
    gpu: String,
    /// GPUs that compute one request together.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    gpus: u32,
    /// Active parameters per token, in 10⁹. Needed with a model spec, which does not contain them.
    #[arg(long, value_name = "BILLIONS", value_parser = units::above_zero)]
    parameters: Option<f64>,
    /// A profile whose measured levels are used, and whose decoding is measured on this machine's CPU. Default: the
    /// shipped profile for kvasir-tiny; assumed levels, and a GPU that nobody measured, for other models.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &PlanArguments) -> CliResult {
    if arguments.list {
        return list(arguments.json);
    }
    let model = model(arguments)?;
    let card = gpu(&arguments.gpu)
        .ok_or_else(|| usage(format!("no known GPU is named {}; see `kvasir plan --list`", arguments.gpu)))?;
    let profile = profile(&model, arguments.profile.as_deref())?;
    let levels = profile.as_ref().map_or_else(|| LevelRate::ASSUMED.to_vec(), |profile| levels(profile));
    // Levels are bits an element; seconds are those of the model that the profile is of.
    let elements = bytes_at(&model, 1).fp8;
    let is_of_model = |profile: &&Profile| decode_speed::elements(profile) as u64 == elements;
    let decoding = profile.as_deref().filter(is_of_model).map(decode_speed::measure).transpose()?;
    let speeds = decoding.as_deref().unwrap_or_default();
    let chunk_tokens = arguments.tokens.min(CHUNK_TOKENS_DEFAULT as u64);
    let decoding_cores =
        (!speeds.is_empty()).then(|| decoding_cores(rayon::current_num_threads(), chunk_tokens));
    let decode_rates = decode_speed::rates(speeds, elements, decoding_cores.unwrap_or(0), levels.len());
    let plan = plan(Request {
        levels,
        model,
        tokens: arguments.tokens,
        chunk_tokens: CHUNK_TOKENS_DEFAULT as u64,
        bandwidths: arguments.bandwidth.iter().map(|bits| Rate::assumed(*bits)).collect(),
        slo: arguments.slo,
        deployment: Deployment { gpus: arguments.gpus, decode_rates, ..Deployment::on(*card) },
    });
    let answer = Answer { plan, decoding, decoding_cores };
    if arguments.json { print_json(&answer) } else { print(&text(&answer)) }
}

/// A plan, and the decoding on this machine.
#[derive(Debug, Serialize)]
struct Answer {
    #[serde(flatten)]
    plan: Plan,
    /// `None` without a profile of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    decoding: Option<Vec<LevelSpeed>>,
    /// Those that the links count; `None` if their decoder is assumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    decoding_cores: Option<usize>,
}

fn usage(message: impl std::fmt::Display) -> CliError {
    CliError::new(Exit::Usage, message, "")
}

fn model(arguments: &PlanArguments) -> CliResult<ModelPreset> {
    if let Some(path) = &arguments.config {
        let (path, config) = inputs::hf_config(path)?;
        let name = path.display().to_string();
        let model = ModelPreset::from_config(&name, &config).map_err(|e| CliError::data(&path, e))?;
        return Ok(with_parameters(model, arguments.parameters));
    }
    let name = arguments.model.as_deref().unwrap_or_default();
    if let Some(known) = preset(name) {
        return Ok(with_parameters(known.clone(), arguments.parameters));
    }
    let path = Path::new(name);
    if !path.exists() {
        return Err(usage(format!("{name} is neither a known model nor a file; see `kvasir plan --list`")));
    }
    let spec: ModelSpec = serde_json::from_slice(&read_file(path)?).map_err(|e| {
        let advice = "Pass a Hugging Face config.json with --config.";
        CliError::new(Exit::Data, format!("{} is not a model spec: {e}", path.display()), advice)
    })?;
    spec.validate().map_err(|e| CliError::data(path, e))?;
    let parameters = arguments
        .parameters
        .ok_or_else(|| usage("a model spec does not contain the number of parameters; add --parameters"))?;
    Ok(ModelPreset::from_spec(&spec, parameters, u64::MAX))
}

fn with_parameters(model: ModelPreset, given: Option<f64>) -> ModelPreset {
    ModelPreset { active_parameters: given.unwrap_or(model.active_parameters), ..model }
}

/// The given profile, or that of the shipped model.
#[cfg_attr(
    not(feature = "demo"),
    allow(unused_variables, reason = "only the shipped model has a profile of its own")
)]
fn profile(model: &ModelPreset, file: Option<&Path>) -> CliResult<Option<Arc<Profile>>> {
    match file {
        Some(path) => inputs::profile(Some(path)).map(Some),
        #[cfg(feature = "demo")]
        None if model.name == "kvasir-tiny" => inputs::profile(None).map(Some),
        None => Ok(None),
    }
}

/// The levels of a profile as training measured them.
fn levels(profile: &Profile) -> Vec<LevelRate> {
    let measured = profile.levels().iter().map(|level| LevelRate {
        bits_per_element: Rate::measured(f64::from(level.bits_per_element)),
        kl: level.kl.map(|kl| Rate::measured(f64::from(kl))),
    });
    measured.collect()
}

fn list(json: bool) -> CliResult {
    if json {
        return print_json(&serde_json::json!({ "models": presets(), "gpus": GPUS }));
    }
    let cells = |a: &str, b: String, c: &str| vec![a.to_owned(), b, c.to_owned()];
    let mut rows = vec![cells("model", "10⁹, active".into(), "source")];
    rows.extend(
        presets()
            .iter()
            .map(|m| cells(&m.name, format!("{:.3}, {:.3}", m.parameters, m.active_parameters), &m.source)),
    );
    rows.push(cells("GPU", "memory, 10¹² FLOP/s".into(), "source"));
    rows.extend(GPUS.iter().map(|g| {
        cells(
            g.name,
            format!("{} GB, {}", g.memory.value / 1e9, g.flops.value / 1e12),
            g.flops.source.as_str(),
        )
    }));
    print(&columns(&rows))
}

fn link_rows(request: &Request, link: &LinkPlan) -> Vec<Vec<String>> {
    let title = format!("over {} gbit/s", link.bandwidth.value / 1e9);
    let header = [title.as_str(), "bytes", "seconds", "fits", "bits/element", "KV decoded"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (index, way) in link.ways.iter().enumerate() {
        let fits = match way.within_slo {
            None => "",
            Some(_) if link.fits == Some(index) => "best",
            Some(true) => "yes",
            Some(false) => "no",
        };
        let mut row = vec![way.name.clone(), bytes(way.bytes), format!("{:.4}", way.seconds), fits.into()];
        if let Some(LevelRate { bits_per_element: bits, .. }) = request.levels.get(index) {
            let decoded = request.deployment.decode_rate_of(index);
            row.push(format!("{:.3} {}", bits.value, bits.source.as_str()));
            row.push(format!("{}/s {}", bytes(decoded.value as u64), decoded.source.as_str()));
        }
        rows.push(row);
    }
    rows
}

/// A line about the levels, the first `levels` ways, that take longer over a link than recomputing; empty if none does.
fn slower_than_recomputing(levels: usize, link: &LinkPlan) -> String {
    let Some((recompute, ways)) = link.ways.split_last() else { return String::new() };
    let slower = ways.iter().take(levels).filter(|way| way.seconds > recompute.seconds);
    let slower: Vec<_> = slower.map(|way| way.name.as_str()).collect();
    match slower.len() {
        0 => String::new(),
        all if all == levels => "\nrecomputing is faster than every level".to_owned(),
        _ => format!("\nrecomputing is faster than {}", slower.join(", ")),
    }
}

/// What limits the plan's validity for the given machines or context.
fn warnings(plan: &Plan) -> String {
    let Request { model, deployment: d, tokens, .. } = &plan.request;
    let mut text = String::new();
    if plan.gpus_needed > u64::from(d.gpus) {
        text += &format!(
            "does not fit  {} of weights ({} bits per parameter) and this KV need {} {}s of {} each, not {}: times below are \
             arithmetic only\n",
            bytes(plan.weight_bytes),
            model.weight_bits,
            plan.gpus_needed,
            d.gpu.name,
            bytes(d.gpu.memory.value as u64),
            d.gpus,
        );
    }
    if *tokens > model.context {
        text += &format!("too long      the model's longest context has {} tokens\n", model.context);
    }
    text
}

/// How fast this machine decodes, and whose decoding the links count.
fn decoding_text(Answer { decoding, decoding_cores, .. }: &Answer) -> String {
    let assumed = "the links above assume a GPU that nobody measured; a CPU core is far slower";
    match (decoding, decoding_cores) {
        (Some(levels), Some(cores)) => format!(
            "{}\nthe links above count the cores that a load uses here: {cores}; a GPU's decoding is not measured",
            decode_speed::table(levels)
        ),
        (Some(levels), None) => format!("{}: {assumed}", decode_speed::table(levels)),
        (None, _) => {
            format!(
                "decoding     {assumed}. With a --profile of this model, decoding is measured on this machine"
            )
        }
    }
}

fn text(answer: &Answer) -> String {
    let (plan, decoding) = (&answer.plan, decoding_text(answer));
    let r = &plan.request;
    let d = &r.deployment;
    let size = |kv: &kvasir_model::plan::KvBytes| {
        format!("{} fp16, {} fp8, {} int4", bytes(kv.fp16), bytes(kv.fp8), bytes(kv.int4))
    };
    let link =
        |link: &LinkPlan| columns(&link_rows(r, link)) + &slower_than_recomputing(r.levels.len(), link);
    let rows: Vec<_> = plan.links.iter().map(link).collect();
    let reuses = plan.break_even_reuses.map_or_else(
        || "never: loading costs as much as recomputing".to_owned(),
        |n| format!("above {n:.4} reuses per month"),
    );
    format!(
        "{} ({}), {} tokens\n{}KV per token {}\nKV           {}\nstored       {} in all levels\n\n{}\n\n\
         {decoding}\n\n\
         recompute    {:.3e} FLOP, {:.4} s, ${:.6} on {} {} ({} % of {:.0} TFLOP/s, the share {})\n\
         a month      ${:.6} to keep, ${:.8} a load\nkeeping pays {reuses}\n\
         Rates: bandwidth as given; GPU-hour ${} {}; GB-month ${} {}; round trip {} s {}.",
        r.model.name,
        r.model.source,
        r.tokens,
        warnings(plan),
        size(&plan.bytes_per_token),
        size(&plan.bytes),
        bytes(plan.bytes_stored),
        rows.join("\n\n"),
        plan.prefill_flops,
        plan.recompute_seconds,
        plan.recompute_cost,
        d.gpus,
        d.gpu.name,
        d.prefill_efficiency.value * 100.0,
        d.gpu.flops.value / 1e12,
        d.prefill_efficiency.source.as_str(),
        plan.month_cost,
        plan.load_cost,
        d.gpu_hour.value,
        d.gpu_hour.source.as_str(),
        d.gigabyte_month.value,
        d.gigabyte_month.source.as_str(),
        d.round_trip.value,
        d.round_trip.source.as_str(),
    )
}

#[cfg(test)]
mod tests {
    use kvasir_model::plan::Way;

    use super::*;

    #[test]
    fn it_says_what_recomputing_is_faster_than() {
        let way =
            |(name, seconds): (&str, f64)| Way { name: name.to_owned(), bytes: 0, seconds, within_slo: None };
        let said = |recompute: f64| {
            let ways = [("level 0", 0.2), ("level 1", 0.5), ("level 2", 0.9), ("fp16", 0.1)];
            let ways = ways.into_iter().chain([("recompute", recompute)]).map(way).collect();
            slower_than_recomputing(3, &LinkPlan { bandwidth: Rate::assumed(1e9), ways, fits: None })
        };
        assert_eq!((said(1.0), said(0.9)), (String::new(), String::new()));
        assert_eq!(said(0.4).trim_start(), "recomputing is faster than level 1, level 2");
        assert_eq!(said(0.15).trim_start(), "recomputing is faster than every level");
    }
}
