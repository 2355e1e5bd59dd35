"""Unsupported configurations are refused with a message, and vLLM continues without Kvasir."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from engine import Engine, make_tokens
from models import make_opt
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
)

import kvasir
from kvasir.vllm._layout import check_groups


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"urll": "x"}, "urll is not a setting"),
        ({"quality": "best"}, "quality is 'best'"),
        ({"chunk_tokens": 100}, "chunk_tokens is 100"),
        ({"load_deadline_s": "soon"}, "load_deadline_s is 'soon'"),
        ({"load_deadline_s": 0}, "load_deadline_s is 0"),
    ],
)
def test_settings(extra, says):
    with pytest.raises(kvasir.InputError, match=says):
        Engine("http://127.0.0.1:1", extra=extra)


ROWS = {"block_size": 32, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
FULL = FullAttentionSpec(**ROWS)
LATENT = MLAAttentionSpec(**ROWS)
MAMBA = MambaSpec(block_size=32, shapes=((4, 4),), dtypes=(torch.float32,), mamba_type=MambaAttentionBackendEnum.MAMBA2)


def check(*specs, prefix_caching=True, starts_after_prefix=True, **parallel):
    """Check a cache of groups with these specs."""
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "nnodes": 1, **parallel}
    cache = SimpleNamespace(enable_prefix_caching=prefix_caching)
    model = SimpleNamespace(is_prefix_caching_supported=starts_after_prefix)
    config = SimpleNamespace(parallel_config=SimpleNamespace(**sizes), cache_config=cache, model_config=model)
    check_groups(config, SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs]))


@pytest.mark.parametrize(
    ("specs", "options", "says"),
    [
        ([FULL, MAMBA], {}, "the model has Mamba layers"),
        ([FULL, ChunkedLocalAttentionSpec(**ROWS, attention_chunk_size=128)], {}, "blocks of chunked local attention"),
        ([FULL, CrossAttentionSpec(**ROWS)], {}, "has the type CrossAttentionSpec"),
        ([FULL, FullAttentionSpec(**{**ROWS, "block_size": 64})], {}, r"blocks have \[32, 64\] tokens"),
        ([FullAttentionSpec(**ROWS, kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD)], {}, "quantised as INT8_PER_TOKEN_HEAD"),
        ([FULL], {"starts_after_prefix": False}, "computes this model's prompts as a whole"),
        ([LATENT], {"prefix_caching": False}, "latent attention without prefix caching"),
        ([LATENT], {"tensor_parallel_size": 2}, "latent attention on 2 ranks"),
        ([MLAAttentionSpec(**ROWS, model_version="deepseek_v4")], {}, "latent attention is packed"),
        ([FULL], {"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
        ([FULL], {"decode_context_parallel_size": 2}, "decode_context_parallel_size is 2"),
        ([FULL], {"prefill_context_parallel_size": 2}, "prefill_context_parallel_size is 2"),
        ([FULL], {"nnodes": 2}, "nnodes is 2"),
    ],
)
def test_caches(specs, options, says):
    with pytest.raises(kvasir.InputError, match=says) as refused:
        check(*specs, **options)
    assert refused.value.remedy


def test_known_caches():
    check(FULL, FULL)
    check(LATENT)
    check(FULL, tensor_parallel_size=2)


def test_vllm_goes_on_without_an_unknown_model(tmp_path, caplog):
    with kvasir.testing.server() as service:
        engine = Engine(service.url, model=make_opt(tmp_path / "opt"), skip_tokenizer_init=True)
        tokens, sampling = make_tokens(300, seed=1), {"detokenize": False, "ignore_eos": True}
        expected = engine.run(tokens, fresh=True, **sampling)
        engine.forget()
        answer = engine.run(tokens, **sampling)
        assert answer.tokens == expected.tokens and answer.cached == 0
        assert engine.lost_blocks() == 0
        assert kvasir.connect(service.url).usage()["objects"] == 0
    assert "opt" in (line := next(line for line in caplog.messages if "vLLM runs without Kvasir" in line)), line


def test_no_service_at_all():
    engine = Engine("http://127.0.0.1:1")
    tokens = make_tokens(300, seed=1)
    assert engine.run(tokens).tokens == engine.run(tokens, fresh=True).tokens
