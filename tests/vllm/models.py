"""Models of other architectures than kvasir-tiny's, with random weights: only the form of their caches matters."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

WINDOW = 96
_SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "sliding_window": WINDOW,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
}


def make_gemma(folder: Path) -> Path:
    """Three layers with a window and one without, which vLLM keeps in groups of their own."""
    kinds = 3 * ["sliding_attention"] + ["full_attention"]
    return _saved(Gemma3ForCausalLM, Gemma3TextConfig(layer_types=kinds, query_pre_attn_scalar=32, **_SIZES), folder)


def make_mistral(folder: Path) -> Path:
    """All layers with a window."""
    return _saved(MistralForCausalLM, MistralConfig(**_SIZES), folder)


def make_llama4(folder: Path) -> Path:
    """Three layers with chunked local attention beside one of full attention."""
    kinds = 3 * ["chunked_attention"] + ["full_attention"]
    own = {"attention_chunk_size": WINDOW, "interleave_moe_layer_step": 8, "intermediate_size_mlp": 256}
    return _saved(Llama4ForCausalLM, Llama4TextConfig(**{**_SIZES, "sliding_window": None}, layer_types=kinds, **own), folder)


def make_deepseek(folder: Path) -> Path:
    """Latent attention. vLLM's CPU kernels know these sizes of the latent and of the rotary key alone."""
    own = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": None}
    dense = {"first_k_dense_replace": 4, "num_key_value_heads": 4, "head_dim": 64, "sliding_window": None}
    return _saved(DeepseekV3ForCausalLM, DeepseekV3Config(**{**_SIZES, **own, **dense}), folder)


def make_opt(folder: Path) -> Path:
    """An architecture that Kvasir does not know."""
    sizes = {"vocab_size": 512, "hidden_size": 128, "word_embed_proj_dim": 128, "ffn_dim": 256, "num_hidden_layers": 2}
    return _saved(OPTForCausalLM, OPTConfig(**sizes, num_attention_heads=4, max_position_embeddings=1024), folder)


def _saved(kind: type[PreTrainedModel], config: object, folder: Path) -> Path:
    torch.manual_seed(1)
    model = kind(config)
    with torch.no_grad():
        # What attention reads decides about the next token, and not the token before it.
        model.get_input_embeddings().weight *= 0.02
    model.save_pretrained(folder)
    return folder
