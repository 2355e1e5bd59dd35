"""Sampling other than greedy, and ways to end a text: all as without Kvasir, on an engine with priority scheduling."""

from __future__ import annotations

import random

import pytest
import torch
from engine import Engine, make_exact_profile, make_tokens, wait_until_stored
from proxy import FaultProxy
from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import BeamSearchParams

import kvasir


# 40 blocks of 32 tokens: what has a better priority takes them from the others. In float16 fewer tokens are nearly as good as
# another one. vLLM's CPU build cannot compute a prompt in parts and sample with a seed, so a step takes whole prompts.
@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    profile = tmp_path_factory.mktemp("sampling") / "exact.kvp"
    exact = {"quality": "exact", "profile": make_exact_profile(profile, kv_dtype=torch.float16)}
    with kvasir.testing.server() as service:
        proxy = FaultProxy(service.url)
        options = {
            "dtype": "float16",
            "scheduling_policy": "priority",
            "num_gpu_blocks_override": 41,
            "max_num_batched_tokens": 2048,
        }
        engine = Engine(proxy.url, extra=exact, disable_log_stats=False, **options)
        engine.wait_until_connected()
        yield engine, kvasir.connect(service.url), proxy


def without_kvasir(setting, run):
    """Give what `run` gives where the service is away."""
    engine, _, proxy = setting
    engine.forget()
    proxy.mode = "away"
    result = run()
    engine.settle()
    proxy.mode = "sound"
    return result


def loaded_tokens(engine):
    engine.settle()
    return engine.metrics().get("load_tokens", 0)


def store_prompt(setting, tokens):
    engine, store, _ = setting
    before = store.usage()["objects"]
    engine.run(tokens)
    engine.settle()
    wait_until_stored(store, before + 1)
    engine.forget()


def generate(engine, tokens, **sampling):
    [output] = engine.llm.generate(TokensPrompt(prompt_token_ids=tokens), SamplingParams(**sampling), use_tqdm=False)
    return [(list(each.token_ids), each.text, each.finish_reason, each.stop_reason) for each in output.outputs]


def test_beams(setting):
    engine, _, _ = setting
    tokens = make_tokens(500, seed=1)

    def search():
        [output] = engine.llm.beam_search([TokensPrompt(prompt_token_ids=tokens)], BeamSearchParams(beam_width=3, max_tokens=12))
        return [beam.tokens for beam in output.sequences]

    expected = without_kvasir(setting, search)
    store_prompt(setting, tokens)
    before = loaded_tokens(engine)
    assert search() == expected and len(expected) == 3
    assert loaded_tokens(engine) >= before + 480


def test_several_sampled_answers(setting):
    engine, _, _ = setting
    tokens = make_tokens(450, seed=2)
    sampling = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 12}
    expected = without_kvasir(setting, lambda: generate(engine, tokens, **sampling))
    store_prompt(setting, tokens)
    before = loaded_tokens(engine)
    assert generate(engine, tokens, **sampling) == expected and len(set(map(str, expected))) == 3
    assert loaded_tokens(engine) >= before + 448


def test_stop_strings(setting):
    engine, store, _ = setting
    tokens = make_tokens(300, seed=3)
    # The greedy text repeats itself.
    sampling = {"temperature": 1.0, "seed": 5, "max_tokens": 400, "ignore_eos": True}
    [(_, text, _, _)] = without_kvasir(setting, lambda: generate(engine, tokens, **sampling))
    # What comes late, and not before.
    stop = next(text[at : at + 8] for at in range(len(text) * 8 // 10, len(text)) if text.find(text[at : at + 8]) == at)
    sampling["stop"] = [stop]
    expected = without_kvasir(setting, lambda: generate(engine, tokens, **sampling))
    store_prompt(setting, tokens)
    before, objects = loaded_tokens(engine), store.usage()["objects"]
    warm = generate(engine, tokens, **sampling)
    assert warm == expected and warm[0][2:] == ("stop", stop)
    assert loaded_tokens(engine) >= before + 288
    # vLLM ends it as it ends what a client gives up. What it has generated is stored all the same.
    wait_until_stored(store, objects + 1)
    engine.forget()
    turn = tokens + warm[0][0]
    assert engine.run(turn).cached >= (len(turn) - 2) // 32 * 32 > 300


def test_priorities(setting):
    engine, _, _ = setting
    prompts = [make_tokens(400, seed=10 + seed) for seed in range(6)]
    expected = [
        without_kvasir(setting, lambda prompt=prompt: engine.run(prompt, max_tokens=200, ignore_eos=True, logprobs=2))
        for prompt in prompts
    ]
    for prompt in prompts:
        store_prompt(setting, prompt)
    before, preempted = loaded_tokens(engine), preemptions(engine)
    waiting, order = {}, []
    for n, prompt in enumerate(prompts):
        # Each comes with a better priority than those that run.
        waiting[engine.begin(prompt, max_tokens=200, ignore_eos=True, priority=-n)] = n
        for _ in range(30):
            order += take(engine, waiting, expected)
    while waiting:
        order += take(engine, waiting, expected)
    # The first one was overtaken.
    assert order.index(0) > order.index(5)
    assert preemptions(engine) > preempted and loaded_tokens(engine) >= before + 6 * 384


def preemptions(engine):
    return sum(metric.value for metric in engine.llm.get_metrics() if metric.name == "vllm:num_preemptions")


def take(engine, waiting, expected):
    """Do a step; gives which requests are over."""
    over = []
    for request_id, answer in engine.step().items():
        over.append(waiting.pop(request_id))
        assert answer.is_as(expected[over[-1]])
    return over


def test_aborts_at_any_step(setting):
    engine, _, _ = setting
    dice = random.Random(4)
    tokens = [make_tokens(600, seed=20 + seed) for seed in range(3)]
    expected = [without_kvasir(setting, lambda prompt=prompt: engine.run(prompt)) for prompt in tokens]
    store_prompt(setting, tokens[0])
    for steps in range(24):
        if steps % 2:
            engine.forget()
        requests = [engine.begin(prompt, max_tokens=64, ignore_eos=True, priority=dice.randrange(3)) for prompt in tokens]
        for _ in range(steps):
            engine.step()
        engine.abort(requests)
    engine.forget()
    assert [engine.run(prompt).tokens for prompt in tokens] == [answer.tokens for answer in expected]


def test_no_block_is_lost(setting):
    engine, _, _ = setting
    assert engine.lost_blocks() == 0
    assert engine.worker._queued_bytes == 0
