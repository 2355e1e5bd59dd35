"""A cache of eight-bit floats: the loaded bytes equal the stored ones."""

from __future__ import annotations

import pytest
import torch
from engine import BLOCK, Engine, make_exact_profile, make_tokens, wait_until_stored

import kvasir


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    profile = tmp_path_factory.mktemp("fp8") / "exact.kvp"
    exact = {"quality": "exact", "profile": make_exact_profile(profile, kv_dtype=torch.float8_e4m3fn)}
    with kvasir.testing.server() as service:
        engine = Engine(service.url, extra=exact, kv_cache_dtype="fp8")
        engine.wait_until_connected()
        yield engine, kvasir.connect(service.url)


@pytest.mark.parametrize("length", [100, 512, 1000])
def test_warm_is_as_cold(setting, length):
    engine, store = setting
    tokens = make_tokens(length, seed=length)
    before = store.usage()["objects"]
    cold = engine.run(tokens, max_tokens=16, logprobs=2)
    wait_until_stored(store, before + 1)
    engine.forget()
    warm = engine.run(tokens, max_tokens=16)
    assert cold.cached == 0 and warm.cached == (length - 1) // BLOCK * BLOCK
    assert warm.is_as(cold)


def test_no_block_is_lost(setting):
    engine, _ = setting
    assert engine.lost_blocks() == 0
