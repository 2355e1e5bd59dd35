//! A model's KV in Python's tensors: loads write to it and saves read from it, without a copy.

use std::{ops::Range, sync::Arc};

use half::{bf16, f16};
use kvasir_client::pages::{BlockTable, PageRef, PageRows, PageStore};
use kvasir_codec::{HeadRows, KvSink, KvSource, Rows, e4m3};
use kvasir_types::{KvDtype, KvLayout, ModelSpec, Plane as Side};
use pyo3::{prelude::*, types::PyTuple};

use crate::{
    error::Failure,
    memory::{Memory, Plane},
};

/// How the tensors are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// Types of the values in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    F32,
    F16,
    Bf16,
    Fp8,
}

/// The tensors of every layer, checked against a model.
pub(crate) struct Tensors {
    element: Element,
    /// K and V of each layer; `None` if the layer has no cache.
    layers: Vec<Option<[Plane; 2]>>,
    tokens: usize,
}

impl Tensors {
    /// Borrows tensors for at least `tokens` tokens: a pair `(k, v)` per layer, each
    /// `[kv_heads, tokens, head_dim]` with or without a leading 1, or one tensor
    /// `[layers, 2, kv_heads, tokens, head_dim]`.
    ///
    /// # Errors
    /// [`Failure::Input`] naming the tensor with a wrong shape, type or layout.
    pub(crate) fn borrow(
        spec: &ModelSpec,
        given: &Bound<'_, PyAny>,
        tokens: usize,
        usage: Use,
    ) -> Result<Arc<Self>, Failure> {
        let mut check = Check { spec, tokens, usage, element: None };
        let pairs = if is_tensor(given) { None } else { given.extract::<Vec<Bound<'_, PyAny>>>().ok() };
        let layers = match pairs {
            Some(pairs) => check.pairs(&pairs)?,
            None => check.whole(&Arc::new(Memory::borrow(given)?))?,
        };
        let tensors = Self { element: check.element.unwrap_or(Element::F32), layers, tokens };
        tensors.check_apart(usage)?;
        Ok(Arc::new(tensors))
    }

    /// Rejects a tensor that is given twice.
    fn check_apart(&self, usage: Use) -> Result<(), Failure> {
        let mut starts: Vec<usize> = self.planes().map(Plane::address).collect();
        starts.sort_unstable();
        if usage == Use::Write && self.tokens > 0 && starts.windows(2).any(|two| two[0] == two[1]) {
            let message = "two planes begin at the same address: every plane needs separate memory";
            return Err(Failure::input("wrong_layout", message, "give different tensors"));
        }
        Ok(())
    }

    fn planes(&self) -> impl Iterator<Item = &Plane> {
        self.layers.iter().flatten().flatten()
    }

    fn plane(&self, layer: usize, side: Side) -> Option<&Plane> {
        self.layers.get(layer)?.as_ref().map(|planes| &planes[side as usize])
    }

    /// The table of one context whose single page is these tensors.
    pub(crate) fn table(self: &Arc<Self>) -> Result<BlockTable, Failure> {
        let tokens = self.planes().map(Plane::tokens).min().unwrap_or(self.tokens).max(1);
        let page = PageRef { index: 0, generation: 0 };
        Ok(BlockTable::new(Arc::clone(self) as Arc<dyn PageStore>, vec![page], tokens)?)
    }
}

fn is_tensor(given: &Bound<'_, PyAny>) -> bool {
    let is_address = given.cast::<PyTuple>().is_ok_and(|tuple| {
        tuple.len() == 4 && tuple.get_item(0).is_ok_and(|first| first.extract::<usize>().is_ok())
    });
    is_address || given.hasattr("__dlpack__").unwrap_or(false)
}

pub(crate) const fn dtype_name(dtype: KvDtype) -> &'static str {
    match dtype {
        KvDtype::Bf16 => "bfloat16",
        KvDtype::F16 => "float16",
        KvDtype::F32 => "float32",
        KvDtype::Fp8E4m3 => "float8_e4m3fn",
        KvDtype::Int8 => "int8",
    }
}

/// The type of a tensor's values for a cache. A tensor for reading may be wider than the cache: the codec
/// checks that the values fit.
fn element_of(cache: KvDtype, tensor: &Memory, usage: Use) -> Option<Element> {
    match (cache, tensor.dtype.as_str()) {
        (KvDtype::F32, "float32") => Some(Element::F32),
        (KvDtype::Bf16, "bfloat16" | "uint16") => Some(Element::Bf16),
        (KvDtype::F16, "float16" | "uint16") => Some(Element::F16),
        (KvDtype::Fp8E4m3, "float8_e4m3fn" | "uint8") => Some(Element::Fp8),
        (KvDtype::Bf16 | KvDtype::F16 | KvDtype::Fp8E4m3, "float32") if usage == Use::Read => {
            Some(Element::F32)
        }
        _ => None,
    }
}

