//! The layout of a page: the position of every value of a cache in its bytes.

use std::ops::Range;

use kvasir_codec::{KvSink, KvSource, e4m3};
use kvasir_types::{CHUNK_TOKENS_MAX, KvDtype, KvLayout, LayerKv, ModelSpec, Plane, Quality};

use super::PageError;
use crate::limits;

/// Letters of the axes: planes, layers, tokens, heads, elements. `N`, `H` and `D` are as in vLLM's and FlashInfer's `NHD` and `HND`.
const AXES: [u8; 5] = *b"2LNHD";

/// The layout of pages as their owner declares it. All layers have the same shape.
///
/// ```
/// use kvasir_client::objects::PageLayout;
/// use kvasir_types::{KvDtype, KvLayout};
///
/// // LMCache's `KV_2LTD` of 256 tokens of Llama 3 8B.
/// let shape = KvLayout::Gqa { kv_heads: 8, head_dim: 128 };
/// let layout = PageLayout::new(KvDtype::Bf16, shape, 32, 256, "2LNHD")?;
/// assert_eq!(layout.page_bytes(), 32 << 20);
/// # Ok::<(), kvasir_client::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLayout {
    dtype: KvDtype,
    shape: KvLayout,
    layers: usize,
    tokens: usize,
    /// Distance to the next plane, layer, token, head and element, in elements.
    strides: [usize; 5],
}

impl PageLayout {
    /// Pages of `tokens` tokens of all `layers` layers, each of `shape`. `order` has one letter per axis,
    /// outermost first: `2` planes, `L` layers, `N` tokens, `H` heads, `D` elements of a head. Latent caches
    /// ([`KvLayout::Mla`]) have neither planes nor heads: the letters are `L`, `N` and `D`, and a row is the
    /// latent followed by the rotary key.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for an invalid layout, with the valid values.
    pub fn new(
        dtype: KvDtype,
        shape: KvLayout,
        layers: usize,
        tokens: usize,
        order: &str,
    ) -> Result<Self, crate::Error> {
        let config = |what: String| crate::Error::Config { what };
        let extents = match shape {
            KvLayout::Gqa { kv_heads, head_dim } => [2, layers, tokens, kv_heads as usize, head_dim as usize],
            KvLayout::Mla { latent, rope_dims } => {
                [1, layers, tokens, 1, latent as usize + rope_dims as usize]
            }
            KvLayout::SlidingWindow { .. } | KvLayout::None => {
                return Err(config(
                    "a page must hold keys and values of all its tokens, or latents".to_owned(),
                ));
            }
        };
        if !(1..=CHUNK_TOKENS_MAX).contains(&tokens) {
            return Err(config(format!("a page has {tokens} tokens; it may have 1 to {CHUNK_TOKENS_MAX}")));
        }
        let letters: &[u8] = if matches!(shape, KvLayout::Mla { .. }) { b"LND" } else { &AXES };
        let mut sorted = order.as_bytes().to_vec();
        sorted.sort_unstable_by_key(|letter| AXES.iter().position(|axis| axis == letter));
        if sorted != letters {
            let letters = String::from_utf8_lossy(letters);
            return Err(config(format!(
                "{order:?} is not an order of axes: give each letter of {letters} once"
            )));
        }
        let mut layout = Self { dtype, shape, layers, tokens, strides: [0; 5] };
        layout.spec("", "").validate()?;
        let mut stride = 1usize;
        for letter in order.bytes().rev() {
            for (axis, (to, extent)) in AXES.iter().zip(layout.strides.iter_mut().zip(extents)) {
                if *axis == letter {
                    *to = stride;
                    stride = stride.saturating_mul(extent);
                }
            }
        }
        let bytes = stride.saturating_mul(dtype.bytes());
        if bytes > limits::OBJECT_BYTES_MAX {
            let most = limits::OBJECT_BYTES_MAX;
            return Err(config(format!("a page has {bytes} bytes; an object may have {most}")));
        }
        Ok(layout)
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// Tokens of a page.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub(super) fn dtype(&self) -> KvDtype {
        self.dtype
    }

    pub(super) fn elements(&self) -> usize {
        self.layers * self.tokens * self.shape.planes().map(|(heads, dim)| heads * dim).iter().sum::<usize>()
    }

    /// The properties that readers and writers must agree on; the order of axes may differ.
    pub(super) fn identity(&self) -> [u32; 6] {
        let dtype = match self.dtype {
            KvDtype::Bf16 => 0,
            KvDtype::F16 => 1,
            KvDtype::F32 => 2,
            KvDtype::Fp8E4m3 => 3,
            KvDtype::Int8 => 4,
        };
        let [(heads, width), (_, rope_dims)] =
            self.shape.planes().map(|(heads, dim)| (heads as u32, dim as u32));
        let (kind, second) = match self.shape {
            KvLayout::Mla { .. } => (1, rope_dims),
            _ => (0, heads),
        };
        [dtype, kind, self.layers as u32, self.tokens as u32, width, second]
    }

