//! The bits of chunks at quality `transparent`, and whether their rows keep its bound: with the profile that a client makes from a
//! model's first cache, and with those that `kvasir profile retrain` would train on stored ones, in its limits without and with
//! `--parameters`.
//!
//! `cargo run --release -p kvasir-lab --example transparent -- kvasir-tiny 512 8 book.txt code.txt records`: a model or its folder,
//! tokens of a chunk, how many windows of each text are measured, and texts; `records` are generated ones. Of the first text 51
//! more windows, spread over it, train.

use std::{error::Error, io::Write, ops::Range, path::Path, sync::Arc};

use half::{bf16, f16};
use kvasir_cli::training::retraining_recipe;
use kvasir_codec::{
    ChunkDecoder as _, ChunkInput, CpuDecoder, CpuEncoder, KvBuffer, Profile,
    authoring::{Member, ProfileParts},
    container::Head,
    rope::Rotation,
    starter,
};
use kvasir_engine::Model;
use kvasir_lab::quality::{RECORDS, Text};
use kvasir_train::{TrainingContext, train_transparent};
use kvasir_types::{
    ChainLink, KvDtype, KvLayout, Level, LevelError, Loss, ModelSpec, Plane, Quality, SPAN_TOKENS,
};

/// Windows of the first text that train.
const TRAINING: usize = 51;
/// Tokens of a window: of records, lines and questions.
const WINDOW: (usize, usize) = (768, 256);
/// Of generated records.
const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, chunk_tokens, windows, texts @ ..] = &arguments[..] else {
        return Err("give a model, tokens of a chunk, windows of a text, and texts".into());
    };
    let (chunk_tokens, windows) = (chunk_tokens.parse::<usize>()?.max(1), windows.parse::<usize>()?);
    let model = if name == "kvasir-tiny" { Model::kvasir_tiny()? } else { Model::load(Path::new(name))? };
    let (mut training, mut measured) = (Vec::new(), Vec::new());
    for (index, path) in texts.iter().enumerate() {
        let train = if index == 0 { TRAINING } else { 0 };
        let all = windows_of(&model, path, windows + train)?;
        let (count, mut kept) = (all.len(), Vec::new());
        for (window, tokens) in all.into_iter().enumerate() {
            let trains = (window + 1) * train / count > window * train / count;
            if trains { training.push(context(&model, tokens)?) } else { kept.push(tokens) }
        }
        measured.push((path, kept));
    }
    let first = training.first().ok_or("give a text")?;
    let mut profiles = vec![Bound::new(&model, starter(model.spec(), &first.tokens, 0, &first.kv)?)?];
    writeln!(out, "{} windows train", training.len())?;
    for parameters in [None, Some(model.config().parameters())] {
        let recipe = retraining_recipe(parameters);
        match train_transparent(model.spec(), &training, &recipe, &mut |_, _| ()) {
            Ok(profile) => profiles.push(Bound::new(&model, profile)?),
            Err(error) => writeln!(out, "no profile for {parameters:?} parameters: {error}")?,
        }
    }
    drop(training);
    let mut all = vec![Row::default(); profiles.len()];
    for (path, windows) in measured {
        let mut rows = vec![Row::default(); profiles.len()];
        for tokens in windows {
            let context = context(&model, tokens)?;
            for start in (0..context.tokens.len()).step_by(chunk_tokens) {
                let chunk = start..(start + chunk_tokens).min(context.tokens.len());
                let stored: Vec<Stored> = (profiles.iter())
                    .map(|profile| profile.store(model.spec(), &context, chunk.clone()))
                    .collect::<Result<_, _>>()?;
                let elements = chunk.len() * model.spec().elements_per_token();
                rows.iter_mut().zip(&stored).for_each(|(row, own)| row.add(own, &stored[0], elements));
            }
        }
        writeln!(out, "{path}")?;
        write_rows(&mut out, &profiles, &rows)?;
        all.iter_mut().zip(&rows).for_each(|(all, row)| all.join(row));
    }
    writeln!(out, "all texts")?;
    write_rows(&mut out, &profiles, &all)
}

