"""One engine loads the KV that another computed, and the text is the same, token by token."""

from __future__ import annotations

import pytest
from engine import BLOCK, Engine, OtherEngine, make_exact_profile, make_tokens, wait_until_stored


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    return {"quality": "exact", "profile": make_exact_profile(tmp_path_factory.mktemp("profile") / "exact.kvp")}


@pytest.fixture(scope="module")
def engine(service, exact):
    engine = Engine(service.url, extra=exact)
    engine.wait_until_connected()
    # vLLM has all rows of a chunk that is stored again: nothing is loaded for it.
    engine.worker._complete = None
    return engine


def whole_blocks(tokens: list[int], block: int = BLOCK) -> int:
    return (len(tokens) - 1) // block * block


# Shorter than a chunk, longer, at the end of a chunk, of a block, and one behind.
@pytest.mark.parametrize("length", [442, 100, 512, 513, 640, 1000])
def test_warm_is_as_cold(engine, store, length):
    tokens = make_tokens(length, seed=length)
    before = store.usage()["objects"]
    cold = engine.run(tokens, max_tokens=16)
    wait_until_stored(store, before + 1)
    engine.forget()
    warm = engine.run(tokens, max_tokens=16)
    assert cold.cached == 0 and warm.cached == whole_blocks(tokens)
    assert warm.tokens == cold.tokens


def test_behind_a_prefix_that_vllm_has(engine, store):
    tokens = make_tokens(900, seed=1)
    cold = engine.run(tokens)
    wait_until_stored(store)
    engine.forget()
    # vLLM keeps the first part; the rest is loaded behind it.
    engine.run(tokens[:300])
    local = engine.run(tokens[:300] + make_tokens(64, seed=2)).cached
    warm = engine.run(tokens)
    assert 0 < local < warm.cached == whole_blocks(tokens)
    assert warm.tokens == cold.tokens


def test_another_end_loads_what_is_shared(engine, store):
    shared, ends = make_tokens(700, seed=3), [make_tokens(90, seed=seed) for seed in (4, 5)]
    engine.run(shared + ends[0])
    wait_until_stored(store)
    engine.forget()
    other = shared + ends[1]
    warm, cold = engine.run(other), engine.run(other, fresh=True)
    assert warm.cached == 700 // BLOCK * BLOCK and warm.tokens == cold.tokens


def test_what_was_generated_is_loaded_in_the_next_turn(engine, store):
    prompt = make_tokens(400, seed=6)
    answer = engine.run(prompt, max_tokens=300, ignore_eos=True)
    engine.settle()
    wait_until_stored(store)
    engine.forget()
    turn = prompt + answer.tokens + make_tokens(50, seed=7)
    warm, cold = engine.run(turn), engine.run(turn, fresh=True)
    assert warm.cached >= (400 + 299) // BLOCK * BLOCK
    assert warm.tokens == cold.tokens


def test_several_answers_of_one_prompt(engine, store):
    tokens = make_tokens(500, seed=8)
    engine.run(tokens)
    wait_until_stored(store)
    engine.forget()
    prompts = [engine.begin(tokens, max_tokens=12) for _ in range(4)]
    answers: dict = {}
    while len(answers) < len(prompts):
        answers.update(engine.step())
    cold = engine.run(tokens, fresh=True, max_tokens=12)
    assert [answers[prompt].tokens for prompt in prompts] == 4 * [cold.tokens]


def test_salts_isolate(engine, store):
    tokens = make_tokens(400, seed=9)
    engine.run(tokens, salt="a")
    wait_until_stored(store)
    for salt, is_known in [("a", True), ("b", False), (None, False)]:
        engine.forget()
        assert (engine.run(tokens, salt=salt).cached > 0) == is_known


def test_another_engine_with_other_blocks(service, store, engine, exact):
    tokens = make_tokens(1000, seed=10)
    cold = engine.run(tokens)
    wait_until_stored(store)
    with OtherEngine(service.url, block=64, extra=exact) as other:
        warm = other.run(tokens)
    assert warm.cached == whole_blocks(tokens, 64) and warm.tokens == cold.tokens


def test_no_block_is_lost(engine):
    assert engine.lost_blocks() == 0
