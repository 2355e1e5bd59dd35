"""A small model, its caches, and a service; for the tests here and for the package's doctests."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import kvasir

TOKENS = 512
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_theta": 10_000.0,
    "torch_dtype": "float16",
}


README = Path(__file__).resolve().parents[2] / "crates" / "kvasir-python" / "README.md"


def readme_examples() -> list[str]:
    """The blocks of Python in the guide."""
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(), flags=re.M | re.S)


def make_spec(kv_dtype: str = "float16", layers: int = 3) -> kvasir.ModelSpec:
    config = {**CONFIG, "num_hidden_layers": layers}
    return kvasir.ModelSpec.from_config(config, weights="toy", revision="1", kv_dtype=kv_dtype)


def make_tokens(count: int = TOKENS, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50, count).tolist()


def make_kv(spec: kvasir.ModelSpec, count: int = TOKENS, seed: int = 0) -> list:
    """Waves and noise, of the cache's type."""
    noise, kv = np.random.default_rng(seed), spec.empty(count)
    for array in (array for pair in kv for array in pair):
        values = np.sin(np.arange(count)[:, None] * 0.01 + np.arange(array.shape[2])) + noise.normal(0, 0.1, array.shape)
        narrow = values.astype(np.float32)
        # bfloat16 as numpy has it: the upper half of a float32's bits. The others are rounded by the assignment.
        array[:] = (narrow.view(np.uint32) >> 16).astype(np.uint16) if spec.kv_dtype == "bfloat16" else narrow
    return kv


def make_profile(spec: kvasir.ModelSpec, recipe: str = "exact-residual") -> kvasir.Profile:
    contexts = [(make_tokens(seed=seed), make_kv(spec, seed=seed)) for seed in (1, 2, 3)]
    # An error is quicker to train to than a quality.
    return kvasir.Profile.train(contexts, model=spec, recipe=recipe, finest_nmse=2.5e-4)


def same(a: list, b: list, tokens: int) -> bool:
    pairs = zip((x for pair in a for x in pair), (y for pair in b for y in pair), strict=True)
    return all(np.array_equal(x[:, :tokens], y[:, :tokens]) for x, y in pairs)


@pytest.fixture(scope="session")
def spec() -> kvasir.ModelSpec:
    return make_spec()


@pytest.fixture(scope="session")
def profile(spec: kvasir.ModelSpec) -> kvasir.Profile:
    return make_profile(spec)


@pytest.fixture(scope="session")
def tokens() -> list[int]:
    return make_tokens()


@pytest.fixture(scope="session")
def kv(spec: kvasir.ModelSpec) -> list:
    return make_kv(spec)


@pytest.fixture(scope="session")
def server():
    with kvasir.testing.server() as running:
        yield running


@pytest.fixture(scope="session")
def store(server) -> kvasir.Store:
    return kvasir.connect(server.url)


@pytest.fixture(scope="session")
def model(store, spec, profile) -> kvasir.Model:
    return store.model(spec, profile)


@pytest.fixture(autouse=True)
def names_of_examples(request, doctest_namespace, tmp_path_factory) -> None:
    """What the examples of docstrings use without making it. Each has a namespace of its own, so that none finds another's."""
    if type(request.node).__name__ != "DoctestItem":
        return
    url, folder = request.getfixturevalue("server").url, tmp_path_factory.mktemp("examples")
    names = {name: request.getfixturevalue(name) for name in ("spec", "profile", "tokens", "kv", "server")}
    store = kvasir.connect(url, namespace=folder.name)
    model = store.model(names["spec"], names["profile"])
    modules = {"kvasir": kvasir, "json": json, "os": os, "asyncio": asyncio}
    doctest_namespace.update(names, **modules, store=store, model=model, folder=Path(folder), config=CONFIG)
