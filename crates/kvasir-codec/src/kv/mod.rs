//! KV tensors at the codec's interface: sources and destinations of rows.

mod dense16;
mod head_rows;
mod rows;

use std::ops::Range;

use half::bf16;
use kvasir_types::{KvDtype, ModelSpec, Plane};

/// A holder of a chunk's KV, in the layout of its [`ModelSpec`]. Keys are as the engine caches them: after
/// RoPE.
pub trait KvSource: Sync {
    /// Writes the rows of `tokens` (relative to the chunk's start) of one head into `out`, `[token][element]`.
    ///
    /// `out` has exactly `tokens.len() × elements of a head` entries. The codec asks only for layers, planes,
    /// heads and tokens that the spec and the chunk have.
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]);

    /// The memory from which [`read`](Self::read) would copy, if it holds `[token][element]` unmodified: an
    /// encoder can then avoid the copy.
    fn held(&self, _layer: usize, _plane: Plane, _head: usize, _tokens: Range<usize>) -> Option<&[f32]> {
        None
    }
}

/// Something that takes decoded KV.
pub trait KvSink {
    /// Takes `rows`, `[token][element]`, of one head; `first_token` is relative to the chunk's start.
    fn write(&mut self, layer: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]);

    /// Type of the values that this sink keeps, to which it would round the rows passed to
    /// [`write`](Self::write). Decoders can make rows of this type, which are less data to move.
    fn dtype(&self) -> KvDtype {
        KvDtype::F32
    }

    /// Takes rows of consecutive heads, `first_head` the first of them, of any type. Decoders give f32 or the
    /// sink's [`dtype`](Self::dtype), rounded to nearest even, denormals kept.
    fn write_rows(
        &mut self,
        layer: usize,
        plane: Plane,
        first_head: usize,
        first_token: usize,
        rows: Rows<'_>,
    ) {
        for head in 0..rows.heads() {
            self.write(layer, plane, first_head + head, first_token, &rows.head_f32(head));
        }
    }

    /// The memory of a bf16 sink to which [`write_rows`](Self::write_rows) would write `[token][element]` of
    /// `tokens` tokens, if the rows of one head are contiguous there: a decoder then makes them in place.
    /// After an error its contents are undefined.
    fn place_bf16(
        &mut self,
        _layer: usize,
        _plane: Plane,
        _head: usize,
        _first_token: usize,
        _tokens: usize,
    ) -> Option<&mut [bf16]> {
        None
    }
}

pub use dense16::Bf16Buffer;
pub use head_rows::HeadRows;
pub use rows::Rows;

/// A dense f32 cache in memory, `[layer][plane][head][token][element]`.
///
/// ```
/// use kvasir_codec::{KvBuffer, KvSink, KvSource};
/// use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Plane};
///
/// let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 4 }, rope: None };
/// let spec = ModelSpec {
///     weights: "toy".into(), revision: "1".into(), adapter: None, kv_dtype: KvDtype::F16,
///     ropes: vec![], layers: vec![layer; 3], thinning: None, reuse: Default::default(),
/// };
/// let mut kv = KvBuffer::new(&spec, 5);
/// kv.write(2, Plane::V, 1, 4, &[1.0, 2.0, 3.0, 4.0]);
/// let mut row = [0.0; 4];
/// kv.slice(3..5).read(2, Plane::V, 1, 1..2, &mut row);
/// assert_eq!(row, [1.0, 2.0, 3.0, 4.0]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct KvBuffer {
    tokens: usize,
    /// `[heads, elements]` and the start of the plane in `data`, two planes per layer.
    planes: Vec<PlaneShape>,
    data: Vec<f32>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct PlaneShape {
    heads: usize,
    dim: usize,
    start: usize,
}

impl KvBuffer {
    /// Zeros for `tokens` tokens of a model.
    pub fn new(spec: &ModelSpec, tokens: usize) -> Self {
        let mut start = 0;
        let planes = spec.layers.iter().flat_map(|layer| layer.layout.planes()).map(|(heads, dim)| {
            let shape = PlaneShape { heads, dim, start };
            start += heads * dim * tokens;
            shape
        });
        let planes = planes.collect();
        Self { tokens, planes, data: vec![0.0; start] }
    }

