//! `kvasir profile train`, `kvasir bench quality`, `ablation` and `turns` without the rest of the program, for work on
//! profiles: less to link. Arguments are NAME=VALUE; texts are files of UTF-8.
//!
//! ```text
//! cargo run --release -p kvasir-bench --example quality -- train own=32 seed=1 texts=A,B out=own.kvp
//! … -- rows text=A,B windows=80 from=0 piece=10 train_windows=4 texts=C,D profile=own.kvp codecs=kvasir,lmcache out=rows.json
//! … -- ablation text=A windows=16 own=32 feature=scope out=ablation.json
//! … -- turns text=A windows=8 profile=own.kvp out=turns.json
//! ```
//!
//! `kvasir bench quality --rows rows.json` joins pieces and draws them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example talks on stdout and stderr")]

use std::{collections::HashMap, sync::Arc};

use kvasir_bench::quality::{
    Ground, Options, Row, Suite, SuiteOptions, Text, TurnOptions, ablate, cases, join, measure, turns,
};
use kvasir_codec::{
    KvBuffer, Profile,
    train::{BasisRecipe, Recipe, TrainingContext, train_calibrated},
};
use kvasir_engine::{Model, TINY_PROFILE, quality::metric, training::TrainingSet};
use kvasir_types::Level;
use serde_json::json;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Arguments(HashMap<String, String>);

impl Arguments {
    fn list(&self, name: &str) -> Vec<String> {
        let split = |text: &String| text.split(',').map(str::to_owned).collect();
        self.0.get(name).map_or_else(Vec::new, split)
    }

    fn number<T: std::str::FromStr>(&self, name: &str, default: T) -> T {
        self.0.get(name).and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    fn write(&self, default: &str, bytes: &[u8]) -> Result<()> {
        Ok(std::fs::write(self.0.get("out").map_or(default, String::as_str), bytes)?)
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next().unwrap_or_default();
    let pairs = arguments.filter_map(|a| a.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())));
    let arguments = Arguments(pairs.collect());
    let model = Model::kvasir_tiny()?;
    match task.as_str() {
        "train" => train(&model, &arguments),
        "rows" => rows(&model, &arguments),
        "ablation" => ablation(&model, &arguments),
        "turns" => ten_turns(&model, &arguments),
        other => Err(format!("{other}: one of train, rows, ablation, turns").into()),
    }
}

fn tell() -> impl FnMut(&str, f32) {
    let mut last = String::new();
    move |what, at| {
        if what != last {
            eprintln!("{:3.0} % {what}", at * 100.0);
            what.clone_into(&mut last);
        }
    }
}

/// The model's own texts and those of files take turns.
fn training_texts(model: &Model, arguments: &Arguments) -> Result<Vec<Vec<u32>>> {
    let size = model.config().context;
    let (count, seed) = (arguments.number("own", 32), arguments.number("seed", 1));
    let mut own = model.sample_texts(count, size, seed, &mut |_| ())?.into_iter();
    let mut named = Vec::new();
    for path in arguments.list("texts") {
        let tokens = model.tokenizer().encode(&std::fs::read_to_string(path)?)?;
        named.extend(tokens.chunks_exact(size).map(<[u32]>::to_vec));
    }
    named.truncate(arguments.number("texts_max", usize::MAX));
    let (total, mut named) = (count + named.len(), named.into_iter());
    let turn = |index: usize| {
        if index.is_multiple_of(2) {
            own.next().or_else(|| named.next())
        } else {
            named.next().or_else(|| own.next())
        }
    };
    Ok((0..total).filter_map(turn).collect())
}

/// Windows that are spread over each text, as the command line's `--train-windows`, or what `train` takes.
fn calibration(model: &Model, arguments: &Arguments) -> Result<Vec<Vec<u32>>> {
    let Some(windows) = arguments.0.get("train_windows") else { return training_texts(model, arguments) };
    let mut texts = Vec::new();
    for path in arguments.list("texts") {
        texts.extend(read(model, &path, windows.parse()?)?.windows);
    }
    Ok(texts)
}

