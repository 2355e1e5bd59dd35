//! The cache of each layer.

use serde_json::Value;

use super::{
    HfError, HfOptions,
    architecture::{Architecture, Attention, Windows},
    fields::Fields,
    rope,
};
use crate::{KvLayout, LAYERS_MAX, LayerKv, Rope};

/// The attention span of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Full,
    Sliding,
    Chunked,
}

impl Reach {
    /// Its name in `layer_types` and `rope_parameters`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Sliding => "sliding_attention",
            Self::Chunked => "chunked_attention",
        }
    }
}

/// Reads the layers and their ropes.
pub(super) fn read(
    text: &Fields<'_>,
    architecture: &Architecture,
    options: &HfOptions,
) -> Result<(Vec<LayerKv>, Vec<Rope>), HfError> {
    let count = sized(text, architecture, "num_hidden_layers")? as usize;
    if count > LAYERS_MAX {
        return Err(text.refused("num_hidden_layers", format!("at most {LAYERS_MAX} are supported")));
    }
    let reaches = reaches(text, architecture, count)?;
    let rotated = rotated(text, architecture, count)?;
    let shape = Shape::read(text, architecture)?;
    let mut ropes: Vec<Rope> = Vec::new();
    let mut of_reach = Vec::new();
    for reach in [Reach::Full, Reach::Sliding, Reach::Chunked] {
        let layout = shape.layout(text, architecture, reach);
        let used =
            |wanted| reaches.iter().zip(&rotated).any(|(r, rotated)| *r == reach && *rotated == wanted);
        let index = if used(true) {
            let rope = rope::read(text, architecture, reach, shape.rotary_head_dim(), options)?;
            let known = ropes.iter().position(|other| *other == rope);
            Some(known.unwrap_or_else(|| {
                ropes.push(rope);
                ropes.len() - 1
            }) as u8)
        } else {
            None
        };
        // An unused window may be absent or invalid.
        let layout = if used(true) || used(false) { layout? } else { KvLayout::None };
        of_reach.push((reach, layout, index));
    }
    let layer = |(reach, rotated): (Reach, bool)| {
        let of = of_reach.iter().find(|of| of.0 == reach);
        of.map(|&(_, layout, rope)| LayerKv { layout, rope: rope.filter(|_| rotated) })
    };
    Ok((reaches.into_iter().zip(rotated).filter_map(layer).collect(), ropes))
}

/// A required size, or the architecture's default.
fn sized(text: &Fields<'_>, architecture: &Architecture, name: &str) -> Result<u32, HfError> {
    match architecture.default_of(text, name) {
        Some(size) => Ok(size),
        None => text.required(name),
    }
}

/// Whether a field has a value, its own or the architecture's.
fn has(text: &Fields<'_>, architecture: &Architecture, name: &str) -> bool {
    text.get(name).is_some() || architecture.default_of(text, name).is_some()
}

/// Heads of a layer.
#[derive(Clone, Copy)]
enum Shape {
    Heads { kv_heads: u32, head_dim: u32 },
    Latent { latent: u32, rope_dims: u32 },
}

impl Shape {
    fn read(text: &Fields<'_>, architecture: &Architecture) -> Result<Self, HfError> {
        if architecture.attention == Attention::Latent {
            return Ok(Self::Latent {
                latent: text.required("kv_lora_rank")?,
                rope_dims: text.required("qk_rope_head_dim")?,
            });
        }
        let heads = sized(text, architecture, "num_attention_heads")?;
        let head_dim = if has(text, architecture, "head_dim") {
            sized(text, architecture, "head_dim")?
        } else {
            let hidden = text.required("hidden_size")?;
            if !hidden.is_multiple_of(heads) {
                return Err(text.refused(
                    "hidden_size",
                    "must be a multiple of num_attention_heads; otherwise give head_dim",
                ));
            }
            hidden / heads
        };
        let field = match architecture.attention {
            Attention::Falcon => "num_kv_heads",
            Attention::Heads | Attention::Latent => "num_key_value_heads",
        };
        let one_head = architecture.attention == Attention::Falcon
            && text.flag("new_decoder_architecture")? != Some(true)
            && text.flag("multi_query")? != Some(false);
        let kv_heads = match () {
            () if one_head => 1,
            () if has(text, architecture, field) => sized(text, architecture, field)?,
            () => heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(text.refused(field, format!("must divide num_attention_heads, {heads}")));
        }
        Ok(Self::Heads { kv_heads, head_dim })
    }

    fn rotary_head_dim(&self) -> u32 {
        match self {
            Self::Heads { head_dim, .. } => *head_dim,
            Self::Latent { rope_dims, .. } => *rope_dims,
        }
    }