    /// Copies `tokens` tokens out of any source.
    pub fn from_source(spec: &ModelSpec, tokens: usize, source: &dyn KvSource) -> Self {
        let mut buffer = Self::new(spec, tokens);
        for layer in 0..spec.layers.len() {
            for plane in Plane::ALL {
                for head in 0..buffer.heads(layer, plane) {
                    source.read(layer, plane, head, 0..tokens, buffer.rows_mut(layer, plane, head));
                }
            }
        }
        buffer
    }

    /// Tokens held.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Heads of a plane; 0 for layers without KV.
    pub fn heads(&self, layer: usize, plane: Plane) -> usize {
        self.planes.get(2 * layer + plane as usize).map_or(0, |shape| shape.heads)
    }

    /// One head's rows, `[token][element]`. Empty if the model has no such head.
    pub fn rows(&self, layer: usize, plane: Plane, head: usize) -> &[f32] {
        self.data.get(self.range(layer, plane, head)).unwrap_or_default()
    }

    /// As [`rows`](Self::rows), to be written.
    pub fn rows_mut(&mut self, layer: usize, plane: Plane, head: usize) -> &mut [f32] {
        let range = self.range(layer, plane, head);
        self.data.get_mut(range).unwrap_or_default()
    }

    /// A copy of some tokens.
    ///
    /// # Panics
    /// Where `tokens` reaches past the buffer.
    pub fn slice(&self, tokens: Range<usize>) -> Self {
        assert!(
            tokens.start <= tokens.end && tokens.end <= self.tokens,
            "{tokens:?} of {} tokens",
            self.tokens
        );
        let count = tokens.len();
        let mut planes = self.planes.clone();
        let mut data = Vec::with_capacity(self.data.len().checked_div(self.tokens).unwrap_or(0) * count);
        for shape in &mut planes {
            let new_start = data.len();
            for head in 0..shape.heads {
                let rows = shape.start + head * self.tokens * shape.dim;
                data.extend_from_slice(
                    &self.data[rows + tokens.start * shape.dim..rows + tokens.end * shape.dim],
                );
            }
            shape.start = new_start;
        }
        Self { tokens: count, planes, data }
    }

    /// All values, `[layer][plane][head][token][element]`.
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// All values, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data
    }

    fn range(&self, layer: usize, plane: Plane, head: usize) -> Range<usize> {
        match self.planes.get(2 * layer + plane as usize) {
            Some(shape) if head < shape.heads => {
                let rows = self.tokens * shape.dim;
                let start = shape.start + head * rows;
                start..start + rows
            }
            _ => 0..0,
        }
    }

    fn dim(&self, layer: usize, plane: Plane) -> usize {
        self.planes.get(2 * layer + plane as usize).map_or(0, |shape| shape.dim)
    }
}

impl KvSource for KvBuffer {
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let dim = self.dim(layer, plane);
        out.copy_from_slice(&self.rows(layer, plane, head)[tokens.start * dim..tokens.end * dim]);
    }

    fn held(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>) -> Option<&[f32]> {
        let dim = self.dim(layer, plane);
        self.rows(layer, plane, head).get(tokens.start * dim..tokens.end * dim)
    }
}

impl KvSink for KvBuffer {
    fn write(&mut self, layer: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        let start = first_token * self.dim(layer, plane);
        self.rows_mut(layer, plane, head)[start..start + rows.len()].copy_from_slice(rows);
    }
}

/// A part of a source as a separate source: a chunk of a whole context.
#[derive(Clone, Copy)]
pub struct Tokens<'a> {
    source: &'a dyn KvSource,
    first: usize,
}

impl<'a> Tokens<'a> {
    /// The source from token `first` on.
    pub fn from(source: &'a dyn KvSource, first: usize) -> Self {
        Self { source, first }
    }
}

impl KvSource for Tokens<'_> {
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let tokens = tokens.start + self.first..tokens.end + self.first;
        self.source.read(layer, plane, head, tokens, out);
    }

    fn held(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>) -> Option<&[f32]> {
        self.source.held(layer, plane, head, tokens.start + self.first..tokens.end + self.first)
    }
}

impl std::fmt::Debug for Tokens<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("first", &self.first).finish_non_exhaustive()
    }
}
