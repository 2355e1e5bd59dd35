//! The loss of each level: the same text continued, teacher forced, over the uncompressed and the decoded
//! cache.
//!
//! One context leaves too few positions for its continuation, so several are pooled: the streamed one and
//! others of the same text, split into chunks, encoded and decoded in the same way.

use kvasir_codec::{ChunkDecoder, ChunkEncoder, ChunkInput, KvBuffer, KvSink, KvSource as _, Tokens};
use kvasir_container::Head;
use kvasir_engine::{
    Model, PagedKv,
    quality::{Quality, Samples, compare_prefixes},
};

use kvasir_types::{ChainLink, Level, Loss, ModelSpec, Plane};

use super::{baseline::into_pages, outcome::QualityPoint, plain::Plain};
use crate::{
    error::{CliError, CliResult},
    shipped::engine_error,
};

/// A context and its continuation in the text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passage<'a> {
    /// The cached tokens.
    pub(crate) context: &'a [u32],
    /// The tokens that follow.
    pub(crate) continuation: &'a [u32],
}

/// Codec of the profile in use.
#[derive(Clone, Copy)]
pub(crate) struct Codec<'a> {
    /// Encoder.
    pub(crate) encoder: &'a dyn ChunkEncoder,
    /// Decoder.
    pub(crate) decoder: &'a dyn ChunkDecoder,
    /// Tokens of a chunk.
    pub(crate) chunk_tokens: usize,
}

/// Sums over the passages.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    levels: Vec<(u64, Samples)>,
    int8: (u64, Samples),
    loaded: Samples,
    tokens: usize,
}

impl Comparison {
    /// Adds a passage. `loaded_levels` has the level of every chunk of the load; `loaded` is the loaded cache
    /// if this passage was the streamed one.
    pub(crate) fn add(
        &mut self,
        model: &Model,
        codec: Codec<'_>,
        passage: Passage<'_>,
        loaded_levels: &[Option<Level>],
        loaded: Option<&PagedKv>,
    ) -> CliResult {
        let exact = model.calculate_kv(passage.context).map_err(engine_error)?;
        let objects = encode(codec, passage.context, &exact)?;
        let compare = |lossy: &PagedKv, samples: &mut Samples| {
            compare_prefixes(model, &exact, lossy, passage.continuation, samples).map_err(engine_error)
        };
        let count = passage.context.len();
        self.tokens += count;
        self.levels.resize_with(codec.encoder.level_count(), Default::default);
        for (index, (bytes, samples)) in self.levels.iter_mut().enumerate() {
            let level = Level(index as u8);
            let levels = vec![Some(level); objects.len()];
            compare(&decode(model, codec, &objects, &levels, &exact, count)?, samples)?;
            *bytes += objects.iter().filter_map(|o| o.head.level_bytes(level)).sum::<u64>();
        }
        let packed = Plain::Int8.pack(model.spec(), count, &exact);
        let int8 = into_pages(model, count, |sink| {
            Plain::Int8.unpack(model.spec(), count, &packed, sink).map_err(CliError::internal)
        })?;
        compare(&int8, &mut self.int8.1)?;
        self.int8.0 += packed.len() as u64;
        match loaded {
            Some(kv) => compare(kv, &mut self.loaded),
            None => compare(&decode(model, codec, &objects, loaded_levels, &exact, count)?, &mut self.loaded),
        }
    }

    /// Quality of the loaded cache.
    pub(crate) fn loaded(&self) -> Quality {
        self.loaded.summary()
    }

    /// Quality of each level, coarsest first, and of 8-bit.
    pub(crate) fn points(&self, spec: &ModelSpec) -> Vec<QualityPoint> {
        let elements = (self.tokens * spec.elements_per_token()) as f64;
        let point = |name: String, (bytes, samples): &(u64, Samples)| {
            let quality = samples.summary();
            QualityPoint {
                name,
                bits_per_element: *bytes as f64 * 8.0 / elements,
                kl: quality.kl.mean,
                top1: quality.top1_agreement.mean,
                perplexity: quality.perplexity_lossy,
            }
        };
        let levels =
            self.levels.iter().enumerate().map(|(level, sums)| point(format!("level {level}"), sums));
        levels.chain([point("8-bit".to_owned(), &self.int8)]).collect()
    }
}

struct Encoded {
    head: Head,
    object: Vec<u8>,
}

fn encode(codec: Codec<'_>, tokens: &[u32], kv: &PagedKv) -> CliResult<Vec<Encoded>> {
    let chunk = |(index, chunk): (usize, &[u32])| {
        let first = index * codec.chunk_tokens;
        let object = codec.encoder.encode(&ChunkInput {
            tokens: chunk,
            preceding_token: first.checked_sub(1).and_then(|before| tokens.get(before)).copied(),
            first_position: first as u64,
            link: ChainLink::first([0; 32].into()), // nothing is looked up by it here
            beneath: Loss::NONE,
            kv: &Tokens::from(kv, first),
        });
        let object = object.map_err(CliError::internal)?;
        let head = Head::parse(&object).map_err(CliError::internal)?;
        Ok(Encoded { head, object })
    };
    tokens.chunks(codec.chunk_tokens).enumerate().map(chunk).collect()
}

/// Decodes every chunk at its level; `None` takes its rows from the exact cache, as a recomputation would.
fn decode(
    model: &Model,
    codec: Codec<'_>,
    objects: &[Encoded],
    levels: &[Option<Level>],
    exact: &PagedKv,
    tokens: usize,
) -> CliResult<PagedKv> {
    let mut dense = KvBuffer::from_source(model.spec(), tokens, exact);
    for (index, (encoded, level)) in objects.iter().zip(levels).enumerate() {
        let Some(level) = *level else { continue };
        let mut sink = Shifted { sink: &mut dense, first: index * codec.chunk_tokens };
        let count = encoded.head.tokens.len();
        codec
            .decoder
            .decode(&encoded.head, &encoded.object, level, 0..count, &mut sink)
            .map_err(CliError::internal)?;
    }
    into_pages(model, tokens, |sink| {
        copy(model.spec(), tokens, &dense, sink);
        Ok(())
    })
}

/// Writes a chunk's rows at its position in the context.
struct Shifted<'a> {
    sink: &'a mut KvBuffer,
    first: usize,
}

impl KvSink for Shifted<'_> {
    fn write(&mut self, layer: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        self.sink.write(layer, plane, head, self.first + first_token, rows);
    }
}

fn copy(spec: &ModelSpec, tokens: usize, from: &KvBuffer, to: &mut dyn KvSink) {
    for (layer, shape) in spec.layers.iter().enumerate() {
        for (plane, (heads, dim)) in Plane::ALL.into_iter().zip(shape.layout.planes()) {
            for head in 0..heads {
                let mut rows = vec![0.0; tokens * dim];
                from.read(layer, plane, head, 0..tokens, &mut rows);
                to.write(layer, plane, head, 0, &rows);
            }
        }
    }
}
