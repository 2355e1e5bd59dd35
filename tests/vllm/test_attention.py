"""Attention of other kinds: of latent attention the latent and the rotary key of each token come back, and of chunked local
attention all rows, which vLLM keeps where it is told to.
"""

from __future__ import annotations

import pytest
from engine import BLOCK, Engine, make_exact_profile, make_tokens, wait_until_stored
from models import make_deepseek, make_llama4

import kvasir

CHUNKED = {"disable_hybrid_kv_cache_manager": True}


@pytest.fixture(scope="module", params=[(make_deepseek, {}), (make_llama4, CHUNKED)], ids=["latent", "chunked"])
def setting(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("attention")
    make_model, options = request.param
    model = make_model(folder / "model")
    exact = {"quality": "exact", "profile": make_exact_profile(folder / "exact.kvp", model)}
    with kvasir.testing.server() as service:
        engine = Engine(service.url, model=model, extra=exact, skip_tokenizer_init=True, disable_log_stats=False, **options)
        engine.wait_until_connected()
        yield engine, kvasir.connect(service.url)


def run(engine, tokens, **sampling):
    return engine.run(tokens, max_tokens=16, ignore_eos=True, detokenize=False, logprobs=2, **sampling)


def store_prompt(engine, store, tokens):
    """Run a prompt until it is stored; gives what vLLM makes of it from its own cache, with which a load must agree.

    The kernels of latent attention round otherwise where they begin behind a prefix.
    """
    before = store.usage()["objects"]
    cold = run(engine, tokens)
    engine.settle()
    wait_until_stored(store, before + 1)
    own = run(engine, tokens)
    engine.forget()
    assert cold.cached == 0 and own.cached == (len(tokens) - 1) // BLOCK * BLOCK
    return own


@pytest.mark.parametrize("length", [200, 512, 1000])
def test_a_load_is_as_what_vllm_has(setting, length):
    engine, store = setting
    tokens = make_tokens(length, seed=length)
    own = store_prompt(engine, store, tokens)
    warm = run(engine, tokens)
    assert (warm.tokens, warm.cached) == (own.tokens, own.cached)


def test_behind_a_prefix_that_vllm_has(setting):
    engine, store = setting
    tokens = make_tokens(900, seed=1)
    own = store_prompt(engine, store, tokens)
    # Loaded, too: computed again, its rows would be rounded otherwise.
    run(engine, tokens[:300])
    before = engine.metrics()["load_tokens"]
    warm = run(engine, tokens)
    assert engine.metrics()["load_tokens"] - before == 896 - 288
    assert (warm.tokens, warm.cached) == (own.tokens, own.cached)


def test_no_block_is_lost(setting):
    engine, _ = setting
    assert engine.lost_blocks() == 0
