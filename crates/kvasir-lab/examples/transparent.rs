//! The bits of chunks at quality `transparent`: with the profile that a client makes from a model's first cache, and with those
//! that `kvasir profile retrain` would train on stored ones, in its limits without and with `--parameters`.
//!
//! `cargo run --release -p kvasir-lab --example transparent -- kvasir-tiny book.txt code.txt`: a model or its folder, the text
//! whose windows train (but each seventh, which is measured), and texts that are measured only.

use std::{error::Error, io::Write, path::Path, sync::Arc};

use kvasir_cli::training::retraining_recipe;
use kvasir_codec::{
    ChunkEncoder as _, ChunkInput, CpuEncoder, KvBuffer, Profile, Tokens, container::Head, starter,
};
use kvasir_engine::Model;
use kvasir_lab::quality::Text;
use kvasir_train::{TrainingContext, train_transparent};
use kvasir_types::{ChainLink, Level, Loss, Quality};

/// Windows of the first text, and of every other.
const WINDOWS: usize = 60;
const OTHER_WINDOWS: usize = 8;
/// Each of them measures, the others train.
const MEASURED: usize = 7;
const WINDOW_TOKENS: usize = 1_024;
const CHUNK_TOKENS: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, texts @ ..] = &arguments[..] else { return Err("give a model and texts".into()) };
    let model = if name == "kvasir-tiny" { Model::kvasir_tiny()? } else { Model::load(Path::new(name))? };
    let (mut training, mut measured) = (Vec::new(), Vec::new());
    for (index, path) in texts.iter().enumerate() {
        let count = if index == 0 { WINDOWS } else { OTHER_WINDOWS };
        let contexts = contexts(&model, path, count)?;
        let mut kept = Vec::new();
        for (window, context) in contexts.into_iter().enumerate() {
            let trains = index == 0 && !window.is_multiple_of(MEASURED);
            if trains { training.push(context) } else { kept.push(context) }
        }
        measured.push((path, kept));
    }
    let first = training.first().ok_or("give a text")?;
    let first = Bound::new(&model, starter(model.spec(), &first.tokens, 0, &first.kv)?)?;
    writeln!(out, "{} windows of {WINDOW_TOKENS} tokens train", training.len())?;
    for parameters in [None, Some(model.config().parameters())] {
        let recipe = retraining_recipe(model.spec(), parameters);
        let trained = match train_transparent(model.spec(), &training, &recipe, &mut |_, _| ()) {
            Ok(profile) => Bound::new(&model, profile)?,
            Err(error) => {
                writeln!(out, "no profile for {parameters:?} parameters: {error}")?;
                continue;
            }
        };
        let share = 50.0 * trained.bytes as f64 / model.config().parameters() as f64;
        writeln!(out, "a profile of {} bytes, {share:.1} % of the weights'", trained.bytes)?;
        for (path, contexts) in &measured {
            let row = compare(&model, &first, &trained, contexts)?;
            writeln!(out, "  {path}: {row}")?;
        }
    }
    Ok(())
}

fn contexts(model: &Model, path: &str, count: usize) -> Result<Vec<TrainingContext>, Box<dyn Error>> {
    let text = Text::new(model, path, &std::fs::read_to_string(path)?, count, WINDOW_TOKENS)?;
    let context = |tokens: Vec<u32>| {
        let kv = KvBuffer::from_source(model.spec(), tokens.len(), &model.calculate_kv(&tokens)?);
        Ok(TrainingContext { first_position: 0, tokens, kv })
    };
    text.windows.into_iter().map(|window| context(window.tokens)).collect()
}

/// A profile with its encoder.
struct Bound {
    encoder: CpuEncoder,
    finest: Level,
    bytes: usize,
}

impl Bound {
    fn new(model: &Model, profile: Profile) -> Result<Self, Box<dyn Error>> {
        let finest = Level(profile.lossy_levels().saturating_sub(1) as u8);
        let bytes = profile.to_bytes().len();
        Ok(Self { encoder: CpuEncoder::new(Arc::clone(model.spec()), Arc::new(profile))?, finest, bytes })
    }

    /// Bytes of a chunk, and whether it is transparent.
    fn cost(&self, context: &TrainingContext, start: usize) -> Result<(usize, bool), Box<dyn Error>> {
        let end = (start + CHUNK_TOKENS).min(context.tokens.len());
        let input = ChunkInput {
            tokens: &context.tokens[start..end],
            preceding_token: start.checked_sub(1).map(|before| context.tokens[before]),
            first_position: start as u64,
            link: ChainLink::first([0; 32].into()),
            beneath: Loss::NONE,
            kv: &Tokens::from(&context.kv, start),
        };
        let object = self.encoder.encode(&input)?;
        let error = Head::parse(&object)?.measured().map(|measured| measured.error(self.finest));
        Ok((object.len(), error.is_some_and(|error| error <= Quality::Transparent.error_max())))
    }
}

/// Bits an element of all chunks: with the first profile, with the trained one, and as a client stores them, which takes the
/// first profile where the trained one does not keep the bound.
fn compare(
    model: &Model,
    first: &Bound,
    trained: &Bound,
    contexts: &[TrainingContext],
) -> Result<String, Box<dyn Error>> {
    let (mut chunks, mut missed, mut elements) = (0, 0, 0);
    let (mut before, mut after, mut stored) = (0, 0, 0);
    for context in contexts {
        elements += context.tokens.len() * model.spec().elements_per_token();
        for start in (0..context.tokens.len()).step_by(CHUNK_TOKENS) {
            let ((now, _), (then, is_transparent)) =
                (first.cost(context, start)?, trained.cost(context, start)?);
            chunks += 1;
            missed += usize::from(!is_transparent);
            before += now;
            after += then;
            stored += if is_transparent { then } else { now };
        }
    }
    let bits = |bytes: usize| 8.0 * bytes as f64 / elements as f64;
    let (before, after, stored) = (bits(before), bits(after), bits(stored));
    Ok(format!(
        "first {before:.2}, trained {after:.2}, stored {stored:.2} bits; {missed} of {chunks} chunks with the first"
    ))
}
