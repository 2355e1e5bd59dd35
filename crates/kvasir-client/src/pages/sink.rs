//! Writes decoded rows to pages.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use kvasir_codec::{HeadRows, KvSink, e4m3};
use kvasir_types::{KvDtype, ModelSpec, Plane};

use super::{BlockTable, PageRows, Rows, WriteGate};

/// Scatters decoded rows over the pages of a table, in the type of the cache.
pub(crate) struct TableSink<'a> {
    table: &'a BlockTable,
    spec: &'a ModelSpec,
    first_token: usize,
    gate: &'a WriteGate,
    /// Rows not written because their page belongs to another request by now, or the load has ended.
    pub(crate) stale_rows: usize,
}

/// The position of rows: layer, plane and first head in the whole model, first token of the sink.
#[derive(Clone, Copy)]
struct Place {
    layer: usize,
    plane: Plane,
    head: usize,
    token: usize,
}

impl<'a> TableSink<'a> {
    pub(super) const fn new(
        table: &'a BlockTable,
        spec: &'a ModelSpec,
        first_token: usize,
        gate: &'a WriteGate,
    ) -> Self {
        Self { table, spec, first_token, gate, stale_rows: 0 }
    }

    /// Writes rows that are already of the cache's type.
    pub(crate) fn write_rows(
        &mut self,
        layer: usize,
        plane: Plane,
        head: usize,
        token: usize,
        rows: Rows<'_>,
    ) {
        let place = Place { layer, plane, head, token };
        match rows {
            Rows::Bf16(rows) => self.scatter(place, rows, |rows, write| write(Rows::Bf16(rows))),
            Rows::F16(rows) => self.scatter(place, rows, |rows, write| write(Rows::F16(rows))),
            Rows::F32(rows) => self.scatter(place, rows, |rows, write| write(Rows::F32(rows))),
            Rows::Fp8E4m3(rows) => self.scatter(place, rows, |rows, write| write(Rows::Fp8E4m3(rows))),
        }
    }

    /// Cuts the rows that the table's rank holds into pages. `put` converts them to the cache's type and
    /// writes them, one page at a time so that the converted rows stay in the CPU's cache.
    fn scatter<T: Copy>(
        &mut self,
        place: Place,
        rows: HeadRows<'_, T>,
        mut put: impl FnMut(HeadRows<'_, T>, &dyn Fn(Rows<'_>) -> bool) -> bool,
    ) {
        let shard = &self.table.shard;
        let Some(layout) = self.spec.layers.get(place.layer).map(|layer| layer.layout) else { return };
        let (count, elements) = layout.planes()[place.plane as usize];
        let held = shard.heads_of(count);
        let heads = held.start.max(place.head)..held.end.min(place.head + rows.heads());
        if !shard.layers.contains(&place.layer) || heads.is_empty() || rows.elements() != elements {
            return;
        }
        let rows = rows.part(heads.start - place.head..heads.end - place.head, 0..rows.tokens());
        let (layer, head) = (place.layer - shard.layers.start, heads.start - held.start);
        let (page_tokens, first) = (self.table.page_tokens, self.first_token + place.token);
        let mut done = 0;
        while done < rows.tokens() {
            let token = first + done;
            let slot = token % page_tokens;
            let now = (page_tokens - slot).min(rows.tokens() - done);
            let written = self.table.pages.get(token / page_tokens).is_some_and(|&page| {
                let write = |rows: Rows<'_>| {
                    let rows = PageRows::new(layer, place.plane, head, slot, rows);
                    self.gate.write(|| self.table.store.write(page, &rows))
                };
                put(rows.part(0..rows.heads(), done..done + now), &write)
            });
            self.stale_rows += if written { 0 } else { now * rows.heads() };
            done += now;
        }
    }
}

