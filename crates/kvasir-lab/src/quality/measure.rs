//! The sweep over windows, codecs, chunk lengths and levels.

use std::collections::HashMap;

use kvasir_codec::{KvBuffer, KvSink as _};
use kvasir_engine::{Model, quality::Samples};
use kvasir_types::LevelError;

use super::{
    QualityRow, Text,
    judge::{Answers, Questions, each_head, paged},
    rows::Sums,
};
use crate::{BenchError, Chunk, Coded, KvCodec};

/// Options of a measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Tokens of a window that go through the codecs; the rest judges them.
    pub prefix: usize,
    /// Chunk lengths.
    pub chunk_tokens: Vec<usize>,
}

/// One codec at one chunk length: all chunks together at each level, with the largest of their errors.
fn ladder(
    codec: &dyn KvCodec,
    model: &Model,
    tokens: &[u32],
    exact: &KvBuffer,
    chunk_tokens: usize,
) -> Result<Vec<Coded>, BenchError> {
    let spec = model.spec();
    let empty = |_| Coded { bytes: 0, error: LevelError::NONE, kv: KvBuffer::new(spec, tokens.len()) };
    let mut ladder: Vec<Coded> = (0..codec.levels()).map(empty).collect();
    for first in (0..tokens.len()).step_by(chunk_tokens) {
        let range = first..(first + chunk_tokens).min(tokens.len());
        let chunk = Chunk {
            spec,
            tokens: &tokens[range.clone()],
            preceding_token: first.checked_sub(1).map(|before| tokens[before]),
            first_position: first,
            kv: &exact.slice(range),
        };
        for (all, coded) in ladder.iter_mut().zip(codec.code(&chunk)?) {
            all.bytes += coded.bytes;
            all.error = all.error.max(coded.error);
            each_head(spec, |layer, plane, head| {
                all.kv.write(layer, plane, head, first, coded.kv.rows(layer, plane, head));
            });
        }
    }
    Ok(ladder)
}

/// Answers by content of the cache: most codecs give the same rows for every chunk length, and Deflate over
/// our symbols gives the same rows as our codec.
struct Asked<'a> {
    questions: &'a Questions<'a>,
    exact: &'a Answers,
    known: HashMap<blake3::Hash, (Samples, (usize, usize))>,
}

impl Asked<'_> {
    fn ask(&mut self, model: &Model, kv: &KvBuffer) -> Result<(Samples, (usize, usize)), BenchError> {
        let mut hasher = blake3::Hasher::new();
        kv.as_slice().chunks(1024).for_each(|part| {
            let bytes: Vec<u8> = part.iter().flat_map(|x| x.to_le_bytes()).collect();
            hasher.update(&bytes);
        });
        let key = hasher.finalize();
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let answers = self.questions.ask(&paged(model, kv)?)?;
        let found = (self.questions.compare(self.exact, &answers), answers.retrieved);
        self.known.insert(key, found.clone());
        Ok(found)
    }
}

/// Measures codecs on a text. `progress` is told the share done, 0 to 1.
///
/// # Errors
/// [`BenchError::Window`] where the windows do not fit; whatever a codec or the model fails with.
pub fn measure(
    model: &Model,
    codecs: &[&dyn KvCodec],
    text: &Text,
    options: &Options,
    progress: &mut dyn FnMut(f32),
) -> Result<Vec<QualityRow>, BenchError> {
    let lengths = &options.chunk_tokens;
    let mut sums: Vec<Vec<Vec<Sums>>> =
        codecs.iter().map(|codec| vec![vec![Sums::default(); codec.levels()]; lengths.len()]).collect();
    let mut exact_retrieved = (0, 0);
    for (index, window) in text.windows.iter().enumerate() {
        let context = model.config().context;
        let tokens = &window.tokens;
        let split = tokens.split_at_checked(options.prefix).filter(|(_, suffix)| suffix.len() > 1);
        let Some((prefix, suffix)) = split.filter(|_| tokens.len() <= context) else {
            let suffix = tokens.len().saturating_sub(options.prefix);
            return Err(BenchError::Window { prefix: options.prefix, suffix, context });
        };
        let pages = model.calculate_kv(prefix)?;
        let dense = KvBuffer::from_source(model.spec(), prefix.len(), &pages);
        let questions = Questions::new(model, prefix, suffix, &window.answers);
        let exact = questions.ask(&pages)?;
        exact_retrieved = (exact_retrieved.0 + exact.retrieved.0, exact_retrieved.1 + exact.retrieved.1);
        let mut asked = Asked { questions: &questions, exact: &exact, known: HashMap::new() };
        for (number, (codec, sums)) in codecs.iter().zip(&mut sums).enumerate() {
            for (&chunk_tokens, sums) in lengths.iter().zip(sums) {
                let ladder = ladder(*codec, model, prefix, &dense, chunk_tokens)?;
                for (coded, sums) in ladder.iter().zip(sums) {
                    let (samples, retrieved) = asked.ask(model, &coded.kv)?;
                    sums.add(text.first + index, coded, &samples, retrieved);
                }
            }
            let done = index as f32 + (number + 1) as f32 / codecs.len() as f32;
            progress(done / text.windows.len() as f32);
        }
    }
    let elements = options.prefix * model.spec().elements_per_token();
    let mut rows = Vec::new();
    for (codec, sums) in codecs.iter().zip(&sums) {
        for (&chunk_tokens, sums) in lengths.iter().zip(sums) {
            let chunks = options.prefix.div_ceil(chunk_tokens);
            for (level, sums) in sums.iter().enumerate() {
                let of = (level, chunk_tokens, chunks);
                rows.push(sums.row(*codec, of, text, elements, exact_retrieved));
            }
        }
    }
    Ok(rows)
}