/// Checks tensors against a model.
struct Check<'a> {
    spec: &'a ModelSpec,
    tokens: usize,
    usage: Use,
    /// Type of the tensors so far.
    element: Option<Element>,
}

impl Check<'_> {
    /// A pair of tensors for each layer.
    fn pairs(&mut self, pairs: &[Bound<'_, PyAny>]) -> Result<Vec<Option<[Plane; 2]>>, Failure> {
        let layers = self.spec.layers.len();
        if pairs.len() != layers {
            let message = format!("{} layers are given, but the model has {layers}", pairs.len());
            return Err(Failure::input("wrong_shape", message, "give a pair (k, v) for each layer"));
        }
        let mut planes = Vec::with_capacity(layers);
        for (layer, pair) in pairs.iter().enumerate() {
            if self.spec.layers[layer].layout == KvLayout::None {
                planes.push(None);
                continue;
            }
            let (k, v): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract().map_err(|_| {
                let message = format!("layer {layer} is not a pair (k, v)");
                Failure::input("wrong_shape", message, "give a pair (k, v) for each layer")
            })?;
            let mut of = |tensor: &Bound<'_, PyAny>, side: Side| {
                let memory = Arc::new(Memory::borrow(tensor)?);
                let first = usize::from(memory.shape.len() == 4 && memory.shape[0] == 1);
                self.plane(&memory, (layer, side), 0, first)
            };
            planes.push(Some([of(&k, Side::K)?, of(&v, Side::V)?]));
        }
        Ok(planes)
    }

    /// One tensor `[layers, 2, kv_heads, tokens, head_dim]`.
    fn whole(&mut self, memory: &Arc<Memory>) -> Result<Vec<Option<[Plane; 2]>>, Failure> {
        let (layers, shape) = (self.spec.layers.len(), &memory.shape);
        let strides: Vec<_> =
            memory.strides.iter().filter_map(|stride| usize::try_from(*stride).ok()).collect();
        let (&[by_layer, by_side, _, _, _], true) =
            (&*strides, shape.len() == 5 && shape[..2] == [layers, 2])
        else {
            let message = format!(
                "one tensor for a cache must be [{layers}, 2, kv_heads, tokens, head_dim]; this one is {shape:?}"
            );
            return Err(Failure::input("wrong_shape", message, "or give a pair (k, v) for each layer"));
        };
        let pair = |layer: usize| {
            let mut of =
                |side: Side| self.plane(memory, (layer, side), layer * by_layer + side as usize * by_side, 2);
            Ok(Some([of(Side::K)?, of(Side::V)?]))
        };
        (0..layers).map(pair).collect()
    }

    /// A plane that begins at a byte of a tensor, with the heads in this dimension of it.
    fn plane(
        &mut self,
        tensor: &Arc<Memory>,
        (layer, side): (usize, Side),
        offset: usize,
        first: usize,
    ) -> Result<Plane, Failure> {
        let name = format!("layer {layer} {side:?}");
        let (heads, elements) = self.spec.layers[layer].layout.planes()[side as usize];
        let shape = tensor.shape.get(first..).unwrap_or_default();
        if !matches!(*shape, [h, t, e] if h == heads && t >= self.tokens && e == elements) {
            let message = format!(
                "{name} has shape {:?}, expected [{heads}, {} or more, {elements}]: kv_heads, tokens, head_dim",
                tensor.shape, self.tokens
            );
            let remedy = "give tensors of the model's heads and enough tokens";
            return Err(Failure::input("wrong_shape", message, remedy));
        }
        let cache = self.spec.kv_dtype;
        let found = element_of(cache, tensor, self.usage).ok_or_else(|| {
            let message =
                format!("{name} is {}, but the model's cache is {}", tensor.dtype, dtype_name(cache));
            let remedy =
                "give tensors of the cache's type; numpy has bfloat16 as uint16 and float8_e4m3fn as uint8";
            Failure::input("wrong_dtype", message, remedy)
        })?;
        if *self.element.get_or_insert(found) != found {
            let message = format!("{name} is {}, but previous tensors are not", tensor.dtype);
            return Err(Failure::input("wrong_dtype", message, "give tensors of one type"));
        }
        if self.usage == Use::Write && tensor.is_read_only {
            let message = format!("{name} is read-only");
            return Err(Failure::input("wrong_layout", message, "give writable memory"));
        }
        Plane::new(tensor, offset, first).ok_or_else(|| {
            let message = format!(
                "{name} has strides {:?} in bytes: a row's elements must be contiguous, and rows must not overlap",
                tensor.strides
            );
            let remedy = "give contiguous tensors, or views of some heads and tokens of one";
            Failure::input("wrong_layout", message, remedy)
        })
    }
}

