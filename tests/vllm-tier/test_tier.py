"""The tier in vLLM's manager: cascades and promotions, partial loads, back-pressure, drains, events, and faults."""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest
from proxy import MODES, FaultProxy
from scheduler import BLOCK_BYTES, BLOCKS_PER_CHUNK, Scheduler, make_keys
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadPolicy, ReqContext
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

import kvasir

CHUNK = BLOCK_BYTES * BLOCKS_PER_CHUNK
# What threads may take above the deadlines of a lookup and a load, 0.3 and 1.0 s: on a busy machine they took 0.04 s.
# A load that takes its deadline twice fails.
MARGIN_S = 0.6


def make_values(count: int, seed: int) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(CHUNK) for _ in range(count)]


@pytest.fixture(scope="module")
def service():
    with kvasir.testing.server() as server:
        yield server


@pytest.fixture
def make(service, request):
    """Makes engines whose namespace is the test's own."""
    made = []

    def scheduler(url: str = service.url, **options) -> Scheduler:
        params = {"namespace": request.node.originalname} | options.pop("params", {})
        made.append(Scheduler(url, params=params, **options))
        return made[-1]

    yield scheduler
    for each in made:
        each.close()


def test_another_engine_promotes_what_one_has_cascaded(make):
    keys, values = make_keys(5), make_values(5, seed=1)
    first = make()
    context = first.offload(keys[:4], values[:4])
    first.settle()
    first.finish(context)
    assert first.counts()["stores:stored"] == 4
    other = make()
    assert other.look_up(keys) == [True] * 4 + [False]
    assert other.load(keys[:4]) == values[:4]
    # A second store of the same chunks is no failure.
    third = make()
    third.offload(keys[:4], make_values(4, seed=2))
    third.settle()
    assert third.counts()["stores:present"] == 4
    assert make().load(keys[:4]) == values[:4]


def test_lookups_of_a_step_are_one_batch(make):
    engine, asked = make(), []
    find = engine.tier._pages.find
    engine.tier._pages.find = lambda rows, gaps, _: asked.append(([len(row) for row in rows], gaps)) or find(rows, gaps)
    keys = make_keys(4) + make_keys(2, group=1)
    context = engine.request(keys)
    assert {engine.manager.lookup(key, context) for key in keys} == {LookupResult.RETRY}
    assert engine.look_up(keys, context) == [False] * 6
    assert asked == [([4, 2], False)]


def test_a_window_is_found_behind_a_hole(make):
    keys = make_keys(4)
    first = make()
    first.offload(keys[1:3], make_values(2, seed=4))
    first.settle()
    # vLLM asks for a window from its end, where the newest chunk is not stored.
    other = make()
    assert other.look_up(keys[::-1], other.request(keys)) == [False, True, True, False]
    prefix = make()
    assert prefix.look_up(keys, prefix.request(keys)) == [False] * 4


@pytest.mark.parametrize(
    ("difference", "reason"),
    [
        ({"model": "org/other"}, "model_name is 'org/other' here and 'org/model' there"),
        ({"dtype": "float8"}, "dtype is 'float8' here and 'bfloat16' there"),
        ({"tp": 2}, "tp_size is '2' here and '1' there"),
        ({"layout": "LBHNC"}, "kv_cache_layout is 'LBHNC' here and '' there"),
        ({"params": {"revision": "b"}}, "revision is 'b' here and '' there"),
    ],
)
def test_what_is_incompatible_is_a_miss_with_a_reason(make, service, difference, reason):
    first = make()
    first.offload(make_keys(2), make_values(2, seed=5))
    first.settle()
    first.tier.drain_jobs()
    other = make(**difference)
    assert other.look_up(make_keys(2)) == [False, False]
    other.tier.drain_jobs()
    assert reason in "".join(other.tier._pages.mismatches.values()) and other.counts()["finds:mismatch"] == 2
    store = kvasir.connect(service.url, namespace="test_what_is_incompatible_is_a_miss_with_a_reason")
    [cause, _] = store.explain_objects(other.tier._names_of(make_keys(2)))["causes"]
    assert cause["reason"] == "other_model" and reason.split(" ")[0] in [each["field"] for each in cause["differences"]]