fn windows_of(model: &Model, path: &str, count: usize) -> Result<Vec<Vec<u32>>, Box<dyn Error>> {
    let text = if path == RECORDS {
        Text::records(model, count, WINDOW, SEED)?
    } else {
        Text::new(model, path, &std::fs::read_to_string(path)?, count, WINDOW.0 + WINDOW.1)?
    };
    Ok(text.into_tokens())
}

fn context(model: &Model, tokens: Vec<u32>) -> Result<TrainingContext, Box<dyn Error>> {
    let kv = KvBuffer::from_source(model.spec(), tokens.len(), &model.calculate_kv(&tokens)?);
    Ok(TrainingContext { first_position: 0, tokens, kv })
}

/// A profile with its encoder and decoder.
struct Bound {
    encoder: CpuEncoder,
    decoder: CpuDecoder,
    parts: ProfileParts,
    levels: u8,
    /// Bytes of the profile, and their share of the weights'.
    bytes: usize,
    share: f64,
}

/// A chunk as it is stored with a profile.
struct Stored {
    bytes: usize,
    /// The true error at the coarsest level that is said to be `transparent`; `None` if none is.
    error: Option<f64>,
}

impl Bound {
    fn new(model: &Model, profile: Profile) -> Result<Self, Box<dyn Error>> {
        let (parts, levels) = (profile.parts(), profile.lossy_levels() as u8);
        let bytes = profile.to_bytes().len();
        let share = bytes as f64 / (2 * model.config().parameters()) as f64;
        let (spec, profile) = (model.spec(), Arc::new(profile));
        let encoder = CpuEncoder::new(Arc::clone(spec), Arc::clone(&profile))?;
        let decoder = CpuDecoder::new(Arc::clone(spec), profile)?;
        Ok(Self { encoder, decoder, parts, levels, bytes, share })
    }

    fn store(
        &self,
        spec: &ModelSpec,
        context: &TrainingContext,
        chunk: Range<usize>,
    ) -> Result<Stored, Box<dyn Error>> {
        let kv = context.kv.slice(chunk.clone());
        let (object, report) = self.encoder.encode_with_report(&ChunkInput {
            tokens: &context.tokens[chunk.clone()],
            preceding_token: chunk.start.checked_sub(1).map(|before| context.tokens[before]),
            first_position: chunk.start as u64,
            link: ChainLink::first([0; 32].into()),
            beneath: Loss::NONE,
            kv: &kv,
        })?;
        let head = Head::parse(&object)?;
        let is_said = |level: &Level| {
            head.measured().is_some_and(|said| said.error(*level) <= Quality::Transparent.error_max())
        };
        let error = match (0..self.levels).map(Level).find(is_said) {
            None => None,
            Some(level) => {
                let mut decoded = KvBuffer::new(spec, chunk.len());
                self.decoder.decode(&head, &object, level, 0..chunk.len(), &mut decoded)?;
                Some(self.error(spec, chunk.start, &report.exact_spans, &kv, &decoded))
            }
        };
        Ok(Stored { bytes: object.len(), error })
    }

    /// The error of a decoded chunk that begins at token `first`, as FORMAT.md §3.4 defines it: of all tokens that are not exact, of
    /// which an encoder may measure a sample. `exact_spans` are scope and span of what is exact.
    fn error(
        &self,
        spec: &ModelSpec,
        first: usize,
        exact_spans: &[(usize, usize)],
        truth: &KvBuffer,
        decoded: &KvBuffer,
    ) -> f64 {
        let rotation = |rope| Rotation::new(rope, first as u64, truth.tokens());
        let rotations: Vec<Rotation> = spec.ropes.iter().map(rotation).collect();
        let mut worst = 0f64;
        for (index, scope) in self.parts.scopes.iter().enumerate() {
            let is_coded = |token: &usize| {
                first + token >= self.parts.exact_tokens
                    && !exact_spans.contains(&(index, token / SPAN_TOKENS))
            };
            let coded: Vec<usize> = (0..truth.tokens()).filter(is_coded).collect();
            for member in scope.members.iter().filter(|_| !coded.is_empty()) {
                let layer = &spec.layers[member.layer];
                let is_turned = matches!(layer.layout, KvLayout::Mla { .. }) == (member.plane == Plane::V);
                let rotation = layer.rope.filter(|_| is_turned).map(|rope| &rotations[usize::from(rope)]);
                let unit = f64::from(member.power) * Quality::transparent_error(layer.layout, member.plane);
                let error = head_error(spec.kv_dtype, member, rotation, &coded, truth, decoded);
                worst = worst.max(error / unit);
            }
        }
        worst
    }
}

