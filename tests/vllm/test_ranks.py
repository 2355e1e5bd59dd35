"""Tensor-parallel ranks share objects with an engine of one rank."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from engine import BLOCK, Engine, OtherEngine, make_exact_profile, make_tokens, wait_until_stored

from kvasir import Loss
from kvasir.vllm._ranks import Gatherer, Part, Ranks, Sender


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


HEADS, DIM, TOKENS = [2, 4], 8, 40


def make_rows(seed):
    """Rows of all ranks."""
    dice = np.random.default_rng(seed)
    return [tuple(dice.integers(1 << 16, size=(heads, TOKENS, DIM), dtype=np.uint16) for _ in range(2)) for heads in HEADS]


def rows_of(ranks, whole):
    """Rows of one rank."""
    parts = [ranks.heads_of(layer, ranks.rank) for layer in range(len(HEADS))]
    return [tuple(plane[heads.start : heads.stop].copy() for plane in pair) for heads, pair in zip(parts, whole, strict=True)]


def part(number, windowed_first=10, loss=None):
    return Part(number, 10, TOKENS, windowed_first, loss)


# As many ranks as heads, and more than the first layer has: neighbours hold the same one.
@pytest.mark.parametrize("size", [2, 4])
def test_the_first_rank_gathers_what_each_has_copied(size):
    ranks = [Ranks(rank, size, HEADS, f"engine-{size}") for rank in range(size)]
    gatherer, saves = Gatherer(ranks[0]), {number: make_rows(number) for number in range(5)}

    def send(own):
        sender = Sender(own)
        for number, whole in saves.items():
            # The second rank has no room for the save with number 1, and the first one none for number 2.
            has_room = (own.rank, number) != (1, 1)
            loss = Loss(0.1 * own.rank, own.rank, 1)
            sender.send(part(number, 10 + own.rank, loss), rows_of(own, whole) if has_room else None)

    others = [threading.Thread(target=send, args=(own,)) for own in ranks[1:]]
    for other in others:
        other.start()
    for number in (0, 1, 3, 4):
        gathered = gatherer.gather(part(number), rows_of(ranks[0], saves[number]))
        assert (gathered is None) == (number == 1)
        if gathered is not None:
            said, rows = gathered
            assert said == part(number, 10 + size - 1, Loss(0.1 * (size - 1), size - 1, 1))
            for pair, expected in zip(rows, saves[number], strict=True):
                assert all(np.array_equal(plane[:, 10:], of[:, 10:]) for plane, of in zip(pair, expected, strict=True))
    for other in others:
        other.join(10)
    gatherer.close()