def test_chunks_are_packed_where_exact_is_named(make, service):
    """In each group, bit for bit, also what are no numbers of the cache's type."""
    keys, own = make_keys(2) + make_keys(2, group=1), {"namespace": "packed"}
    dice = np.random.default_rng(11)
    numbers = (dice.normal(size=(3, CHUNK // 2)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    values = [number.tobytes() for number in numbers] + make_values(1, seed=12)
    first = make(params=own | {"quality": "exact"})
    first.offload(keys, values)
    first.settle()
    stored = kvasir.connect(service.url, namespace="packed").read_objects(first.tier._names_of(keys))
    assert all(0.5 < len(each) / CHUNK < 0.95 for each in stored[:3]), [len(each) / CHUNK for each in stored]
    other = make(params=own | {"quality": "exact"})
    assert other.load(keys) == values
    # An engine without the setting has other chunks.
    plain = make(params=own)
    assert plain.look_up(keys) == [False] * 4
    plain.tier.drain_jobs()
    assert "encoding is 'as they are' here and 'encoded' there" in "".join(plain.tier._pages.mismatches.values())


@pytest.mark.parametrize("canonical", [True, False])
def test_engines_of_other_numbers_of_ranks_share_the_canonical_layout(make, canonical):
    """And no other that vLLM counts as the same for all of them: in its direct layout each rank's layers lie together."""
    of_all = {"agnostic": True, "canonical": canonical, "layout": "LBNHC", "params": {"namespace": f"ranks-{canonical}"}}
    keys, values = make_keys(2), make_values(2, seed=10)
    first = make(**of_all)
    first.offload(keys, values)
    first.settle()
    assert make(tp=2, **of_all).look_up(keys) == [canonical] * 2 and make(**of_all).load(keys) == values
    assert make(tp=2, **of_all | {"layout": "LBHNC"}).look_up(keys) == [False] * 2
    if canonical:
        assert make(tp=2, **of_all).load(keys) == values


def test_chunks_that_went_are_a_partial_promotion(make, service, request):
    """And are a miss then: vLLM would ask for them for ever."""
    keys, values = make_keys(3), make_values(3, seed=6)
    first = make()
    first.offload(keys, values)
    first.settle()
    other = make()
    context = other.request(keys)
    store = kvasir.connect(service.url, namespace=request.node.originalname)
    while other.tier._lookups.lookup(keys[2], context) is None:
        [other.tier._lookups.lookup(key, context) for key in keys]
        other.step()
        time.sleep(0.005)
    store.delete_object(other.tier._names_of(keys)[1])
    assert other.look_up(keys, context) == [True, False, True]
    places = other.manager.prepare_load([keys[0], keys[2]], context).chunk_ids
    assert [bytes(other.chunk(int(place))) for place in places] == [values[0], values[2]]


def test_back_pressure_drops_stores(make):
    slow = {"backpressure_cls": "EMABackpressureDetector", "high_water_s": 1e-9, "low_water_s": 1e-10, "warmup_completions": 1}
    engine = make(params={"backpressure": slow})
    for first in range(0, 6, 2):
        engine.offload(make_keys(2, first=first), make_values(2, seed=first))
        engine.settle()
    assert engine.tier.bp_detector.is_under_pressure()
    assert engine.counts()["stores:stored"] < 6


def test_events_and_metrics_say_what_was_done(make):
    keys = make_keys(2)
    engine = make(params={"enable_kv_events": True, "locality": "REMOTE"})
    engine.offload(keys, make_values(2, seed=7))
    engine.settle()
    [event] = [event for event in engine.manager.take_events() if event.medium is Medium.STORAGE]
    assert event.keys == keys and not event.removed and event.locality is Locality.REMOTE
    definitions = TieringOffloadingSpec.build_metric_definitions(engine.spec.extra_config)
    stats = engine.manager.get_stats()
    told = {name: values for name, values in stats.data["data"].items() if "kvasir" in name}
    assert set(told) <= set(definitions) and told["vllm:kvasir_pages"] == {("stores:stored",): 2}
    assert told["vllm:kvasir_page_bytes"] == {("store_bytes",): 2 * CHUNK}
    assert engine.tier.get_stats() is None
    assert engine.tier.on_new_request(ReqContext("r")).policy is OffloadPolicy.CHUNK_LEVEL


def test_a_reset_waits_for_transfers_and_keeps_what_is_stored(make):
    keys, values = make_keys(4), make_values(4, seed=8)
    engine = make()
    context = engine.offload(keys, values)
    engine.finish(context)
    engine.manager.reset_cache()
    assert not engine.manager._jobs and engine.counts()["stores:stored"] == 4
    assert engine.load(keys) == values


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "sound"])
def test_faults_of_the_network_are_misses_within_the_deadlines(make, service, mode):
    proxy = FaultProxy(service.url, seed=2)
    params = {"namespace": f"faults-{mode}", "lookup_deadline_s": 0.3, "load_deadline_s": 1.0}
    keys, values = make_keys(3), make_values(3, seed=9)
    first = make(params=params)
    first.offload(keys, values)
    first.settle()
    engine = make(url=proxy.url, params=params)
    proxy.mode = mode
    for _ in range(3):
        begun, context = time.monotonic(), engine.request(keys)
        found = engine.look_up(keys, context)
        assert time.monotonic() - begun < 0.3 + 1.0 + MARGIN_S
        good = [key for key, is_there in zip(keys, found, strict=True) if is_there]
        places = engine.manager.prepare_load(good, context).chunk_ids if good else []
        for key, place in zip(good, places, strict=True):
            assert bytes(engine.chunk(int(place))) == values[keys.index(key)]
        engine.manager.complete_load(good, context)
        engine.finish(context)
        engine.settle()
    proxy.mode = "sound"
    until = time.monotonic() + 20
    while not all(engine.look_up(keys)):
        assert time.monotonic() < until
    assert engine.load(keys) == values


def test_requests_do_not_wait_for_each_others_late_lookups(make, service):
    proxy = FaultProxy(service.url, seed=4)
    engine = make(url=proxy.url, params={"lookup_deadline_s": 0.5})
    requests = [(keys, engine.request(keys)) for keys in (make_keys(2, first=10 * n) for n in range(10))]
    proxy.mode = "silent"
    begun = time.monotonic()
    for keys, context in requests:
        assert {engine.manager.lookup(key, context) for key in keys} == {LookupResult.RETRY}
    for keys, context in requests:
        assert engine.look_up(keys, context) == [False] * 2
    assert time.monotonic() - begun < 0.5 + MARGIN_S and engine.counts()["finds:late"] == 20


def test_a_random_schedule(make, service):
    """Of a primary tier that holds a third of it, under faults: what is read is what was written, and no chunk stays pinned."""
    dice = random.Random(int(os.environ.get("KVASIR_TEST_SEED", "1")))
    proxy = FaultProxy(service.url, seed=3)
    params = {"lookup_deadline_s": 0.2, "load_deadline_s": 0.5}
    engine = make(url=proxy.url, chunks=8, params=params)
    values = {
        key: value for group in range(2) for key, value in zip(make_keys(12, group=group), make_values(12, seed=group), strict=True)
    }
    loaded = 0
    for _ in range(120):
        if dice.random() < 0.2:
            # A silent service keeps stores, and with them the primary tier, for 30 s.
            proxy.mode = dice.choice([mode for mode in MODES if mode != "silent"])
        group, first = dice.randrange(2), dice.randrange(9)
        keys = make_keys(3, first=first, group=group)
        context = engine.request(keys)
        if dice.random() < 0.5:
            prepared = engine.manager.prepare_store(keys, context)
            if prepared is not None and prepared.keys_to_store:
                for key, place in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids, strict=True):
                    engine.chunk(int(place))[:] = values[key]
                engine.manager.complete_store(prepared.keys_to_store, context)
        else:
            found = engine.look_up(keys, context)
            good = [key for key, is_there in zip(keys, found, strict=True) if is_there]
            if good:
                places = engine.manager.prepare_load(good, context).chunk_ids
                assert [bytes(engine.chunk(int(place))) for place in places] == [values[key] for key in good]
                engine.manager.complete_load(good, context)
                loaded += len(good)
        engine.finish(context)
        engine.step()
    proxy.mode = "sound"
    engine.settle()
    assert loaded > 20 and not engine.manager._req_state
    engine.manager.reset_cache()
    fresh = make_keys(8, first=1000)
    assert engine.manager.prepare_store(fresh, engine.request(fresh)) is not None, "all of the primary tier is free"


def test_a_tier_that_is_drained_has_its_results(make):
    engine = make()
    [engine.chunk(place).__setitem__(slice(None), bytes(CHUNK)) for place in range(2)]
    job = TransferJob(7, make_keys(2, first=50), np.array([0, 1], dtype=np.int32), False, ReqContext("r"))
    engine.tier.submit_store(job)
    assert engine.tier.has_pending_work()
    engine.tier.drain_jobs()
    [result] = engine.tier.get_finished_jobs()
    assert result.job_id == 7 and result.success and result.transfer_bytes == 2 * CHUNK
    assert not engine.tier.has_pending_work()


def test_settings_that_cannot_be(make):
    with pytest.raises(kvasir.InputError, match="colour is not a setting"):
        Scheduler("http://127.0.0.1:1", params={"colour": 1})
    with pytest.raises(kvasir.InputError, match="quality is 'small'"):
        Scheduler("http://127.0.0.1:1", params={"quality": "small"})