impl KvSource for Tensors {
    fn read(&self, layer: usize, side: Side, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let Some(plane) = self.plane(layer, side) else { return };
        let mut rest = out;
        plane.read(head, tokens, |bytes| {
            let (pairs, quads) = (bytes.as_chunks().0, bytes.as_chunks().0);
            rest = match self.element {
                Element::F32 => fill(std::mem::take(&mut rest), quads, f32::from_ne_bytes),
                Element::F16 => {
                    fill(std::mem::take(&mut rest), pairs, |pair| f16::from_ne_bytes(pair).to_f32())
                }
                Element::Bf16 => {
                    fill(std::mem::take(&mut rest), pairs, |pair| bf16::from_ne_bytes(pair).to_f32())
                }
                Element::Fp8 => fill(std::mem::take(&mut rest), bytes, e4m3::decode),
            };
        });
    }
}

/// Fills the front, and returns the rest.
fn fill<'a, T: Copy>(to: &'a mut [f32], from: &[T], value: impl Fn(T) -> f32) -> &'a mut [f32] {
    let (now, later) = to.split_at_mut(from.len().min(to.len()));
    now.iter_mut().zip(from).for_each(|(to, from)| *to = value(*from));
    later
}

impl PageStore for Tensors {
    /// There is one page and one generation: the memory belongs to this load until the client's load has
    /// ended, and after that the client writes nothing.
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        let Some(plane) = self.plane(rows.layer(), rows.plane()) else { return false };
        if page.index != 0 || rows.slots().end > plane.tokens() {
            return false;
        }
        for (index, head) in rows.heads().enumerate() {
            let mut token = 0;
            plane.write(head, rows.slots(), |bytes| {
                let row_bytes = rows.elements() * rows.values().dtype().bytes();
                let count = bytes.len() / row_bytes.max(1);
                let part = rows.values().part(index..index + 1, token..token + count);
                token += count;
                PageRows::new(0, rows.plane(), 0, 0, part).copy_to_bytes(bytes, 0, row_bytes);
            });
        }
        true
    }
}

/// Decoded rows into tensors, without a service.
pub(crate) struct Sink<'a>(pub(crate) &'a Tensors);

impl Sink<'_> {
    fn put<T: Copy, const BYTES: usize>(
        &self,
        (layer, side): (usize, Side),
        head: usize,
        first_token: usize,
        rows: HeadRows<'_, T>,
        bytes_of: impl Fn(T) -> [u8; BYTES],
    ) {
        let Some(plane) = self.0.plane(layer, side) else { return };
        for of in 0..rows.heads() {
            let values = rows.head(of);
            let mut left = &values[..];
            plane.write(head + of, first_token..first_token + rows.tokens(), |bytes| {
                let slots = bytes.as_chunks_mut().0;
                let (now, later) = left.split_at(slots.len().min(left.len()));
                slots.iter_mut().zip(now).for_each(|(slot, value)| *slot = bytes_of(*value));
                left = later;
            });
        }
    }
}

impl KvSink for Sink<'_> {
    fn write(&mut self, layer: usize, side: Side, head: usize, first_token: usize, rows: &[f32]) {
        let Some(elements) = self.0.plane(layer, side).map(Plane::elements) else { return };
        self.write_rows(layer, side, head, first_token, Rows::F32(HeadRows::dense(rows, 1, elements)));
    }

    fn dtype(&self) -> KvDtype {
        match self.0.element {
            Element::F32 => KvDtype::F32,
            Element::F16 => KvDtype::F16,
            Element::Bf16 => KvDtype::Bf16,
            Element::Fp8 => KvDtype::Fp8E4m3,
        }
    }

    fn write_rows(&mut self, layer: usize, side: Side, head: usize, token: usize, rows: Rows<'_>) {
        let place = (layer, side);
        match (self.0.element, rows) {
            (Element::F32, Rows::F32(rows)) => self.put(place, head, token, rows, f32::to_ne_bytes),
            (Element::F16, Rows::F16(rows)) => self.put(place, head, token, rows, f16::to_ne_bytes),
            (Element::Bf16, Rows::Bf16(rows)) => self.put(place, head, token, rows, bf16::to_ne_bytes),
            (Element::Fp8, Rows::Fp8E4m3(rows)) => self.put(place, head, token, rows, |x| [x]),
            // A decoder that makes only f32.
            (Element::F16, Rows::F32(rows)) => {
                self.put(place, head, token, rows, |x| f16::from_f32(x).to_ne_bytes());
            }
            (Element::Bf16, Rows::F32(rows)) => {
                self.put(place, head, token, rows, |x| bf16::from_f32(x).to_ne_bytes());
            }
            (Element::Fp8, Rows::F32(rows)) => self.put(place, head, token, rows, |x| [e4m3::encode(x)]),
            // A decoder that did not ask.
            (_, rows) => {
                for of in 0..rows.heads() {
                    self.write(layer, side, head + of, token, &rows.head_f32(of));
                }
            }
        }
    }
}