fn recipe(model: &Model, arguments: &Arguments) -> Result<BasisRecipe> {
    let parameters = model.parameters() as f64;
    let budget: f64 = arguments.number("budget", 10.0) / 100.0;
    let mut recipe = BasisRecipe {
        token_factors: [arguments.number("current", 128), arguments.number("previous", 64)],
        table_bits: arguments.number("bits", 4),
        exact_tokens: arguments.0.get("exact").and_then(|n| n.parse().ok()),
        budget_bytes: (budget > 0.0).then_some((budget * parameters * 2.0) as usize),
        budget_macs: (budget > 0.0)
            .then_some((arguments.number("flops", 25.0) / 100.0 * parameters) as usize),
        ..BasisRecipe::default()
    };
    if arguments.number("metric", false) {
        recipe.metric = Some(metric(model, &training_texts(model, arguments)?[..8])?);
    }
    Ok(recipe)
}

fn train(model: &Model, arguments: &Arguments) -> Result<()> {
    let recipe = match arguments.0.get("recipe").map(String::as_str) {
        Some("direct") => Recipe::Direct,
        _ => Recipe::Basis(recipe(model, arguments)?),
    };
    let set = TrainingSet::of_texts(model, training_texts(model, arguments)?, &mut |_| ())?;
    let TrainingSet { contexts, mut oracle } = set;
    let finest = arguments.number("finest", 3e-4);
    let profile = train_calibrated(model.spec(), &contexts, &recipe, &mut oracle, finest, &mut tell())?;
    for (level, note) in profile.levels().iter().enumerate() {
        println!("level {level}: {:.3} bits, KL {:?}", note.bits_per_element, note.kl);
    }
    println!("{} bytes, {}", profile.to_bytes().len(), profile.hash());
    arguments.write("profile.kvp", &profile.to_bytes())
}

fn profiles(arguments: &Arguments) -> Result<Vec<Arc<Profile>>> {
    let files = arguments.list("profile");
    if files.is_empty() {
        return Ok(vec![Arc::new(Profile::from_bytes(TINY_PROFILE)?)]);
    }
    files.iter().map(|path| Ok(Arc::new(Profile::from_bytes(&std::fs::read(path)?)?))).collect()
}

fn read(model: &Model, path: &str, windows: usize) -> Result<Text> {
    let domain = std::path::Path::new(path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Text::new(model, &domain, &std::fs::read_to_string(path)?, windows, model.config().context)?)
}

fn rows(model: &Model, arguments: &Arguments) -> Result<()> {
    let (prefix, suffix) = (768, 256);
    let budget_bytes = (0.10 * 2.0 * model.config().parameters() as f64) as u64;
    let codecs = arguments.list("codecs");
    let mut contexts = Vec::new();
    for tokens in calibration(model, arguments)? {
        let kv = KvBuffer::from_source(model.spec(), tokens.len(), &model.calculate_kv(&tokens)?);
        contexts.push(TrainingContext { tokens, kv });
    }
    let options = SuiteOptions { profiles: profiles(arguments)?, budget_bytes, codecs };
    let suite = Suite::new(model.spec(), &contexts, &options, &mut tell())?;
    let lengths: Vec<usize> = arguments.list("chunks").iter().filter_map(|n| n.parse().ok()).collect();
    let chunk_tokens = if lengths.is_empty() { vec![256, prefix] } else { lengths };
    let options = Options { prefix, chunk_tokens };
    let write = |rows: &[Row]| {
        let report = json!({ "model": "kvasir-tiny", "prefix": prefix, "suffix": suffix, "rows": rows });
        arguments.write("rows.json", &serde_json::to_vec_pretty(&report)?)
    };
    let mut rows = Vec::new();
    for (index, path) in arguments.list("text").iter().enumerate() {
        let windows =
            if index == 0 { arguments.number("windows", 80) } else { arguments.number("other", 20) };
        let text = read(model, path, windows)?;
        let last = arguments.number("to", text.windows.len());
        // What is written after every few windows is a result over those so far, and `from` goes on behind it.
        let piece = arguments.number("piece", windows);
        for first in (arguments.number("from", 0)..last).step_by(piece) {
            let part = text.clone().part(first..(first + piece).min(last));
            let ours_only = index > 0 && !arguments.number("all", false);
            let found = suite
                .with_codecs(ours_only, |codecs| measure(model, codecs, &part, &options, &mut |_| ()))?;
            rows = join(rows.into_iter().chain(found))?;
            eprintln!("{}: windows to {}", text.domain, first + part.windows.len());
            write(&rows)?;
        }
    }
    for row in &rows {
        println!(
            "{:14} {:10} {} {:4} {:12} {:.4} bits, KL {:.3e} ({:.2e} to {:.2e})",
            row.codec,
            row.variant,
            row.level,
            row.chunk_tokens,
            row.domain,
            row.bits_per_element,
            row.kl,
            row.kl_low,
            row.kl_high
        );
    }
    Ok(())
}

