"""vLLM with LMCache over Kvasir: an engine with another LMCache server loads from Kvasir the KV that one engine computed."""

from __future__ import annotations

from pathlib import Path

import lmcache
import pytest
from engine import make_tokens, wait_until_stored
from proxy import FaultProxy
from stores import MeasuredEngine
from stores import lmcache as engine_with

import kvasir

PACKAGES = str(Path(lmcache.__file__).parents[1])
# Tokens of an object of LMCache's.
CHUNK = 256
PROMPTS = [make_tokens(length, seed) for seed, length in enumerate((600, 800, 530))]
ANSWER = 24
# What an engine takes to compute a prompt on a busy machine, above a deadline.
COMPUTING_S = 10.0


def adapter_of(url: str) -> dict:
    params = {"url": url, "lookup_deadline_s": 0.5, "load_deadline_s": 2.0}
    return {"type": "plugin", "module_path": "kvasir.lmcache", "class_name": "KvasirL2", "adapter_params": params}


@pytest.fixture(scope="module")
def computed():
    with MeasuredEngine() as engine:
        return [engine.ask(tokens=tokens, count=ANSWER)["tokens"] for tokens in PROMPTS]


def test_a_fresh_engine_loads_through_kvasir(computed):
    with kvasir.testing.server() as service:
        proxy, store = FaultProxy(service.url), kvasir.connect(service.url)
        with engine_with(PACKAGES, adapter_of(proxy.url)) as first:
            cold = [first.ask(tokens=tokens, count=ANSWER) for tokens in PROMPTS]
            wait_until_stored(store, sum(len(tokens) // CHUNK for tokens in PROMPTS))
        assert [found["cached"] for found in cold] == [0, 0, 0]
        assert [found["tokens"] for found in cold] == computed
        with engine_with(PACKAGES, adapter_of(proxy.url)) as fresh:
            warm = [fresh.ask(tokens=tokens, count=ANSWER) for tokens in PROMPTS]
            assert [found["cached"] for found in warm] == [len(tokens) // CHUNK * CHUNK for tokens in PROMPTS]
            assert [found["tokens"] for found in warm] == computed
            print({"cold_s": [found["seconds"] for found in cold], "warm_s": [found["seconds"] for found in warm]})
            for mode in ("silent", "away", "corrupt", "sound"):
                proxy.mode = mode
                for tokens, expected in zip(PROMPTS, computed, strict=True):
                    found = fresh.ask(tokens=tokens, count=ANSWER)
                    assert found["tokens"] == expected, mode
                    assert found["seconds"] < 2.5 + COMPUTING_S, mode
                    # Afterwards LMCache's own memory has what it could not store.
                    assert mode != "silent" or found["cached"] == 0
