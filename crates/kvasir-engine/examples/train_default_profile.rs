//! Trains the profile that ships with kvasir-tiny and reports what its levels cost.
//!
//! ```text
//! cargo run --release -p kvasir-engine --example train_default_profile -- OUT.kvp \
//!     --train book1.txt … --held-out other.txt …  [--rank N] [--contexts N] [--kl 3e-4]
//! ```
//! Training and calibration windows alternate within the training texts, so the finest step is chosen on text
//! that the basis has not seen; the report is over the held-out files, which neither has.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::{path::Path, sync::Arc};

use kvasir_codec::{
    KvBuffer, Profile,
    train::{BasisRecipe, Recipe, TrainingContext, train_calibrated},
};
use kvasir_engine::{
    Model,
    quality::{KlOracle, LevelQuality, measure_levels},
};

type AnyError = Box<dyn std::error::Error>;

/// Contexts that calibrate the finest step: each costs five rounds of coding.
const JUDGES: usize = 4;
/// Tokens that go through the codec; the rest of a window judges them.
const PREFIX: usize = 768;

struct Arguments {
    out: String,
    train: Vec<String>,
    held_out: Vec<String>,
    recipe: BasisRecipe,
    contexts: usize,
    finest_kl: f32,
}

fn main() -> Result<(), AnyError> {
    let arguments = parse(std::env::args().skip(1))?;
    let model = Model::kvasir_tiny()?;
    let profile = train(&model, &arguments)?;
    std::fs::write(&arguments.out, profile.to_bytes())?;
    println!("{}: {} bytes, {}", arguments.out, profile.to_bytes().len(), profile.hash());
    let profile = Arc::new(profile);
    for path in &arguments.held_out {
        let windows = windows(&model, path, 4)?;
        let contexts: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        print_levels(path, &measure_levels(&model, &profile, &contexts, PREFIX)?);
    }
    Ok(())
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, AnyError> {
    let out =
        words.next().ok_or("usage: OUT.kvp --train FILE… --held-out FILE… [--rank N] [--contexts N]")?;
    let (train, held_out) = (Vec::new(), Vec::new());
    let mut arguments =
        Arguments { out, train, held_out, recipe: BasisRecipe::default(), contexts: 6, finest_kl: 3e-4 };
    let mut list = String::new();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--train" | "--held-out" => list.clone_from(&word),
            "--rank" => arguments.recipe.rank_max = Some(value()?.parse()?),
            "--scope-layers" => arguments.recipe.scope_layers = Some(value()?.parse()?),
            "--factors" => arguments.recipe.token_factors[0] = value()?.parse()?,
            "--factors-before" => arguments.recipe.token_factors[1] = value()?.parse()?,
            "--exact" => arguments.recipe.exact_tokens = Some(value()?.parse()?),
            "--contexts" => arguments.contexts = value()?.parse()?,
            "--kl" => arguments.finest_kl = value()?.parse()?,
            _ if list == "--train" => arguments.train.push(word),
            _ if list == "--held-out" => arguments.held_out.push(word),
            _ => return Err(format!("unexpected {word}").into()),
        }
    }
    Ok(arguments)
}

fn train(model: &Model, arguments: &Arguments) -> Result<Profile, AnyError> {
    let (mut contexts, mut judges) = (Vec::new(), Vec::new());
    for path in &arguments.train {
        for (index, tokens) in windows(model, path, arguments.contexts + 1)?.into_iter().enumerate() {
            if index == arguments.contexts / 2 {
                judges.push(tokens);
                continue;
            }
            let kv = KvBuffer::from_source(model.spec(), tokens.len(), &model.calculate_kv(&tokens)?);
            contexts.push(TrainingContext { tokens, kv });
        }
    }
    let stride = judges.len().div_ceil(JUDGES);
    let judges: Vec<_> = judges.into_iter().step_by(stride.max(1)).collect();
    eprintln!("{} training contexts, {} to calibrate on", contexts.len(), judges.len());
    let mut oracle = KlOracle::new(model, judges, PREFIX);
    let mut progress = |what: &str, part: f32| eprintln!("{:3.0} % {what}", part * 100.0);
    let recipe = Recipe::Basis(arguments.recipe.clone());
    let profile =
        train_calibrated(model.spec(), &contexts, &recipe, &mut oracle, arguments.finest_kl, &mut progress)?;
    match oracle.error() {
        Some(error) => Err(format!("calibration failed: {error}").into()),
        None => Ok(profile),
    }
}

/// `count` windows of one context each, evenly spread over a text; fewer where it is shorter.
fn windows(model: &Model, path: &str, count: usize) -> Result<Vec<Vec<u32>>, AnyError> {
    let tokens = model.tokenizer().encode(&std::fs::read_to_string(path)?)?;
    let size = model.config().context;
    let count = count.min(tokens.len() / size);
    if count == 0 {
        return Err(format!("{} has fewer than {size} tokens", Path::new(path).display()).into());
    }
    let stride = (tokens.len() - size) / count.max(2).saturating_sub(1);
    Ok((0..count).map(|i| tokens[i * stride..][..size].to_vec()).collect())
}

fn print_levels(path: &str, levels: &[LevelQuality]) {
    println!("\n{path}: perplexity {:.2} with the exact cache", levels[0].quality.perplexity_exact);
    println!(
        "| level | bits/element | KL, nats a token | perplexity | top-1 agreement |\n|---|---|---|---|---|"
    );
    for LevelQuality { level, bits_per_element, quality: q, .. } in levels {
        println!(
            "| {level} | {bits_per_element:.3} | {:.2e} ± {:.0e} | {:.3} | {:.2} % ({:.2}–{:.2}) |",
            q.kl.mean,
            q.kl.high - q.kl.mean,
            q.perplexity_lossy,
            q.top1_agreement.mean * 100.0,
            q.top1_agreement.low * 100.0,
            q.top1_agreement.high * 100.0,
        );
    }
}