/// The bounded error of a head's elements at `tokens`.
fn head_error(
    dtype: KvDtype,
    member: &Member,
    rotation: Option<&Rotation>,
    tokens: &[usize],
    truth: &KvBuffer,
    decoded: &KvBuffer,
) -> f64 {
    let round = |x: f32| match dtype {
        KvDtype::F16 => f16::from_f32(x).to_f32(),
        KvDtype::Bf16 => bf16::from_f32(x).to_f32(),
        KvDtype::F32 | KvDtype::Fp8E4m3 | KvDtype::Int8 => x,
    };
    let [truth, decoded] = [truth, decoded].map(|kv| kv.rows(member.layer, member.plane, member.head));
    let (dim, count) = (member.dim, tokens.len() as f64);
    let (mut mean, mut largest) = (0f64, 0f64);
    let (mut row, mut sums) = (vec![0f32; dim], vec![0f64; dim]);
    for &token in tokens {
        let of = token * dim..(token + 1) * dim;
        let pairs = truth[of.clone()].iter().zip(&decoded[of]);
        row.iter_mut().zip(pairs).for_each(|(error, (x, y))| *error = x - round(*y));
        if let Some(rotation) = rotation {
            rotation.unrotate(token, &mut row);
        }
        let power: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
        (mean, largest) = (mean + power / count, largest.max(power));
        sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    if !mean.is_finite() {
        return f64::INFINITY;
    }
    let constant = sums.iter().map(|sum| (sum / count).powi(2)).sum::<f64>() - mean / count;
    mean.max(10.0 * constant).max(largest / 16.0) / dim as f64
}

/// Sums over chunks.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    elements: usize,
    chunks: usize,
    /// With this profile, and as clients store them: those that are not `transparent` with the first one.
    bytes: usize,
    stored: usize,
    missed: usize,
    /// Chunks that are said to be `transparent` and are not, and the largest error of those that are said to be.
    over: usize,
    worst: f64,
}

impl Row {
    fn add(&mut self, own: &Stored, first: &Stored, elements: usize) {
        let error = own.error.unwrap_or(0.0);
        self.join(&Self {
            elements,
            chunks: 1,
            bytes: own.bytes,
            stored: if own.error.is_some() { own.bytes } else { first.bytes },
            missed: usize::from(own.error.is_none()),
            over: usize::from(LevelError::at_least(error) > Quality::Transparent.error_max()),
            worst: error,
        });
    }

    fn join(&mut self, other: &Self) {
        self.elements += other.elements;
        self.chunks += other.chunks;
        self.bytes += other.bytes;
        self.stored += other.stored;
        self.missed += other.missed;
        self.over += other.over;
        self.worst = self.worst.max(other.worst);
    }
}

fn write_rows(out: &mut impl Write, profiles: &[Bound], rows: &[Row]) -> Result<(), Box<dyn Error>> {
    for (index, (Bound { bytes, share, .. }, row)) in profiles.iter().zip(rows).enumerate() {
        let name = if index == 0 { "first" } else { "trained" };
        let bits = |bytes: usize| 8.0 * bytes as f64 / row.elements.max(1) as f64;
        let (own, stored) = (bits(row.bytes), bits(row.stored));
        let Row { chunks, missed, over, worst, .. } = row;
        writeln!(
            out,
            "  {name}, {bytes} bytes, {:.1} % of the weights': {own:.2} bits, {stored:.2} as stored; {missed} of {chunks} \
             chunks not transparent, of the others {over} above the bound, {worst:.3} of it at most",
            100.0 * share
        )?;
    }
    Ok(())
}
