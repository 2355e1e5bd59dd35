//! A dense cache in bf16.

use half::bf16;
use kvasir_types::{KvDtype, ModelSpec, Plane};

use super::{HeadRows, KvBuffer, KvSink, Rows};

/// A dense bf16 cache in memory, `[layer][plane][head][token][element]`: the decoder's output for an engine
/// with a bf16 cache, at half the traffic of [`KvBuffer`].
#[derive(Debug, Clone)]
pub struct Bf16Buffer {
    /// Locates a head's rows; holds no data.
    shape: KvBuffer,
    data: Vec<bf16>,
    /// The first value, at the beginning of a cache line: rows that straddle two are written in twice the time.
    start: usize,
}

/// Values of a cache line.
const LINE: usize = 32;

impl Bf16Buffer {
    /// Zeros for `tokens` tokens of a model.
    pub fn new(spec: &ModelSpec, tokens: usize) -> Self {
        let mut shape = KvBuffer::new(spec, tokens);
        let data = vec![bf16::ZERO; shape.as_slice().len() + LINE];
        shape.data = Vec::new();
        let start = data.as_ptr().align_offset(LINE * size_of::<bf16>()).min(LINE);
        Self { shape, data, start }
    }

    /// One head's rows, `[token][element]`. Empty if the model has no such head.
    pub fn rows(&self, layer: usize, plane: Plane, head: usize) -> &[bf16] {
        self.as_slice().get(self.shape.range(layer, plane, head)).unwrap_or_default()
    }

    /// All values, `[layer][plane][head][token][element]`.
    pub fn as_slice(&self) -> &[bf16] {
        &self.data[self.start..self.data.len() - (LINE - self.start)]
    }

    /// All values except the first `from`.
    fn values_mut(&mut self, from: usize) -> &mut [bf16] {
        let end = self.data.len() - (LINE - self.start);
        &mut self.data[self.start + from..end]
    }
}

impl KvSink for Bf16Buffer {
    fn write(&mut self, layer: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        let rows: Vec<bf16> = rows.iter().map(|x| bf16::from_f32(*x)).collect();
        let rows = Rows::Bf16(HeadRows::dense(&rows, 1, self.shape.dim(layer, plane)));
        self.write_rows(layer, plane, head, first_token, rows);
    }

    fn dtype(&self) -> KvDtype {
        KvDtype::Bf16
    }

    fn write_rows(
        &mut self,
        layer: usize,
        plane: Plane,
        first_head: usize,
        first_token: usize,
        rows: Rows<'_>,
    ) {
        for head in 0..rows.heads() {
            let Rows::Bf16(rows) = rows else {
                self.write(layer, plane, first_head + head, first_token, &rows.head_f32(head));
                continue;
            };
            let from = self.shape.range(layer, plane, first_head + head).start
                + first_token * self.shape.dim(layer, plane);
            let rows = rows.head(head);
            self.values_mut(from)[..rows.len()].copy_from_slice(&rows);
        }
    }

    fn place_bf16(
        &mut self,
        layer: usize,
        plane: Plane,
        head: usize,
        first_token: usize,
        tokens: usize,
    ) -> Option<&mut [bf16]> {
        let dim = self.shape.dim(layer, plane);
        let from = self.shape.range(layer, plane, head).start + first_token * dim;
        self.values_mut(from).get_mut(..tokens * dim)
    }
}
