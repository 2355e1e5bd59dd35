//! Writes decoded rows to pages.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use kvasir_codec::{HeadRows, KvSink, Rows, e4m3};
use kvasir_types::{KvDtype, ModelSpec, Plane};

use super::{BlockTable, PageRows, WriteGate};

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
        self.write_rows(layer, plane, head, first_token, Rows::F32(HeadRows::dense(rows, 1, elements)));
    }

    fn dtype(&self) -> KvDtype {
        self.spec.kv_dtype
    }

    fn write_rows(&mut self, layer: usize, plane: Plane, head: usize, token: usize, rows: Rows<'_>) {
        let place = Place { layer, plane, head, token };
        match (self.spec.kv_dtype, rows) {
            (KvDtype::Bf16, Rows::Bf16(rows)) => {
                self.scatter(place, rows, |rows, write| write(Rows::Bf16(rows)));
            }
            (KvDtype::F16, Rows::F16(rows)) => {
                self.scatter(place, rows, |rows, write| write(Rows::F16(rows)));
            }
            (KvDtype::F32, Rows::F32(rows)) => {
                self.scatter(place, rows, |rows, write| write(Rows::F32(rows)));
            }
            (KvDtype::Fp8E4m3, Rows::Fp8E4m3(rows)) => {
                self.scatter(place, rows, |rows, write| write(Rows::Fp8E4m3(rows)));
            }
            // A decoder that makes only f32.
            (KvDtype::Bf16, Rows::F32(rows)) => {
                let mut page: Vec<bf16> = Vec::new();
                self.scatter(place, rows, |rows, write| {
                    let round = |from: &[f32], to: &mut [bf16]| to.convert_from_f32_slice(from);
                    write(Rows::Bf16(converted(rows, &mut page, round)))
                });
            }
            (KvDtype::F16, Rows::F32(rows)) => {
                let mut page: Vec<f16> = Vec::new();
                self.scatter(place, rows, |rows, write| {
                    let round = |from: &[f32], to: &mut [f16]| to.convert_from_f32_slice(from);
                    write(Rows::F16(converted(rows, &mut page, round)))
                });
            }
            (KvDtype::Fp8E4m3, Rows::F32(rows)) => {
                let mut page = Vec::new();
                self.scatter(place, rows, |rows, write| {
                    let round = |from: &[f32], to: &mut [u8]| {
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = e4m3::encode(*from));
                    };
                    write(Rows::Fp8E4m3(converted(rows, &mut page, round)))
                });
            }
            // no load begins for such a model
            (KvDtype::Int8, Rows::F32(rows)) => self.scatter(place, rows, |_, _| false),
            // A decoder that did not ask.
            (_, rows) => {
                for of in 0..rows.heads() {
                    self.write(layer, plane, head + of, token, &rows.head_f32(of));
                }
            }
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
            assert_eq!((sink.stale_rows, sink.dtype()), (0, dtype));
            let rows = [pages.row(0, Plane::V, 1, 3), pages.row(0, Plane::V, 1, 4)];
            assert_eq!(rows.to_vec(), bytes(dtype), "{dtype:?}");
        }
    }

    #[test]
    fn rows_of_any_type_are_in_the_pages_as_their_f32_values_are() {
        // two heads of five tokens, over two pages
        let values: Vec<f32> = (0..2 * 5 * 3).map(|i| (i as f32 - 15.0) * 1.37).collect();
        let halves: Vec<_> = values.iter().map(|x| f16::from_f32(*x)).collect();
        let bfloats: Vec<_> = values.iter().map(|x| bf16::from_f32(*x)).collect();
        let patterns: Vec<u8> = values.iter().map(|x| e4m3::encode(*x)).collect();
        let given = [
            Rows::Bf16(HeadRows::dense(&bfloats, 2, 3)),
            Rows::F16(HeadRows::dense(&halves, 2, 3)),
            Rows::F32(HeadRows::dense(&values, 2, 3)),
            Rows::Fp8E4m3(HeadRows::dense(&patterns, 2, 3)),
        ];
        for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::F32, KvDtype::Fp8E4m3] {
            for rows in given {
                let (spec, gate) = (spec(dtype), WriteGate::default());
                let [typed, wide] = [(); 2].map(|()| HostPages::new(&spec, 4, 8).unwrap());
                let (table, wide_table) = (typed.table(), wide.table());
                table.sink(&spec, 2, &gate).write_rows(0, Plane::K, 0, 1, rows);
                for head in 0..2 {
                    wide_table.sink(&spec, 2, &gate).write(0, Plane::K, head, 1, &rows.head_f32(head));
                }
                for (head, token) in (0..2).flat_map(|head| (0..8).map(move |token| (head, token))) {
                    let [typed, wide] = [&typed, &wide].map(|pages| pages.row(0, Plane::K, head, token));
                    assert_eq!(typed, wide, "{:?} in {dtype:?}", rows.dtype());
                }
                assert!(typed.row(0, Plane::K, 1, 7).iter().any(|byte| *byte != 0));
            }
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
        sink.write_rows(0, Plane::K, 0, 0, Rows::Bf16(HeadRows::dense(&rows, 2, 3)));
        assert_eq!(sink.stale_rows, 2 * 5);
        assert!((0..8).all(|token| pages.row(0, Plane::K, 0, token).iter().all(|byte| *byte == 0)));
        let _: Arc<HostPages> = pages;
    }

    #[test]
    fn int8_caches_are_refused() {
        assert!(matches!(HostPages::new(&spec(KvDtype::Int8), 4, 8), Err(crate::Error::Config { .. })));
    }
}
