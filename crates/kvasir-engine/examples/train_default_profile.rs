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
    Profile,
    train::{BasisRecipe, Recipe, train_calibrated},
};
use kvasir_engine::{
    Model,
    quality::{LevelQuality, measure_levels},
    training::TrainingSet,
};

type AnyError = Box<dyn std::error::Error>;

/// Tokens that go through the codec; the rest of a window judges them.
const PREFIX: usize = 768;

struct Arguments {
    out: String,
    train: Vec<String>,
    held_out: Vec<String>,
    recipe: BasisRecipe,
    contexts: usize,
    own: usize,
    prefix: usize,
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
        print_levels(path, &measure_levels(&model, &profile, &contexts, arguments.prefix)?);
    }
    Ok(())
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, AnyError> {
    let out =
        words.next().ok_or("usage: OUT.kvp --train FILE… --held-out FILE… [--rank N] [--contexts N]")?;
    let (train, held_out) = (Vec::new(), Vec::new());
    let mut arguments = Arguments {
        out,
        train,
        held_out,
        recipe: BasisRecipe::default(),
        contexts: 6,
        own: 0,
        prefix: PREFIX,
        finest_kl: 3e-4,
    };
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
            "--table-bits" => arguments.recipe.table_bits = value()?.parse()?,
            "--budget" => arguments.recipe.budget_bytes = Some(value()?.parse()?),
            "--own" => arguments.own = value()?.parse()?,
            "--prefix" => arguments.prefix = value()?.parse()?,
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
    let mut texts = Vec::new();
    for path in &arguments.train {
        texts.extend(windows(model, path, arguments.contexts)?);
    }
    texts.extend(model.sample_texts(arguments.own, 1024, 1, &mut |_| ())?);
    let mut set = TrainingSet::of_texts(model, texts, &mut |_| ())?;
    eprintln!("{} training contexts", set.contexts.len());
    let start = std::time::Instant::now();
    let mut progress =
        |what: &str, part: f32| eprintln!("{:?} {:3.0} % {what}", start.elapsed(), part * 100.0);
    let recipe = Recipe::Basis(arguments.recipe.clone());
    let (contexts, oracle) = (&set.contexts, &mut set.oracle);
    let profile =
        train_calibrated(model.spec(), contexts, &recipe, oracle, arguments.finest_kl, &mut progress)?;
    match set.oracle.error() {
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
