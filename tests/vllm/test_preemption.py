"""A cache of blocks that is too small for the requests: vLLM takes blocks from some and computes or loads them again."""

from __future__ import annotations

from engine import Engine, make_exact_profile, make_tokens, wait_until_stored

import kvasir


def test_requests_that_lose_their_blocks(tmp_path):
    with kvasir.testing.server() as service:
        store = kvasir.connect(service.url)
        # 40 blocks of 32 tokens: two of the requests at a time, until they have grown.
        extra = {"quality": "exact", "profile": make_exact_profile(tmp_path / "exact.kvp")}
        engine = Engine(service.url, extra=extra, num_gpu_blocks_override=41)
        engine.wait_until_connected()
        prompts = [make_tokens(400, seed=seed) for seed in range(6)]
        expected = [engine.run(prompt, fresh=True, max_tokens=250, ignore_eos=True, logprobs=2) for prompt in prompts]
        engine.settle()
        wait_until_stored(store, len(prompts))
        for _ in range(2):
            engine.forget()
            waiting = {engine.begin(prompt, max_tokens=250, ignore_eos=True): n for n, prompt in enumerate(prompts)}
            while waiting:
                for request_id, answer in engine.step().items():
                    assert answer.is_as(expected[waiting.pop(request_id)])
        assert engine.lost_blocks() == 0
