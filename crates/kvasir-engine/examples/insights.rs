//! CacheGen's three observations and the token budgets, measured on kvasir-tiny over given texts.
//!
//! ```text
//! cargo run --release -p kvasir-engine --example insights -- book.txt document.md … [--json]
//! ```
#![allow(clippy::print_stdout, reason = "a command line tool")]

use kvasir_codec::KvBuffer;
use kvasir_engine::{
    Logits, Model, PagedKv,
    budget::{
        H2o, Keep, PrefixStatistics, PromptCompressor, Scissorhands, SlidingWindow, StreamingLlm,
        SurprisalCompressor, Thinned, TokenPolicy, squeeze,
    },
    insights::{delta_variances, grouped_entropy, layer_sensitivity},
    quality::{Quality, Samples, perplexity},
};
use kvasir_types::Plane;
use serde_json::json;

type AnyError = Box<dyn std::error::Error>;

/// Tokens of the prefix that is treated; the next [`SUFFIX`] judge it.
const PREFIX: usize = 768;
const SUFFIX: usize = 256;
/// Contexts taken from each text.
const WINDOWS: usize = 4;

fn main() -> Result<(), AnyError> {
    let (json, paths): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|a| a == "--json");
    let model = Model::kvasir_tiny()?;
    let mut contexts = Vec::new();
    for path in &paths {
        let tokens = model.tokenizer().encode(&std::fs::read_to_string(path)?)?;
        let stride = tokens.len().saturating_sub(PREFIX + SUFFIX) / (WINDOWS - 1);
        let windows = (0..WINDOWS).map_while(|i| tokens.get(i * stride..i * stride + PREFIX + SUFFIX));
        contexts.extend(windows.map(<[u32]>::to_vec));
    }
    if contexts.is_empty() {
        return Err("give at least one text of 1,024 tokens".into());
    }
    let cases = contexts.iter().map(|c| Case::new(&model, c)).collect::<Result<Vec<_>, _>>()?;
    let report = json!({
        "contexts": contexts.len(), "prefix": PREFIX, "suffix": SUFFIX,
        "insights": insights(&model, &contexts[0])?,
        "budgets": budgets(&model, &cases)?,
        "squeeze_p": squeeze_sweep(&model, &cases)?,
        "text_dropping": text_dropping(&model, &contexts)?,
    });
    if json.is_empty() {
        print_tables(&report);
    } else {
        println!("{report:#}");
    }
    Ok(())
}

fn insights(model: &Model, context: &[u32]) -> Result<serde_json::Value, AnyError> {
    let (before, suffix) = context.split_at(PREFIX);
    let paged = model.calculate_kv(before)?;
    let kv = KvBuffer::from_source(model.spec(), PREFIX, &paged);
    let rows = delta_variances(model.spec(), &kv);
    let ratio = |plane: Plane, of: fn(&kvasir_engine::insights::DeltaVariance) -> f64| {
        let own = rows.iter().filter(|r| r.plane == plane);
        own.clone().map(|r| of(r) / r.deltas).sum::<f64>() / own.count() as f64
    };
    let sensitivity = layer_sensitivity(model, &paged, suffix, 1, 1.0)?;
    Ok(json!({
        "variance_over_delta_variance": {
            "k_pooled": ratio(Plane::K, |r| r.pooled), "v_pooled": ratio(Plane::V, |r| r.pooled),
            "k_along_tokens": ratio(Plane::K, |r| r.along_tokens), "v_along_tokens": ratio(Plane::V, |r| r.along_tokens),
        },
        "layers": rows,
        "kl_when_one_layer_is_rounded_to_1_sigma":
            sensitivity.iter().map(|row| row.quality.kl.mean).collect::<Vec<_>>(),
        "entropy_bits_step_0.5": grouped_entropy(model.spec(), &kv, 0.5),
    }))
}

fn policies() -> Vec<Box<dyn TokenPolicy>> {
    vec![
        Box::new(SlidingWindow),
        Box::new(StreamingLlm { sinks: 4 }),
        Box::new(H2o { recent_share: 0.5 }),
        Box::new(Scissorhands { recent_share: 0.5 }),
    ]
}

/// A context whose prefix was prefilled and watched once.
struct Case<'a> {
    kv: PagedKv,
    statistics: PrefixStatistics,
    suffix: &'a [u32],
    exact: Logits,
}

impl<'a> Case<'a> {
    fn new(model: &Model, context: &'a [u32]) -> Result<Self, AnyError> {
        let (before, suffix) = context.split_at(PREFIX);
        let mut kv = model.new_kv()?;
        let statistics = PrefixStatistics::gather(model, &mut kv, before, 128)?;
        let exact = model.logits(&mut kv.fork(PREFIX)?, suffix)?;
        Ok(Self { kv, statistics, suffix, exact })
    }
}

