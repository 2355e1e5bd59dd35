"""Two engines over one service, which is replaced under them."""

from __future__ import annotations

from engine import Engine, OtherEngine, make_exact_profile, make_tokens, wait_until_stored
from proxy import FaultProxy

import kvasir


def test_a_rolling_restart_is_not_noticed(tmp_path):
    exact = {"quality": "exact", "profile": make_exact_profile(tmp_path / "exact.kvp")}
    before = kvasir.testing.Server(str(tmp_path), ())
    proxy = FaultProxy(before.url)
    fills = Engine(proxy.url, extra=exact)
    fills.wait_until_connected()
    with OtherEngine(proxy.url, extra=exact) as reads:
        prompts = [make_tokens(500 + 20 * seed, seed=seed) for seed in range(12)]
        cold = [fills.run(prompt, logprobs=2) for prompt in prompts]
        fills.settle()
        wait_until_stored(kvasir.connect(before.url), len(prompts))
        assert reads.run(prompts[0]).cached > 0
        after = None
        for turn, prompt in enumerate(prompts):
            reads.begin(prompt)
            fills.forget()
            running = fills.begin(prompt)
            if turn == 4:
                # The new one comes before the old one goes, which ends what it has begun.
                after = kvasir.testing.Server(str(tmp_path), ())
                proxy.target = after.url
                before.stop()
            answers: dict = {}
            while running not in answers:
                answers |= fills.step()
            for answer in (answers[running], reads.answer()):
                assert answer.reason == "length" and answer.is_as(cold[turn])
                assert answer.cached > 0 or turn in (4, 5), turn
        after.stop()
    assert fills.lost_blocks() == 0
