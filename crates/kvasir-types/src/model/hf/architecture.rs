//! Architectures by `model_type`: the defaults of their configurations, and the layers that they imply.

use super::{super::Pairing, fields::Fields};

/// Which layers use a sliding window if `layer_types` does not specify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// None; a `sliding_window` is rejected.
    Never,
    /// Uncertain: `use_sliding_window` is rejected.
    Unknown,
    /// All, if `sliding_window` is set.
    All,
    /// All, if `use_sliding_window` is true.
    AllIfUsed,
    /// Those from `max_window_layers` on, if `use_sliding_window` is true.
    UpperIfUsed,
    /// All except each n-th, counted from 1; `sliding_window_pattern` may set another n.
    AllBut(u32),
    /// Those with rotated keys, in chunks of `attention_chunk_size`.
    ChunkedRotary,
}

/// Layout of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    /// `num_key_value_heads` of `head_dim`.
    Heads,
    /// Falcon: one head if `multi_query`, and alibi instead of rotary keys.
    Falcon,
    /// A latent of `kv_lora_rank` and a rotary key of `qk_rope_head_dim`.
    Latent,
}

/// The field with the rotated fraction of a head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Partial {
    /// The whole head is rotated; a `partial_rotary_factor` is rejected.
    Whole,
    /// `partial_rotary_factor`, or this default.
    Factor(f64),
    /// `rotary_pct`, or this default.
    Percentage(f64),
    /// `rotary_dim`, in elements, or the whole head.
    Dims,
}

/// An architecture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Architecture {
    pub(super) model_type: &'static str,
    pub(super) attention: Attention,
    pub(super) windows: Windows,
    pub(super) pairing: Pairing,
    pub(super) partial: Partial,
    /// Default of `rope_theta`, and for sliding layers of `rope_local_base_freq`.
    pub(super) theta: [f64; 2],
    /// Whether scaling applies to full-attention layers only, while sliding ones have a plain rope.
    pub(super) local_plain: bool,
    /// Whether `no_rope_layers` names layers without rotary keys; default: each fourth layer.
    pub(super) some_unrotated: bool,
    /// Whether keys are scaled if no rope is described: a configuration must have a description.
    pub(super) rope_required: bool,
    /// Values of absent fields. Without one, `num_key_value_heads` is `num_attention_heads`, `head_dim` its
    /// share of `hidden_size`, a window none, and another field required.
    pub(super) defaults: &'static [(&'static str, u32)],
}

impl Architecture {
    /// The value of an absent field. `null` is not absent: it has no default.
    pub(super) fn default_of(&self, text: &Fields<'_>, name: &str) -> Option<u32> {
        let default = self.defaults.iter().find(|(field, _)| *field == name && !text.contains(name));
        default.map(|(_, value)| *value)
    }
}

const PLAIN: Architecture = Architecture {
    model_type: "",
    attention: Attention::Heads,
    windows: Windows::Never,
    pairing: Pairing::Half,
    partial: Partial::Whole,
    theta: [1e4, 1e4],
    local_plain: false,
    some_unrotated: false,
    rope_required: false,
    defaults: &[],
};
const LATENT: Architecture =
    Architecture { attention: Attention::Latent, pairing: Pairing::Interleaved, ..PLAIN };
const HEADS_8: &[(&str, u32)] = &[("num_key_value_heads", 8)];
const HEADS_8_OF_128: &[(&str, u32)] = &[("num_key_value_heads", 8), ("head_dim", 128)];
const HEADS_2_OF_128: &[(&str, u32)] = &[("num_key_value_heads", 2), ("head_dim", 128)];

