"""The connector's metrics and logs for operators, and per-request budgets."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from engine import BLOCK, Engine, make_exact_profile, make_tokens, wait_until_stored
from proxy import FaultProxy
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import BlockStored

import kvasir


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("observed")
    exact = {"quality": "exact", "profile": make_exact_profile(folder / "exact.kvp")}
    with kvasir.testing.server() as service:
        proxy = FaultProxy(service.url)
        events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        engine = Engine(proxy.url, extra=exact, disable_log_stats=False, kv_events_config=events)
        engine.wait_until_connected()
        yield engine, kvasir.connect(service.url), proxy


def store_prompt(engine, store, tokens, **sampling):
    """Run a prompt until it is stored, and vLLM has nothing of it."""
    answer = engine.run(tokens, **sampling)
    engine.settle()
    wait_until_stored(store)
    engine.forget()
    return answer


def test_metrics_count_lookups_loads_and_saves(setting):
    engine, store, proxy = setting
    tokens = make_tokens(400, seed=1)
    store_prompt(engine, store, tokens)
    assert engine.run(tokens).cached == 384
    engine.settle()
    engine.run(tokens)
    proxy.mode = "unavailable"
    engine.run(make_tokens(300, seed=2))
    proxy.mode = "sound"
    engine.settle()
    found = engine.metrics()
    # The third one had its blocks in vLLM, and was looked up all the same.
    assert [found[f"lookups:{result}"] for result in ("hit", "miss")] == [2, 1], found
    assert found.get("lookups:failed", 0) + found.get("lookups:late", 0) == 1, found
    assert found["lookup_seconds"] >= 3 and found["load_seconds"] == 1
    assert (found["loads:whole"], found["load_tokens"]) == (1, 384)
    assert found["load_bytes"] > 10_000 and found["save_bytes"] > 10_000
    assert found["saves:stored"] >= 1


def test_prefills_of_one_prompt_are_learnt(setting):
    engine, _, _ = setting
    model = engine.worker._service._model
    before = model.prefill_seconds(range(256, 512))
    engine.run(make_tokens(900, seed=7), fresh=True)
    assert model.prefill_seconds(range(256, 512)) != before


def test_only_what_vllm_does_not_have_is_fetched(setting):
    engine, store, _ = setting
    tokens = make_tokens(1_000, seed=3)
    store_prompt(engine, store, tokens)
    before = engine.metrics()["load_bytes"]
    engine.run(tokens)
    engine.settle()
    whole = engine.metrics()["load_bytes"] - before
    # vLLM has 800 of these tokens by now: three of four chunks.
    engine.forget()
    engine.run(tokens[:801], fresh=True)
    engine.settle()
    before = engine.metrics()["load_bytes"]
    assert engine.run(tokens).cached == 992
    engine.settle()
    part = engine.metrics()["load_bytes"] - before
    assert 0 < part < whole / 3, (part, whole)


def explained(request_id, since):
    """What `kvasir context explain` says of a request, once it is written. Engines of other runs may have had one of its name."""
    until = time.monotonic() + 10
    command = ["kvasir", "context", "explain", "--request", request_id, "--json"]
    while True:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode == 0 and (record := json.loads(run.stdout)[-1])["ended_at_ms"] >= since * 1000 - 1:
            return record
        assert time.monotonic() < until, run.stderr
        time.sleep(0.1)


def test_an_operator_asks_what_became_of_a_request(setting):
    engine, store, proxy = setting
    tokens = make_tokens(600, seed=8)

    def run(mode="sound", **sampling):
        """What became of a request that is looked up, and then loaded under a fault."""
        since, request_id = time.time(), engine.begin(tokens, **sampling)
        if mode != "sound":
            assert engine.looked_up(request_id) == 600
            proxy.mode = mode
        while request_id not in engine.step():
            time.sleep(0.001)
        proxy.mode = "sound"
        engine.settle()
        return explained(request_id, since)

    missed = run()
    assert (missed["reason"], missed["stored_tokens"], missed["planned_tokens"]) == ("miss", 0, 0)
    assert missed["prompt_tokens"] == missed["saved_tokens"] == 600
    wait_until_stored(store)
    assert run()["reason"] == "in_vllm"
    engine.forget()
    loaded = run()
    assert (loaded["reason"], loaded["in_vllm_tokens"], loaded["stored_tokens"]) == ("loaded", 0, 600)
    assert loaded["planned_tokens"] == 576
    engine.forget()
    assert run("unavailable")["reason"] == "load_failed"
    assert run(fresh=True)["reason"] == "not_read"
    proxy.mode = "unauthorized"
    refused = run()
    assert refused["reason"] in ("lookup_failed", "lookup_late") and refused["stored_tokens"] is None


def test_stored_blocks_are_told_to_routers(setting):
    engine, _, _ = setting
    published = []
    engine.scheduler.kv_event_publisher.publish = lambda batch: published.extend(batch.events)
    tokens = make_tokens(500, seed=4)
    engine.run(tokens)
    until = time.monotonic() + 30
    hashes = []
    while len(hashes) < 500 // BLOCK and time.monotonic() < until:
        engine.run(make_tokens(20, seed=5), fresh=True)
        stored = [event for event in published if isinstance(event, BlockStored) and event.medium == "STORAGE"]
        hashes = [block for event in stored for block in event.block_hashes]
    own = [event for event in published if isinstance(event, BlockStored) and event.medium != "STORAGE"]
    assert len(hashes) == 500 // BLOCK
    assert set(hashes) <= {block for event in own for block in event.block_hashes}
    assert [token for event in stored for token in event.token_ids] == tokens[: len(hashes) * BLOCK]
    assert stored[0].parent_block_hash is None and stored[1].parent_block_hash == stored[0].block_hashes[-1]
    assert {event.block_size for event in stored} == {BLOCK}


def test_a_request_that_has_less_time_waits_less(setting):
    engine, store, proxy = setting
    tokens = make_tokens(900, seed=6)
    expected = store_prompt(engine, store, tokens, logprobs=2)
    # Its lookup is answered, and then nothing is.
    request = engine.begin(tokens, ttft_s=0.3)
    begun = time.monotonic()
    assert engine.looked_up(request) == 900
    proxy.mode = "silent"
    late = engine.metrics().get("loads:late", 0) + engine.metrics().get("loads:failed", 0)
    answers = {}
    while request not in answers:
        answers |= engine.step()
        time.sleep(0.001)
    proxy.mode = "sound"
    assert time.monotonic() - begun < 5, "the deadline of all requests is ten seconds"
    assert answers[request].is_as(expected)
    engine.settle()
    found = engine.metrics()
    assert found.get("loads:late", 0) + found.get("loads:failed", 0) == late + 1, found
