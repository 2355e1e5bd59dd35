"""Automatically made profiles, and the quality promised by lookups."""

from __future__ import annotations

import math

import pytest
from engine import CHUNK, Engine, make_spec, make_tokens, wait_until_stored

# Nats a token: a tenth of what two tokens differ by that rounding may exchange.
KL_MAX = 0.01


@pytest.fixture(scope="module")
def engine(service):
    engine = Engine(service.url, max_logprobs=-1)
    engine.wait_until_connected()
    return engine


def kl_of(cold, warm) -> float:
    """Of the first token's distribution."""
    p, q = cold.distributions[0], warm.distributions[0]
    return sum(math.exp(p[token]) * (p[token] - q[token]) for token in p)


def test_logits_are_nearly_those_of_what_was_computed(engine, store, capsys):
    prompts = [make_tokens(300 + 97 * seed, seed=50 + seed) for seed in range(6)]
    for prompt in prompts:
        engine.run(prompt)
    wait_until_stored(store, len(prompts))
    engine.forget()
    kls = []
    for prompt in prompts:
        warm = engine.run(prompt, logprobs=-1, max_tokens=1)
        assert warm.cached > 0
        kls.append(kl_of(engine.run(prompt, logprobs=-1, max_tokens=1, fresh=True), warm))
    with capsys.disabled():
        print("KL of the first token, nats:", [f"{kl:.1e}" for kl in kls])
    assert max(kls) < KL_MAX


def test_what_is_stored_over_a_lossy_load_says_so(engine, store):
    shared = make_tokens(2 * CHUNK, seed=70)
    engine.run(shared)
    wait_until_stored(store)
    engine.forget()
    # One request loads, the next one has vLLM's blocks of that load.
    prompts = [shared + make_tokens(CHUNK, seed=seed) for seed in (71, 72)]
    for prompt in prompts:
        before = store.usage()["objects"]
        assert engine.run(prompt).cached == 2 * CHUNK
        wait_until_stored(store, before + 1)
    model = store.model(make_spec())
    for prompt in prompts:
        session = model.session(prompt)
        losses = dict(session.load(level=2).losses)
        hops = [losses[tokens].hops for tokens in sorted(losses, key=lambda tokens: tokens.start)]
        assert session.matched == 3 * CHUNK and hops[0] == 1 and hops[-1] == 2