    /// The model of the chunks of lossy pages. Positions are unknown, so nothing is rotated.
    pub(super) fn spec(&self, model: &str, revision: &str) -> ModelSpec {
        ModelSpec {
            weights: model.to_owned(),
            revision: revision.to_owned(),
            adapter: None,
            kv_dtype: self.dtype,
            ropes: Vec::new(),
            layers: vec![LayerKv { layout: self.shape, rope: None }; self.layers],
            thinning: None,
            reuse: kvasir_types::Reuse::default(),
        }
    }

    /// Whether the values may be rounded.
    pub(super) fn check_quality(&self, quality: Quality) -> Result<(), crate::Error> {
        if self.dtype == KvDtype::Int8 && quality != Quality::Exact {
            let what =
                "the pages of an int8 cache do not contain its scales: store them as `exact`".to_owned();
            return Err(crate::Error::Config { what });
        }
        Ok(())
    }

    /// # Errors
    /// [`PageError::Length`]: the page is not of this layout.
    pub(super) fn check_page(&self, bytes: usize) -> Result<(), PageError> {
        let expected = self.page_bytes();
        if bytes == expected { Ok(()) } else { Err(PageError::Length { expected, actual: bytes }) }
    }

    /// Offset of a row's first element, and the number of its elements, both in elements.
    fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> (usize, usize) {
        let [of_plane, of_layer, of_token, of_head, of_element] = self.strides;
        let [(_, first), (_, second)] = self.shape.planes();
        let dim = if plane == Plane::K { first } else { second };
        let plane_start = match (self.shape, plane) {
            (_, Plane::K) => 0,
            // One row holds both.
            (KvLayout::Mla { .. }, Plane::V) => first * of_element,
            (_, Plane::V) => of_plane,
        };
        (plane_start + layer * of_layer + token * of_token + head * of_head, dim)
    }

    /// Byte offsets of all elements, by layer, plane, head and token: the same for every order of axes.
    pub(super) fn for_each_element(&self, mut f: impl FnMut(usize)) {
        let (item, step) = (self.dtype.bytes(), self.strides[4]);
        for layer in 0..self.layers {
            for (plane, (heads, _)) in Plane::ALL.into_iter().zip(self.shape.planes()) {
                for (head, token) in
                    (0..heads).flat_map(|head| (0..self.tokens).map(move |token| (head, token)))
                {
                    let (start, dim) = self.row(layer, plane, head, token);
                    (0..dim).for_each(|element| f((start + element * step) * item));
                }
            }
        }
    }
}

/// A page as a KV source.
pub(super) struct PageRows<'a> {
    pub(super) layout: &'a PageLayout,
    /// As many as the layout's pages have.
    pub(super) bytes: &'a [u8],
}

impl KvSource for PageRows<'_> {
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let (item, step) = (self.layout.dtype.bytes(), self.layout.strides[4]);
        let (_, dim) = self.layout.row(layer, plane, head, 0);
        for (token, out) in tokens.zip(out.chunks_exact_mut(dim)) {
            let (start, _) = self.layout.row(layer, plane, head, token);
            for (element, out) in out.iter_mut().enumerate() {
                let at = (start + element * step) * item;
                *out = value(self.layout.dtype, &self.bytes[at..at + item]);
            }
        }
    }
}

/// A page as a KV sink.
pub(super) struct PageRowsMut<'a> {
    pub(super) layout: &'a PageLayout,
    /// As many as the layout's pages have.
    pub(super) bytes: &'a mut [u8],
}

impl KvSink for PageRowsMut<'_> {
    fn write(&mut self, layer: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        let (item, step) = (self.layout.dtype.bytes(), self.layout.strides[4]);
        let (_, dim) = self.layout.row(layer, plane, head, 0);
        for (token, row) in rows.chunks_exact(dim).enumerate() {
            let (start, _) = self.layout.row(layer, plane, head, first_token + token);
            for (element, value) in row.iter().enumerate() {
                let at = (start + element * step) * item;
                put(self.layout.dtype, *value, &mut self.bytes[at..at + item]);
            }
        }
    }
}

/// The value of an element's bytes.
fn value(dtype: KvDtype, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (KvDtype::Bf16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
        (KvDtype::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
        (KvDtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (KvDtype::Fp8E4m3, &[a]) => e4m3::decode(a),
        // int8 is never read as values: see `check_quality`.
        _ => f32::NAN,
    }
}

/// Rounds a value to an element's bytes.
fn put(dtype: KvDtype, value: f32, bytes: &mut [u8]) {
    match dtype {
        KvDtype::Bf16 => bytes.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
        KvDtype::F16 => bytes.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
        KvDtype::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
        KvDtype::Fp8E4m3 => bytes.copy_from_slice(&[e4m3::encode(value)]),
        KvDtype::Int8 => {}
    }
}