impl KvSink for TableSink<'_> {
    fn write(&mut self, layer: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        let Some(layout) = self.spec.layers.get(layer).map(|layer| layer.layout) else { return };
        let (_, elements) = layout.planes()[plane as usize];
        self.write_heads(layer, plane, head, first_token, HeadRows::dense(rows, 1, elements));
    }

    fn write_heads(
        &mut self,
        layer: usize,
        plane: Plane,
        head: usize,
        token: usize,
        rows: HeadRows<'_, f32>,
    ) {
        let place = Place { layer, plane, head, token };
        match self.spec.kv_dtype {
            KvDtype::F32 => self.write_rows(layer, plane, head, token, Rows::F32(rows)),
            KvDtype::Bf16 => {
                let mut page: Vec<bf16> = Vec::new();
                self.scatter(place, rows, |rows, write| {
                    let round = |from: &[f32], to: &mut [bf16]| to.convert_from_f32_slice(from);
                    write(Rows::Bf16(converted(rows, &mut page, round)))
                });
            }
            KvDtype::F16 => {
                let mut page: Vec<f16> = Vec::new();
                self.scatter(place, rows, |rows, write| {
                    let round = |from: &[f32], to: &mut [f16]| to.convert_from_f32_slice(from);
                    write(Rows::F16(converted(rows, &mut page, round)))
                });
            }
            KvDtype::Fp8E4m3 => {
                let mut page = Vec::new();
                self.scatter(place, rows, |rows, write| {
                    let round = |from: &[f32], to: &mut [u8]| {
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = e4m3::encode(*from));
                    };
                    write(Rows::Fp8E4m3(converted(rows, &mut page, round)))
                });
            }
            // no load begins for such a model
            KvDtype::Int8 => self.scatter(place, rows, |_, _| false),
        }
    }

    fn wants_bf16(&self) -> bool {
        self.spec.kv_dtype == KvDtype::Bf16
    }

    fn write_bf16(
        &mut self,
        layer: usize,
        plane: Plane,
        head: usize,
        token: usize,
        rows: HeadRows<'_, bf16>,
    ) {
        if self.wants_bf16() {
            return self.write_rows(layer, plane, head, token, Rows::Bf16(rows));
        }
        // A decoder that did not ask.
        for of in 0..rows.heads() {
            let rows: Vec<f32> = rows.head(of).iter().map(|x| x.to_f32()).collect();
            self.write(layer, plane, head + of, token, &rows);
        }
    }
}

/// Rows in another type, `[head][token][element]` in `to`.
fn converted<'a, T: Copy + Default>(
    rows: HeadRows<'_, f32>,
    to: &'a mut Vec<T>,
    convert: impl Fn(&[f32], &mut [T]),
) -> HeadRows<'a, T> {
    let head_values = rows.tokens() * rows.elements();
    to.resize(rows.heads() * head_values, T::default());
    for (head, to) in to.chunks_exact_mut(head_values.max(1)).enumerate() {
        convert(&rows.head(head), to);
    }
    HeadRows::dense(to, rows.heads(), rows.elements())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pages::HostPages;
    use kvasir_types::{KvLayout, LayerKv, Reuse};

    fn spec(kv_dtype: KvDtype) -> ModelSpec {
        let layout = KvLayout::Gqa { kv_heads: 2, head_dim: 3 };
        ModelSpec {
            weights: "pages".into(),
            revision: "1".into(),
            adapter: None,
            kv_dtype,
            ropes: vec![],
            layers: vec![LayerKv { layout, rope: None }],
            thinning: None,
            reuse: Reuse::Prefix,
        }
    }

    #[test]
    fn f32_rows_are_rounded_to_nearest_even_in_every_type() {
        // a tie, a denormal of each type, and past the largest of e4m3
        let values =
            [1.0 + 2f32.powi(-4), 2f32.powi(-133), 3.0 * 2f32.powi(-25), 2f32.powi(-10), 500.0, -0.3];
        let bytes = |dtype: KvDtype| -> Vec<Vec<u8>> {
            let of = |x: &f32| match dtype {
                KvDtype::Bf16 => bf16::from_f32(*x).to_ne_bytes().to_vec(),
                KvDtype::F16 => f16::from_f32(*x).to_ne_bytes().to_vec(),
                KvDtype::Fp8E4m3 => vec![e4m3::encode(*x)],
                KvDtype::F32 | KvDtype::Int8 => x.to_ne_bytes().to_vec(),
            };
            values.chunks(3).map(|row| row.iter().flat_map(of).collect()).collect()
        };
        for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::F32, KvDtype::Fp8E4m3] {
            let (spec, gate) = (spec(dtype), WriteGate::default());
            let pages = HostPages::new(&spec, 4, 8).unwrap();
            let table = pages.table();
            let mut sink = table.sink(&spec, 2, &gate);
            sink.write(0, Plane::V, 1, 1, &values);
            assert_eq!(sink.stale_rows, 0);
            let rows = [pages.row(0, Plane::V, 1, 3), pages.row(0, Plane::V, 1, 4)];
            assert_eq!(rows.to_vec(), bytes(dtype), "{dtype:?}");
        }
    }

    #[test]
    fn nothing_is_written_once_the_gate_is_closed() {
        let (spec, gate) = (spec(KvDtype::Bf16), WriteGate::default());
        let pages = HostPages::new(&spec, 4, 8).unwrap();
        let table = pages.table();
        let mut sink = table.sink(&spec, 0, &gate);
        gate.close();
        let rows = [bf16::ONE; 2 * 5 * 3];
        sink.write_bf16(0, Plane::K, 0, 0, HeadRows::dense(&rows, 2, 3));
        assert_eq!(sink.stale_rows, 2 * 5);
        assert!((0..8).all(|token| pages.row(0, Plane::K, 0, token).iter().all(|byte| *byte == 0)));
        let _: Arc<HostPages> = pages;
    }

    #[test]
    fn int8_caches_are_refused() {
        assert!(matches!(HostPages::new(&spec(KvDtype::Int8), 4, 8), Err(crate::Error::Config { .. })));
    }
}