/// Quality of a policy over all cases at a mean budget of `share` of the prefix, squeezed by `p` if given.
fn thinned(
    model: &Model,
    cases: &[Case<'_>],
    policy: &dyn TokenPolicy,
    share: f64,
    p: Option<f64>,
) -> Result<(Quality, f64), AnyError> {
    let (mut samples, mut kept) = (Samples::default(), 0.0);
    let budget = (PREFIX as f64 * share).round() as usize;
    for case in cases {
        let budgets = match p {
            Some(p) => squeeze(&case.statistics.similarities(), budget, p),
            None => vec![budget; case.statistics.layers()],
        };
        let keep = Keep::choose(&case.statistics, policy, &budgets);
        let lossy = model.logits_observed(&mut case.kv.fork(PREFIX)?, case.suffix, &mut Thinned(&keep))?;
        samples.add(&case.exact, &lossy, case.suffix);
        kept += keep.share() / cases.len() as f64;
    }
    Ok((samples.summary(), kept))
}

fn budgets(model: &Model, cases: &[Case<'_>]) -> Result<Vec<serde_json::Value>, AnyError> {
    let mut rows = Vec::new();
    for policy in policies() {
        for share in [0.1, 0.2, 0.3, 0.5, 0.7, 1.0] {
            for p in [None, Some(0.35)] {
                let (quality, kept) = thinned(model, cases, &*policy, share, p)?;
                rows.push(json!({
                    "policy": policy.name(), "budget": share, "squeeze_p": p, "kept": kept, "quality": quality,
                }));
            }
        }
    }
    Ok(rows)
}

fn squeeze_sweep(model: &Model, cases: &[Case<'_>]) -> Result<Vec<serde_json::Value>, AnyError> {
    let mut rows = Vec::new();
    for p in [0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0] {
        let (quality, kept) = thinned(model, cases, &StreamingLlm { sinks: 4 }, 0.3, Some(p))?;
        rows.push(json!({ "p": p, "kept": kept, "quality": quality }));
    }
    Ok(rows)
}

/// The suffix's perplexity over a shortened prefix text.
fn text_dropping(model: &Model, contexts: &[Vec<u32>]) -> Result<Vec<serde_json::Value>, AnyError> {
    let mut rows = Vec::new();
    for share in [0.3, 0.5, 0.8, 1.0] {
        let (mut exact, mut lossy) = (0.0, 0.0);
        for context in contexts {
            let (before, suffix) = context.split_at(PREFIX);
            let shorter = SurprisalCompressor { model }.compress(before, share)?;
            exact += suffix_nats(model, before, suffix)?;
            lossy += suffix_nats(model, &shorter, suffix)?;
        }
        let n = contexts.len() as f64;
        rows.push(json!({
            "kept": share, "perplexity_exact": (exact / n).exp(), "perplexity": (lossy / n).exp(),
            "perplexity_without_prefix": perplexity(model, &contexts[0][PREFIX..])?,
        }));
    }
    Ok(rows)
}

fn suffix_nats(model: &Model, prefix: &[u32], suffix: &[u32]) -> Result<f64, AnyError> {
    let logits = model.logits(&mut model.calculate_kv(prefix)?, suffix)?;
    let mut alone = Samples::default();
    alone.add(&logits, &logits, suffix);
    Ok(alone.summary().perplexity_exact.ln())
}

fn print_tables(report: &serde_json::Value) {
    println!("{:#}", report["insights"]);
    println!("| policy | budget | squeeze | kept | KL | perplexity | top-1 |\n|---|---|---|---|---|---|---|");
    for row in report["budgets"].as_array().into_iter().flatten() {
        print_row(row["policy"].as_str().unwrap_or_default(), &row["budget"], &row["squeeze_p"], row);
    }
    println!("\nSqueezeAttention over StreamingLLM at 30 %, by p:");
    for row in report["squeeze_p"].as_array().into_iter().flatten() {
        print_row("streaming_llm", &json!(0.3), &row["p"], row);
    }
    println!("\nText dropped by surprisal: {:#}", report["text_dropping"]);
}

fn print_row(name: &str, budget: &serde_json::Value, p: &serde_json::Value, row: &serde_json::Value) {
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
    let quality = &row["quality"];
    println!(
        "| {name} | {:.0} % | {p} | {:.1} % | {:.4} | {:.2} ({:.2}) | {:.1} % |",
        number(budget) * 100.0,
        number(&row["kept"]) * 100.0,
        number(&quality["kl"]["mean"]),
        number(&quality["perplexity_lossy"]),
        number(&quality["perplexity_exact"]),
        number(&quality["top1_agreement"]["mean"]) * 100.0,
    );
}