static ALL: &[Architecture] = &[
    Architecture { model_type: "llama", ..PLAIN },
    Architecture {
        model_type: "llama4_text",
        windows: Windows::ChunkedRotary,
        pairing: Pairing::Interleaved,
        theta: [5e5, 5e5],
        some_unrotated: true,
        defaults: &[
            ("head_dim", 128),
            ("num_key_value_heads", 8),
            ("num_attention_heads", 40),
            ("num_hidden_layers", 48),
            ("attention_chunk_size", 8192),
        ],
        ..PLAIN
    },
    Architecture {
        model_type: "mistral",
        windows: Windows::All,
        defaults: &[("num_key_value_heads", 8), ("sliding_window", 4096)],
        ..PLAIN
    },
    Architecture {
        model_type: "ministral3",
        windows: Windows::All,
        rope_required: true,
        defaults: HEADS_8_OF_128,
        ..PLAIN
    },
    Architecture {
        model_type: "mixtral",
        windows: Windows::All,
        theta: [1e6, 1e6],
        defaults: HEADS_8,
        ..PLAIN
    },
    Architecture {
        model_type: "qwen2",
        windows: Windows::UpperIfUsed,
        defaults: &[("num_key_value_heads", 32), ("sliding_window", 4096)],
        ..PLAIN
    },
    Architecture {
        model_type: "qwen2_moe",
        windows: Windows::Unknown,
        defaults: &[("num_key_value_heads", 16)],
        ..PLAIN
    },
    Architecture {
        model_type: "qwen3",
        windows: Windows::UpperIfUsed,
        defaults: &[("num_key_value_heads", 32), ("head_dim", 128), ("sliding_window", 4096)],
        ..PLAIN
    },
    Architecture {
        model_type: "qwen3_moe",
        windows: Windows::AllIfUsed,
        defaults: &[("num_key_value_heads", 4), ("sliding_window", 4096)],
        ..PLAIN
    },
    Architecture {
        model_type: "gemma",
        defaults: &[("num_key_value_heads", 16), ("head_dim", 256)],
        ..PLAIN
    },
    Architecture {
        model_type: "gemma2",
        windows: Windows::AllBut(2),
        defaults: &[("num_key_value_heads", 4), ("head_dim", 256)],
        ..PLAIN
    },
    Architecture {
        model_type: "gemma3_text",
        windows: Windows::AllBut(6),
        theta: [1e6, 1e4],
        local_plain: true,
        defaults: &[
            ("head_dim", 256),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("num_hidden_layers", 26),
        ],
        ..PLAIN
    },
    Architecture {
        model_type: "gpt_oss",
        windows: Windows::AllBut(2),
        theta: [1.5e5, 1.5e5],
        rope_required: true,
        defaults: &[("num_key_value_heads", 8), ("head_dim", 64)],
        ..PLAIN
    },
    Architecture { model_type: "phi", partial: Partial::Factor(0.5), ..PLAIN },
    Architecture {
        model_type: "phi3",
        windows: Windows::All,
        partial: Partial::Factor(1.0),
        defaults: &[("original_max_position_embeddings", 4096)],
        ..PLAIN
    },
    Architecture { model_type: "olmo", ..PLAIN },
    Architecture { model_type: "olmo2", ..PLAIN },
    Architecture {
        model_type: "olmo3",
        windows: Windows::AllBut(4),
        theta: [5e5, 5e5],
        local_plain: true,
        ..PLAIN
    },
    Architecture {
        model_type: "smollm3",
        some_unrotated: true,
        theta: [2e6, 2e6],
        defaults: &[("num_key_value_heads", 4)],
        ..PLAIN
    },
    Architecture { model_type: "falcon", attention: Attention::Falcon, ..PLAIN },
    Architecture { model_type: "gpt_neox", partial: Partial::Percentage(0.25), ..PLAIN },
    Architecture {
        model_type: "glm",
        pairing: Pairing::Interleaved,
        partial: Partial::Factor(0.5),
        defaults: HEADS_2_OF_128,
        ..PLAIN
    },
    Architecture {
        model_type: "glm4",
        pairing: Pairing::Interleaved,
        partial: Partial::Factor(0.5),
        defaults: HEADS_2_OF_128,
        ..PLAIN
    },
    Architecture { model_type: "glm4_moe", partial: Partial::Factor(0.5), defaults: HEADS_8, ..PLAIN },
    Architecture {
        model_type: "minimax_m2",
        partial: Partial::Dims,
        theta: [5e6, 5e6],
        defaults: HEADS_8_OF_128,
        ..PLAIN
    },
    Architecture { model_type: "deepseek_v2", ..LATENT },
    Architecture { model_type: "deepseek_v3", ..LATENT },
    Architecture { model_type: "kimi_k2", ..LATENT },
    Architecture { model_type: "glm4_moe_lite", ..LATENT },
];

/// Multimodal models whose text model is one of these, with plain numbers as positions.
pub(super) const WRAPPERS: &[&str] = &["gemma3", "llama4", "mistral3"];

/// The architecture of a `model_type`.
pub(super) fn of(model_type: &str) -> Option<&'static Architecture> {
    ALL.iter().find(|architecture| architecture.model_type == model_type)
}

/// All names, for messages.
pub(super) fn names() -> String {
    let text = ALL.iter().map(|architecture| architecture.model_type);
    text.chain(WRAPPERS.iter().copied()).collect::<Vec<_>>().join(", ")
}
