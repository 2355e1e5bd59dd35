"""Models of other architectures than kvasir-tiny's, with random weights: what counts is what their caches are like."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, MistralConfig, MistralForCausalLM, PreTrainedModel

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


def _saved(kind: type[PreTrainedModel], config: object, folder: Path) -> Path:
    torch.manual_seed(1)
    model = kind(config)
    with torch.no_grad():
        # What attention reads decides about the next token, and not the token before it.
        model.get_input_embeddings().weight *= 0.02
    model.save_pretrained(folder)
    return folder
