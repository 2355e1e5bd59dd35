//! The architectures, by `model_type`: what each one's configuration leaves out, and which layers it implies.

use super::super::Pairing;

/// Which layers attend to a window where `layer_types` does not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// None; a `sliding_window` is refused.
    Never,
    /// Not certain: `use_sliding_window` is refused.
    Unknown,
    /// All, where `sliding_window` is set.
    All,
    /// All, where `use_sliding_window` is true.
    AllIfUsed,
    /// Those from `max_window_layers` on, where `use_sliding_window` is true.
    UpperIfUsed,
    /// All but each n-th, counted from 1; `sliding_window_pattern` may say another n.
    AllBut(u32),
    /// Those with rotated keys, in chunks of `attention_chunk_size`.
    ChunkedRotary,
}

/// How the cache is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    /// `num_key_value_heads` (as many as `num_attention_heads` without it) of `head_dim`.
    Heads,
    /// Falcon's: one head where `multi_query`, and alibi instead of rotary keys.
    Falcon,
    /// A latent of `kv_lora_rank` and a rotary key of `qk_rope_head_dim`.
    Latent,
}

/// Where the fraction of a head that is rotated stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Partial {
    /// All is rotated; a `partial_rotary_factor` is refused.
    Whole,
    /// `partial_rotary_factor`, or this.
    Factor(f64),
    /// `rotary_pct`, or this.
    Percentage(f64),
    /// `rotary_dim`, in elements, or all.
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
    /// Base without `rope_theta`, and that of sliding layers without `rope_local_base_freq`.
    pub(super) theta: [f64; 2],
    /// Whether scaling applies to full layers only, sliding ones keeping a plain rope.
    pub(super) local_plain: bool,
    /// Whether `no_rope_layers` names layers without rotary keys, each fourth one without it.
    pub(super) some_unrotated: bool,
    /// Fields that its published configurations leave out.
    pub(super) defaults: &'static [(&'static str, u32)],
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
    defaults: &[],
};
const LATENT: Architecture =
    Architecture { attention: Attention::Latent, pairing: Pairing::Interleaved, ..PLAIN };
const GEMMA: &[(&str, u32)] = &[("head_dim", 256)];
const HEAD_128: &[(&str, u32)] = &[("head_dim", 128)];

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
    Architecture { model_type: "mistral", windows: Windows::All, ..PLAIN },
    Architecture { model_type: "ministral3", windows: Windows::All, theta: [1e6, 1e6], ..PLAIN },
    Architecture { model_type: "mixtral", windows: Windows::All, theta: [1e6, 1e6], ..PLAIN },
    Architecture { model_type: "qwen2", windows: Windows::UpperIfUsed, ..PLAIN },
    Architecture { model_type: "qwen2_moe", windows: Windows::Unknown, ..PLAIN },
    Architecture { model_type: "qwen3", windows: Windows::UpperIfUsed, defaults: HEAD_128, ..PLAIN },
    Architecture { model_type: "qwen3_moe", windows: Windows::AllIfUsed, ..PLAIN },
    Architecture { model_type: "gemma", defaults: GEMMA, ..PLAIN },
    Architecture { model_type: "gemma2", windows: Windows::AllBut(2), defaults: GEMMA, ..PLAIN },
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
        defaults: &[("head_dim", 64)],
        ..PLAIN
    },
    Architecture { model_type: "phi", partial: Partial::Factor(0.5), ..PLAIN },
    Architecture { model_type: "phi3", windows: Windows::All, partial: Partial::Factor(1.0), ..PLAIN },
    Architecture { model_type: "olmo", ..PLAIN },
    Architecture { model_type: "olmo2", ..PLAIN },
    Architecture { model_type: "olmo3", windows: Windows::AllBut(4), local_plain: true, ..PLAIN },
    Architecture { model_type: "smollm3", some_unrotated: true, theta: [2e6, 2e6], ..PLAIN },
    Architecture { model_type: "falcon", attention: Attention::Falcon, ..PLAIN },
    Architecture { model_type: "gpt_neox", partial: Partial::Percentage(0.25), ..PLAIN },
    Architecture {
        model_type: "glm",
        pairing: Pairing::Interleaved,
        partial: Partial::Factor(0.5),
        defaults: HEAD_128,
        ..PLAIN
    },
    Architecture {
        model_type: "glm4",
        pairing: Pairing::Interleaved,
        partial: Partial::Factor(0.5),
        defaults: HEAD_128,
        ..PLAIN
    },
    Architecture { model_type: "glm4_moe", partial: Partial::Factor(0.5), ..PLAIN },
    Architecture {
        model_type: "minimax_m2",
        partial: Partial::Dims,
        theta: [5e6, 5e6],
        defaults: HEAD_128,
        ..PLAIN
    },
    Architecture { model_type: "deepseek_v2", ..LATENT },
    Architecture { model_type: "deepseek_v3", ..LATENT },
    Architecture { model_type: "kimi_k2", ..LATENT },
    Architecture { model_type: "glm4_moe_lite", ..LATENT },
];

/// Multimodal models whose text model is one of these, with positions that are plain numbers.
pub(super) const WRAPPERS: &[&str] = &["gemma3", "llama4", "mistral3"];

/// The architecture of a `model_type`.
pub(super) fn of(model_type: &str) -> Option<&'static Architecture> {
    ALL.iter().find(|architecture| architecture.model_type == model_type)
}

/// All of them, for people.
pub(super) fn names() -> String {
    let text = ALL.iter().map(|architecture| architecture.model_type);
    text.chain(WRAPPERS.iter().copied()).collect::<Vec<_>>().join(", ")
}