fn ablation(model: &Model, arguments: &Arguments) -> Result<()> {
    let texts = training_texts(model, arguments)?;
    let moments = metric(model, &texts[..texts.len().min(8)])?;
    let TrainingSet { contexts, mut oracle } = TrainingSet::of_texts(model, texts, &mut |_| ())?;
    let base = BasisRecipe { exact_tokens: Some(0), ..recipe(model, arguments)? };
    let mut cases = cases(&base, model.config().layers, &moments);
    let wanted = arguments.list("feature");
    cases.retain(|c| {
        wanted.is_empty() || c.feature == "base" || wanted.iter().any(|w| c.feature.contains(w.as_str()))
    });
    let path = arguments.0.get("text").ok_or("text=FILE is missing")?;
    let text = read(model, path, arguments.number("windows", 16))?;
    let ground = Ground { model, contexts: &contexts, text: &text };
    let options = Options { prefix: 768, chunk_tokens: vec![768] };
    let found = ablate(&ground, &mut oracle, &cases, (3e-4, &options), &mut tell(), &mut |_| ())?;
    for case in &found {
        println!(
            "{:18} {:60} {:5} kB rank {:4} {:?} finest {:.4} bits {:.3e}",
            case.feature,
            case.name,
            case.profile_bytes / 1000,
            case.rank,
            case.bits,
            case.finest_bits,
            case.finest_kl
        );
    }
    let positions = 256 * text.windows.len();
    let report = json!({ "windows": text.windows.len(), "positions": positions, "ablations": found });
    arguments.write("ablation.json", &serde_json::to_vec_pretty(&report)?)
}

fn ten_turns(model: &Model, arguments: &Arguments) -> Result<()> {
    let profiles = profiles(arguments)?;
    let profile = &profiles[0];
    let path = arguments.0.get("text").ok_or("text=FILE is missing")?;
    let text = read(model, path, arguments.number("windows", 8))?;
    let mut all = Vec::new();
    for level in [Level(1), profile.top_level()] {
        for rule in [false, true] {
            let (first_tokens, turn_tokens, suffix) = (128, 80, 96);
            let options = TurnOptions { first_tokens, turn_tokens, turns: 10, suffix, level, rule };
            let found = turns(model, profile, &text, &options)?;
            for turn in &found {
                println!(
                    "level {} rule {:5} turn {:2}: KL {:.2e} ({:.1e} to {:.1e}), retrieval {:.3}, loaded {:.2}",
                    turn.level,
                    turn.rule,
                    turn.turn,
                    turn.kl,
                    turn.kl_low,
                    turn.kl_high,
                    turn.retrieval,
                    turn.loaded
                );
            }
            all.extend(found);
        }
    }
    arguments.write("turns.json", &serde_json::to_vec_pretty(&all)?)
}
