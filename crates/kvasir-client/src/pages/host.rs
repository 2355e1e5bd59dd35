//! Pages in host memory.

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use half::{bf16, f16};
use kvasir_codec::{KvSink, KvSource, e4m3};
use kvasir_types::{KvDtype, ModelSpec, Plane};

use super::{BlockTable, PageRead, PageRef, PageRows, PageStore, Shard, check_dtype};
use crate::Error;

/// Pages in host memory, in the type of the model's cache: for tools, tests, and engines without their own
/// pages. Read loaded data through [`KvSource`], as f32.
///
/// Each page is `[layer][plane][head][slot][element]` with its own lock. Memory is zero until it is written.
#[derive(Debug)]
pub struct HostPages {
    dtype: KvDtype,
    page_tokens: usize,
    /// For each layer, its two planes.
    planes: Vec<[PlanePlace; 2]>,
    pages: Vec<Mutex<HostPage>>,
}

#[derive(Debug)]
struct HostPage {
    generation: u64,
    bytes: Vec<u8>,
}

/// The position of a plane in a page.
#[derive(Debug, Clone, Copy)]
struct PlanePlace {
    first_byte: usize,
    heads: usize,
    row_bytes: usize,
}

impl HostPages {
    /// Pages of `page_tokens` tokens for `tokens` tokens of a model, or of a rank's part of one
    /// ([`Shard::part_of`]).
    ///
    /// # Errors
    /// [`Error::Config`] for pages without tokens, pages too large for memory, and caches of 8-bit integers.
    pub fn new(spec: &ModelSpec, page_tokens: usize, tokens: usize) -> Result<Arc<Self>, Error> {
        check_dtype(spec)?;
        let config = |what: &str| Error::Config { what: what.into() };
        if page_tokens == 0 {
            return Err(config("a page must hold at least one token"));
        }
        let mut page_bytes = Some(0usize);
        let mut place = |(heads, elements): (usize, usize)| {
            let (first_byte, row_bytes) = (page_bytes?, elements.checked_mul(spec.kv_dtype.bytes())?);
            let bytes = row_bytes.checked_mul(heads)?.checked_mul(page_tokens)?;
            page_bytes = first_byte.checked_add(bytes).filter(|bytes| isize::try_from(*bytes).is_ok());
            Some(PlanePlace { first_byte, heads, row_bytes })
        };
        let planes: Option<Vec<[PlanePlace; 2]>> = spec
            .layers
            .iter()
            .map(|layer| {
                let [k, v] = layer.layout.planes();
                Some([place(k)?, place(v)?])
            })
            .collect();
        let (Some(planes), Some(page_bytes)) = (planes, page_bytes) else {
            return Err(config("pages of this many tokens do not fit into memory: make them smaller"));
        };
        let page = |_| Mutex::new(HostPage { generation: 0, bytes: vec![0; page_bytes] });
        let pages = (0..tokens.div_ceil(page_tokens)).map(page).collect();
        Ok(Arc::new(Self { dtype: spec.kv_dtype, page_tokens, planes, pages }))
    }

    /// All pages, in order, as the table of one context.
    pub fn table(self: &Arc<Self>) -> BlockTable {
        let page = |(index, page): (usize, &Mutex<HostPage>)| PageRef {
            index: index as u32,
            generation: lock(page).generation,
        };
        BlockTable {
            store: Arc::clone(self) as Arc<dyn PageStore>,
            pages: self.pages.iter().enumerate().map(page).collect(),
            page_tokens: self.page_tokens,
            shard: Shard::ALL,
        }
    }

    /// Gives every page a new generation: loads into earlier tables can no longer write. Values are kept.
    pub fn reassign(&self) {
        self.pages.iter().for_each(|page| lock(page).generation += 1);
    }

    /// The bytes of one row, in the machine's byte order. Empty if there is no such row.
    pub fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> Vec<u8> {
        let Some(page) = self.pages.get(token / self.page_tokens) else { return Vec::new() };
        let slot = token % self.page_tokens;
        let Some(bytes) = self.bytes((layer, plane), head..head + 1, slot..slot + 1) else {
            return Vec::new();
        };
        lock(page).bytes[bytes].to_vec()
    }