    fn layout(
        &self,
        text: &Fields<'_>,
        architecture: &Architecture,
        reach: Reach,
    ) -> Result<KvLayout, HfError> {
        let window = match reach {
            Reach::Full => None,
            Reach::Sliding => Some("sliding_window"),
            // A chunk's tokens are among the last `attention_chunk_size`.
            Reach::Chunked => Some("attention_chunk_size"),
        };
        match (*self, window) {
            (Self::Heads { kv_heads, head_dim }, None) => Ok(KvLayout::Gqa { kv_heads, head_dim }),
            (Self::Heads { kv_heads, head_dim }, Some(field)) => {
                Ok(KvLayout::SlidingWindow { kv_heads, head_dim, window: sized(text, architecture, field)? })
            }
            (Self::Latent { latent, rope_dims }, None) => Ok(KvLayout::Mla { latent, rope_dims }),
            (Self::Latent { .. }, Some(_)) => {
                Err(text.refused("layer_types", "sliding windows over latents are not supported"))
            }
        }
    }
}

/// The attention span of each layer.
fn reaches(text: &Fields<'_>, architecture: &Architecture, count: usize) -> Result<Vec<Reach>, HfError> {
    if let Some(types) = text.list("layer_types", "a list of strings", Value::as_str)? {
        if types.len() != count {
            return Err(text.refused("layer_types", format!("must have {count} entries, one per layer")));
        }
        let known = |name: &str| {
            [Reach::Full, Reach::Sliding, Reach::Chunked].into_iter().find(|reach| reach.name() == name)
        };
        let reach = |name: &&str| {
            known(name).ok_or_else(|| {
                let advice = format!(
                    "`{name}` is not supported; use full_attention, sliding_attention or chunked_attention"
                );
                text.refused("layer_types", advice)
            })
        };
        return types.iter().map(reach).collect();
    }
    let window = text.uint("sliding_window")?.or(architecture.default_of(text, "sliding_window"));
    let windowed = window.is_some_and(|tokens| tokens > 0);
    let asked = text.flag("use_sliding_window")? == Some(true);
    let used = asked && windowed;
    let slides: Box<dyn Fn(usize) -> bool> = match architecture.windows {
        Windows::Never if windowed => {
            return Err(text.refused(
                "sliding_window",
                "this architecture has no known sliding windows; give layer_types",
            ));
        }
        Windows::Unknown if asked => {
            return Err(text.refused(
                "use_sliding_window",
                "the layers with a sliding window are unknown; give layer_types",
            ));
        }
        Windows::Never | Windows::Unknown => Box::new(|_| false),
        Windows::All => Box::new(move |_| windowed),
        Windows::AllIfUsed => Box::new(move |_| used),
        Windows::UpperIfUsed => {
            let first = if used { text.required("max_window_layers")? as usize } else { count };
            Box::new(move |layer| layer >= first)
        }
        Windows::AllBut(each) => {
            let said = text.get("sliding_window_pattern").map(|_| text.required("sliding_window_pattern"));
            let each = said.transpose()?.unwrap_or(each) as usize;
            Box::new(move |layer| !(layer + 1).is_multiple_of(each))
        }
        Windows::ChunkedRotary => {
            let chunked = has(text, architecture, "attention_chunk_size");
            return Ok(rotated(text, architecture, count)?
                .into_iter()
                .map(|rotated| if rotated && chunked { Reach::Chunked } else { Reach::Full })
                .collect());
        }
    };
    Ok((0..count).map(|layer| if slides(layer) { Reach::Sliding } else { Reach::Full }).collect())
}

/// Whether each layer's keys are rotated.
fn rotated(text: &Fields<'_>, architecture: &Architecture, count: usize) -> Result<Vec<bool>, HfError> {
    if architecture.attention == Attention::Falcon && text.flag("alibi")? == Some(true) {
        return Ok(vec![false; count]);
    }
    let listed =
        text.list("no_rope_layers", "a list of 0 and 1", |entry| entry.as_u64().filter(|v| *v < 2))?;
    match listed.filter(|list| !list.is_empty()) {
        Some(_) if !architecture.some_unrotated => {
            Err(text.refused("no_rope_layers", "this architecture has no known layers without rotary keys"))
        }
        Some(list) if list.len() != count => {
            Err(text.refused("no_rope_layers", format!("must have {count} entries, one per layer")))
        }
        Some(list) => Ok(list.into_iter().map(|rotated| rotated == 1).collect()),
        None if architecture.some_unrotated => {
            let each = text.uint("no_rope_layer_interval")?.unwrap_or(4) as usize;
            Ok((1..=count).map(|layer| !layer.is_multiple_of(each)).collect())
        }
        None => Ok(vec![true; count]),
    }
}
