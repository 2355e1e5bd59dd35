"""Layers with a sliding window: vLLM frees blocks outside the window, and the text is still the same."""

from __future__ import annotations

import pytest
from engine import BLOCK, CHUNK, Engine, make_exact_profile, make_tokens, wait_until_stored
from models import make_gemma, make_mistral
from proxy import FaultProxy

import kvasir


# A step takes as many tokens as a chunk has, or more of them than a window behind the end of one.
@pytest.fixture(scope="module", params=[(make_gemma, 640), (make_mistral, 256)], ids=["gemma", "mistral"])
def setting(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    make_model, step_tokens = request.param
    model = make_model(folder / "model")
    exact = {"quality": "exact", "profile": make_exact_profile(folder / "exact.kvp", model)}
    with kvasir.testing.server() as service:
        proxy = FaultProxy(service.url)
        extra = {"load_deadline_s": 2.0, **exact}
        options = {"max_num_batched_tokens": step_tokens, "skip_tokenizer_init": True}
        engine = Engine(proxy.url, model=model, extra=extra, **options)
        engine.wait_until_connected()
        yield engine, kvasir.connect(service.url), proxy


def run(engine, tokens, count=8, **sampling):
    return engine.run(tokens, max_tokens=count, ignore_eos=True, detokenize=False, logprobs=2, **sampling)


def store_prompt(engine, store, tokens, count=8):
    """Run a prompt until it is stored."""
    before = store.usage()["objects"]
    answer = run(engine, tokens, count)
    engine.settle()
    wait_until_stored(store, before + 1)
    return answer


def check_prefix(engine, tokens, seed):
    """Load a prefix behind which the tokens go on in another way: of layers with a window, its end is what counts."""
    engine.forget()
    other = tokens + make_tokens(50, seed=1000 + seed)
    warm, cold = run(engine, other), run(engine, other, fresh=True)
    assert warm.cached == len(tokens) // BLOCK * BLOCK and warm.is_as(cold)


def is_warm(answer, tokens):
    return answer.cached == (len(tokens) - 1) // BLOCK * BLOCK


# Shorter than the window, than a chunk, at the end of a chunk, longer than both.
@pytest.mark.parametrize("length", [80, 200, 512, 700, 1000])
def test_warm_is_as_cold(setting, length):
    engine, store, _ = setting
    tokens = make_tokens(length, seed=length)
    cold = store_prompt(engine, store, tokens)
    engine.forget()
    warm = run(engine, tokens)
    assert cold.cached == 0 and is_warm(warm, tokens)
    assert warm.is_as(cold)


def test_what_was_generated_is_loaded_in_the_next_turn(setting):
    engine, store, _ = setting
    prompt = make_tokens(400, seed=1)
    # Longer than a chunk and than the window: rows are copied while it is generated.
    answer = store_prompt(engine, store, prompt, count=CHUNK + 150)
    engine.forget()
    turn = prompt + answer.tokens + make_tokens(50, seed=2)
    warm, cold = run(engine, turn), run(engine, turn, fresh=True)
    assert warm.cached >= (400 + CHUNK + 149) // BLOCK * BLOCK
    assert warm.is_as(cold)
    # In what was copied when the prompt was stored, and while it was generated.
    for end in (380, 450, 600, 700):
        check_prefix(engine, turn[:end], end)


def test_behind_a_prefix_that_vllm_has(setting):
    engine, store, _ = setting
    shared, ends = make_tokens(460, seed=3), [make_tokens(200, seed=seed) for seed in (4, 5)]
    store_prompt(engine, store, shared)
    # vLLM has the prefix, and of it only what lies in the window: the rest of its last chunk comes from the store.
    longer = shared + ends[0]
    answer = store_prompt(engine, store, longer)
    assert 0 < answer.cached < len(shared)
    engine.forget()
    warm, cold = run(engine, longer), run(engine, longer, fresh=True)
    assert is_warm(warm, longer) and warm.is_as(cold)
    for end in (350, 420, 500):
        check_prefix(engine, longer[:end], end)
    # And the other way round: vLLM has a part, and the rest is loaded behind it.
    engine.forget()
    run(engine, longer[:300], fresh=True)
    warm = run(engine, longer)
    assert is_warm(warm, longer) and warm.is_as(cold)


@pytest.mark.parametrize("mode", ["away", "silent", "unavailable", "unauthorized"])
def test_a_load_that_fails_is_computed(setting, mode):
    engine, store, proxy = setting
    tokens = make_tokens(600, seed=6)
    expected = store_prompt(engine, store, tokens) if mode == "away" else run(engine, tokens, fresh=True)
    engine.forget()
    request = engine.begin(tokens, max_tokens=8, ignore_eos=True, detokenize=False, logprobs=2)
    assert engine.looked_up(request) == 600
    proxy.mode = mode
    answers = {}
    while request not in answers:
        answers |= engine.step()
    proxy.mode = "sound"
    assert answers[request].is_as(expected)
    engine.settle()


def test_no_block_is_lost(setting):
    engine, _, _ = setting
    assert engine.lost_blocks() == 0
    worker = engine.worker
    assert worker._copied == {} and worker._queued_bytes == 0