    /// Bytes from the first to the last row of some heads and slots of a page; `None` if there are none.
    fn bytes(
        &self,
        (layer, plane): (usize, Plane),
        heads: Range<usize>,
        slots: Range<usize>,
    ) -> Option<Range<usize>> {
        let place = self.planes.get(layer)?[plane as usize];
        if heads.is_empty() || slots.is_empty() || heads.end > place.heads || slots.end > self.page_tokens {
            return None;
        }
        let row =
            |head: usize, slot: usize| place.first_byte + (head * self.page_tokens + slot) * place.row_bytes;
        Some(row(heads.start, slots.start)..row(heads.end - 1, slots.end))
    }
}

impl PageStore for HostPages {
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        let Some(page_memory) = self.pages.get(page.index as usize) else { return false };
        let Some(bytes) = self.bytes((rows.layer(), rows.plane()), rows.heads(), rows.slots()) else {
            return false;
        };
        let row_bytes = rows.elements() * self.dtype.bytes();
        if rows.values().dtype() != self.dtype
            || row_bytes != self.planes[rows.layer()][rows.plane() as usize].row_bytes
        {
            return false;
        }
        let mut memory = lock(page_memory);
        let ours = memory.generation == page.generation;
        if ours {
            rows.copy_to_bytes(&mut memory.bytes[bytes], self.page_tokens * row_bytes, row_bytes);
        }
        ours
    }

    fn read_rows(&self, rows: &PageRead<'_>, to: &mut dyn KvSink) -> Result<bool, String> {
        let other = || "the pages were made for another part of the model than the table's".to_owned();
        if rows.page_tokens() != self.page_tokens {
            return Err(other());
        }
        let layer = rows.layer().checked_sub(rows.shard().layers.start).ok_or_else(other)?;
        let mut values = Vec::new();
        for plane in Plane::ALL {
            for (page, slots, first_token) in rows.slots() {
                let Some(memory) = self.pages.get(page.index as usize) else { return Ok(false) };
                values.resize(slots.len() * rows.elements(plane), 0.0);
                for (row, head) in rows.heads(plane).enumerate() {
                    let bytes = self.bytes((layer, plane), row..row + 1, slots.clone()).ok_or_else(other)?;
                    if bytes.len() != values.len() * self.dtype.bytes() {
                        return Err(other());
                    }
                    {
                        let memory = lock(memory);
                        if memory.generation != page.generation {
                            return Ok(false);
                        }
                        widen(self.dtype, &memory.bytes[bytes], &mut values);
                    }
                    to.write(rows.layer(), plane, head, first_token, &values);
                }
            }
        }
        Ok(true)
    }
}

impl KvSource for HostPages {
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let elements = out.len().checked_div(tokens.len()).unwrap_or(0);
        let (mut token, mut rest) = (tokens.start, out);
        while token < tokens.end {
            let slot = token % self.page_tokens;
            let count = (self.page_tokens - slot).min(tokens.end - token);
            let (now, later) = rest.split_at_mut(count * elements);
            let bytes = self.bytes((layer, plane), head..head + 1, slot..slot + count);
            if let (Some(page), Some(bytes)) = (self.pages.get(token / self.page_tokens), bytes) {
                widen(self.dtype, &lock(page).bytes[bytes], now);
            }
            (token, rest) = (token + count, later);
        }
    }
}

/// Values of a cache's type, in the machine's byte order, as f32.
pub(crate) fn widen(dtype: KvDtype, bytes: &[u8], to: &mut [f32]) {
    let (pairs, quads) = (bytes.as_chunks().0, bytes.as_chunks().0);
    match dtype {
        KvDtype::Bf16 => fill(to, pairs, |pair| bf16::from_ne_bytes(pair).to_f32()),
        KvDtype::F16 => fill(to, pairs, |pair| f16::from_ne_bytes(pair).to_f32()),
        KvDtype::F32 => fill(to, quads, f32::from_ne_bytes),
        KvDtype::Fp8E4m3 | KvDtype::Int8 => fill(to, bytes, e4m3::decode),
    }
}

fn fill<T: Copy>(to: &mut [f32], from: &[T], value: impl Fn(T) -> f32) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = value(*from));
}

fn lock(page: &Mutex<HostPage>) -> MutexGuard<'_, HostPage> {
    // No code panics while it holds a page's lock.
    page.lock().unwrap_or_else(PoisonError::into_inner)
}
