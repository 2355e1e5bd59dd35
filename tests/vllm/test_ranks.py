"""Tensor-parallel ranks share objects with an engine of one rank."""

from __future__ import annotations

import pytest
from engine import BLOCK, Engine, OtherEngine, make_exact_profile, make_tokens, wait_until_stored


@pytest.fixture(scope="module")
def engines(service, tmp_path_factory):
    exact = {"quality": "exact", "profile": make_exact_profile(tmp_path_factory.mktemp("ranks") / "exact.kvp")}
    # A core for each rank.
    binding = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    options = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    with OtherEngine(service.url, binding, extra=exact, **options) as pair:
        engine = Engine(service.url, extra=exact)
        engine.wait_until_connected()
        yield engine, pair


def run_single(engine, tokens):
    engine.forget()
    return engine.run(tokens, logprobs=2)


@pytest.mark.parametrize("length", [100, 700, 1000])
def test_two_load_what_one_has_stored(engines, store, length):
    engine, pair = engines
    tokens = make_tokens(length, seed=length)
    before = store.usage()["objects"]
    cold = run_single(engine, tokens)
    wait_until_stored(store, before + 1)
    warm = pair.run(tokens)
    assert cold.cached == 0 and warm.cached == (length - 1) // BLOCK * BLOCK
    assert warm.is_as(cold)


@pytest.mark.parametrize("length", [130, 700, 900])
def test_one_loads_what_two_have_stored(engines, store, length):
    engine, pair = engines
    tokens = make_tokens(length, seed=2 * length)
    before = store.usage()["objects"]
    cold = pair.run(tokens)
    wait_until_stored(store, before + 1)
    warm, expected = run_single(engine, tokens), engine.run(tokens, fresh=True, logprobs=2)
    assert cold.cached == 0 and warm.cached == (length - 1) // BLOCK * BLOCK
    assert warm.is_as(expected) and cold.is_as(expected)
