//! Values that nothing can be learned from: infinities, and what is no number.

use std::{fmt, ops::Range};

use kvasir_codec::KvBuffer;
use kvasir_types::{ModelSpec, Plane};

/// Tokens that training leaves out, because their spans hold values that are not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonFinite {
    /// How many.
    pub(super) tokens: usize,
    /// The first such value.
    first: Position,
}

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    context: usize,
    layer: usize,
    plane: Plane,
    token: usize,
}

impl NonFinite {
    /// The first value of these tokens of a context, by layer, that is not finite, and no tokens yet; `None` if
    /// all are finite.
    pub(super) fn find(
        spec: &ModelSpec,
        context: usize,
        kv: &KvBuffer,
        tokens: &Range<usize>,
    ) -> Option<Self> {
        for (layer, of) in spec.layers.iter().enumerate() {
            for plane in Plane::ALL {
                let (heads, dim) = of.layout.planes()[plane as usize];
                for head in 0..heads {
                    let rows = kv.rows(layer, plane, head).get(tokens.start * dim..tokens.end * dim);
                    let at = rows.unwrap_or_default().iter().position(|x| !x.is_finite());
                    if let Some(at) = at {
                        let token = tokens.start + at / dim;
                        return Some(Self { tokens: 0, first: Position { context, layer, plane, token } });
                    }
                }
            }
        }
        None
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { context, layer, plane, token } = self.first;
        write!(
            f,
            "{} tokens are left out, because their spans hold values that are not finite, the first in layer {layer}, \
             {plane:?}, token {token} of context {context}",
            self.tokens
        )
    }
}
