"""A random schedule of requests, aborts and faults of the network: every text equals the one without Kvasir, and nothing hangs."""

from __future__ import annotations

import os
import random
import time

import pytest
from engine import Engine, make_exact_profile, make_tokens, wait_until_stored
from proxy import MODES, FaultProxy

import kvasir

REQUESTS = int(os.environ.get("KVASIR_TEST_VLLM_REQUESTS", "200"))
LOAD_DEADLINE_S = 1.0
# What computing takes beside other requests, on a busy machine, above the deadlines of the lookup and the load.
COMPUTING_S = 20.0


def make_prompts() -> list[list[int]]:
    """Prompts of which three share a beginning."""
    prompts = []
    for seed in range(8):
        shared = make_tokens(random.Random(seed).randrange(150, 700), seed=100 + seed)
        prompts += [shared + make_tokens(length, seed=1000 * seed + length) for length in (7, 60, 300)]
    return prompts


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_random_schedule(policy, tmp_path, capsys):
    dice = random.Random(policy)
    counts = dict.fromkeys((*MODES, "loaded", "aborted", "failed", "ties"), 0)
    with kvasir.testing.server() as service:
        proxy, store = FaultProxy(service.url), kvasir.connect(service.url)
        exact = {"quality": "exact", "profile": make_exact_profile(tmp_path / "exact.kvp")}
        extra = {"lookup_deadline_s": 0.3, "load_deadline_s": LOAD_DEADLINE_S, **exact}
        engine = Engine(proxy.url, policy=policy, extra=extra)
        engine.wait_until_connected()
        prompts = make_prompts()
        expected = [engine.run(prompt, fresh=True, logprobs=2) for prompt in prompts]
        engine.settle()
        wait_until_stored(store, len(prompts))
        running: dict[str, tuple[int, float]] = {}
        begun = 0
        while begun < REQUESTS or running:
            if begun < REQUESTS and len(running) < 6 and dice.random() < 0.3:
                if dice.random() < 0.2:
                    proxy.mode = dice.choice(MODES)
                if not running and dice.random() < 0.5:
                    engine.forget()
                which = dice.randrange(len(prompts))
                running[engine.begin(prompts[which])] = which, time.monotonic()
                counts[proxy.mode] += 1
                begun += 1
            if running and dice.random() < 0.01:
                aborted = dice.choice(list(running))
                engine.abort([aborted])
                del running[aborted]
                counts["aborted"] += 1
            for request_id, answer in engine.step().items():
                which, since = running.pop(request_id, (None, 0.0))
                if which is None:
                    continue
                assert time.monotonic() - since < 0.3 + LOAD_DEADLINE_S + COMPUTING_S
                if policy == "fail" and answer.reason == "error":
                    counts["failed"] += 1
                    continue
                assert answer.is_as(expected[which]), (proxy.mode, which, answer, expected[which])
                counts["loaded"] += answer.cached > 0
                counts["ties"] += answer.tokens != expected[which].tokens
            time.sleep(0.0005)
        proxy.mode = "sound"
        assert engine.lost_blocks() == 0
        with capsys.disabled():
            print(policy, counts)
        assert counts["loaded"] > REQUESTS // 10 and counts["ties"] < REQUESTS // 5
