"""The adapter in LMCache's classes: stored objects are found and loaded, objects that do not fit are misses, and nothing hangs."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch
from batches import (
    MARGIN_S,
    are_equal,
    layouts,
    load,
    look_up,
    make_adapter,
    make_caches,
    make_keys,
    make_objects,
    store,
    wait_for,
)
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from proxy import MODES, FaultProxy

import kvasir
from kvasir.errors import InputError
from kvasir.lmcache import KvasirL2


def test_another_adapter_loads_what_one_has_stored(adapter, service):
    keys, objects = make_keys(5), make_objects(5, seed=1)
    stored = store(adapter, keys[:4], objects[:4])
    assert stored.is_successful() and stored.bytes_transferred() == sum(each.get_size() for each in objects[:4])
    again = store(adapter, keys[:4], objects[:4])
    assert again.is_successful() and again.bytes_transferred() == 0
    other = make_adapter(service.url, namespace="test_another_adapter_loads_what_one_has_stored")
    assert look_up(other, keys) == "11110"
    into = make_objects(5)
    assert load(other, keys, into) == "11110"
    assert are_equal(into[:4], objects[:4])
    assert len({adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()}) == 3
    other.close()


@pytest.mark.parametrize(("quality", "most"), [("exact", 0.95), ("transparent", 0.6), ("small", 0.3)])
def test_chunks_are_encoded_where_a_quality_is_named(service, quality, most):
    keys, objects, into = make_keys(6), make_caches(6, seed=1), make_caches(6)
    namespace = f"encoded-{quality}"
    named = (quality, quality, "exact")
    writer, reader, exact = (make_adapter(service.url, namespace=namespace, quality=each) for each in named)
    assert store(writer, keys, objects).is_successful()
    of = {0: MemoryLayoutDesc(shapes=[objects[0].metadata.shape], dtypes=[torch.bfloat16])}
    assert look_up(reader, keys, of) == "111111" and load(reader, keys, into) == "111111"
    stored = kvasir.connect(service.url, namespace=namespace).read_objects(writer._names_of(keys))
    assert len(stored) == 6 and sum(map(len, stored)) < most * sum(each.get_size() for each in objects)
    truth, came = (torch.stack([each.raw_data.view(torch.bfloat16).float() for each in some]) for some in (objects, into))
    error = float((came - truth).square().sum() / truth.square().sum())
    assert error == 0 if quality == "exact" else 0 < error < {"transparent": 1e-3, "small": 1e-1}[quality]
    # Who asks for more gets no less: a lookup does not know, a load does.
    assert look_up(exact, keys, of) == "111111"
    assert ("0" in load(exact, keys, make_caches(6))) == (quality != "exact")
    # Who stores chunks as they are has others.
    plain = make_adapter(service.url, namespace=namespace)
    assert look_up(plain, keys, of) == "000000"
    for each in (writer, reader, exact, plain):
        each.close()


def test_groups_of_other_layouts_are_encoded_in_one_batch(service):
    rows = [make_keys(2), make_keys(2, object_group_id=1), make_keys(2, object_group_id=2)]
    keys, namespace = [key for row in rows for key in row], "encoded-groups"
    objects, into = ([*make_caches(2, seed), *make_caches(2, seed, layers=2), *make_objects(2, seed)] for seed in (1, None))
    writer, reader = (make_adapter(service.url, namespace=namespace, quality="exact") for _ in range(2))
    for first in (0, 2, 4):
        assert store(writer, keys[first : first + 2], objects[first : first + 2]).is_successful()
    assert load(reader, keys, into) == "111111" and are_equal(into, objects)
    assert "loads:other_size" not in reader.report_status()["counts"]
    # Nor does a batch of all store anything else.
    assert store(reader, keys, objects).is_successful() and reader.report_status()["counts"]["stores:present"] == 6
    for each in (writer, reader):
        each.close()


def test_rows_of_a_lookup_end_by_themselves(adapter):
    """Ranks, groups and salts each have a row; the hole in one is none in the next."""
    rows = [make_keys(3), make_keys(3, object_group_id=1), make_keys(3, cache_salt="a"), make_keys(3, kv_rank=2)]
    for row, there in zip(rows, (3, 1, 2, 0), strict=True):
        if there:
            store(adapter, row[:there], make_objects(there, seed=2))
    assert look_up(adapter, [key for row in rows for key in row], layouts(groups=2)) == "111100110000"


def test_a_group_with_a_window_may_have_gaps(adapter):
    """Whose last chunks alone are of use; a lookup of several groups may have one."""
    rows = [make_keys(3), make_keys(3, object_group_id=1)]
    store(adapter, [rows[0][0], rows[0][1], rows[1][1]], make_objects(3, seed=11))
    assert look_up(adapter, rows[0] + rows[1], layouts(groups=2)) == "110010"


def test_loads_go_on_behind_a_hole(adapter):
    keys, objects = make_keys(4), make_objects(4, seed=3)
    store(adapter, [keys[0], keys[2], keys[3]], [objects[0], objects[2], objects[3]])
    into = make_objects(4)
    assert load(adapter, keys, into) == "1011"
    assert are_equal(into[2:], objects[2:])


def test_more_keys_than_a_request_takes(adapter):
    keys = make_keys(300)
    objects = make_objects(1, seed=4) * 300
    assert store(adapter, keys[:299], objects[:299]).is_successful()
    assert look_up(adapter, keys) == "1" * 299 + "0"
    assert load(adapter, keys, make_objects(300)) == "1" * 299 + "0"


@pytest.mark.parametrize(
    ("others", "dtype", "params", "reason"),
    [
        ({"model_name": "org/other"}, torch.bfloat16, {}, "model is 'org/other' here and 'org/model' there"),
        ({"kv_rank": ObjectKey.ComputeKVRank(2, 0, 1, 0)}, torch.bfloat16, {}, "ranks is '2' here and '1' there"),
        ({"cache_salt": "someone"}, torch.bfloat16, {}, None),
        ({}, torch.float16, {}, "layout is 'torch.float16[8,256,64]' here and 'torch.bfloat16[8,256,64]' there"),
        ({}, torch.bfloat16, {"revision": "b"}, "revision is 'b' here and '' there"),
        ({}, torch.bfloat16, {"namespace": "other"}, None),
    ],
)
def test_what_is_incompatible_is_a_miss_with_a_reason(adapter, service, others, dtype, params, reason):
    store(adapter, make_keys(2), make_objects(2, seed=5))
    adapter._pages.drain()
    asker = make_adapter(service.url, **({"namespace": "test_what_is_incompatible_is_a_miss_with_a_reason"} | params))
    keys = make_keys(2, **others)
    assert look_up(asker, keys, layouts(dtype)) == "00"
    assert load(asker, keys, make_objects(2, dtype=dtype)) == "00"
    asker._pages.drain()
    status = asker.report_status()
    assert status["mismatches"] == ([] if reason is None else [reason])
    assert status["counts"]["finds:missing" if reason is None else "finds:mismatch"] == 2
    causes = kvasir.connect(service.url, namespace=asker._settings.namespace).explain_objects(asker._names_of(keys))["causes"]
    told = [f"{each['field']} is {each['asked']} here" for cause in causes for each in cause.get("differences", [])]
    assert told == ([] if reason is None else [reason.replace("'", "").split(" and ")[0]])
    asker.close()


def test_other_bytes_of_the_same_chunk_are_present(adapter):
    """Two engines compute the same tokens, and differ in the last bits."""
    keys, first = make_keys(2), make_objects(2, seed=6)
    store(adapter, keys, first)
    assert store(adapter, keys, make_objects(2, seed=7)).is_successful()
    into = make_objects(2)
    assert load(adapter, keys, into) == "11" and are_equal(into, first)


def test_damaged_bytes_are_a_miss_and_are_replaced(adapter, store_of):
    keys, objects = make_keys(2), make_objects(2, seed=8)
    store(adapter, keys, objects)
    names = adapter._names_of(keys)
    raw = store_of("test_damaged_bytes_are_a_miss_and_are_replaced")
    [good] = raw.read_objects(names[:1])
    raw.delete_object(names[0])
    raw.put_object(names[0], good[:-1] + bytes([good[-1] ^ 1]))
    assert load(adapter, keys, make_objects(2)) == "01"
    wait_for(lambda: None if raw.find_objects(names[:1]) else True)
    assert store(adapter, keys, objects).is_successful()
    into = make_objects(2)
    assert load(adapter, keys, into) == "11" and are_equal(into, objects)


def test_usage_and_removal_by_salt(adapter):
    rows = {salt: make_keys(2, cache_salt=salt) for salt in ("", "a")}
    for seed, row in enumerate(rows.values()):
        store(adapter, row, make_objects(2, seed=seed))
    size = make_objects(1)[0].get_size()
    assert adapter.get_usage().bytes_by_cache_salt == {"": 2 * size, "a": 2 * size}
    adapter.delete(rows["a"][:1])
    adapter.delete(make_keys(1, model_name="org/never-seen"))
    assert adapter.get_usage().bytes_by_cache_salt == {"": 2 * size, "a": size}
    assert look_up(adapter, rows["a"]) == "00" and look_up(adapter, rows[""]) == "11"


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "sound"])
def test_faults_of_the_network_are_misses_within_the_deadlines(service, mode):
    proxy = FaultProxy(service.url, seed=1)
    deadlines = {"lookup_deadline_s": 0.3, "load_deadline_s": 1.0}
    adapter = make_adapter(proxy.url, namespace=f"faults-{mode}", **deadlines)
    keys, objects = make_keys(3), make_objects(3, seed=9)
    assert store(adapter, keys, objects).is_successful()
    proxy.mode = mode
    for _ in range(5):
        begun = time.monotonic()
        look_up(adapter, keys)
        assert time.monotonic() - begun < deadlines["lookup_deadline_s"] + MARGIN_S
        begun, into = time.monotonic(), make_objects(3)
        loaded = load(adapter, keys, into)
        assert time.monotonic() - begun < deadlines["load_deadline_s"] + MARGIN_S
        for place, bit in enumerate(loaded):
            # What counts as loaded is what was stored.
            assert bit == "0" or are_equal(into[place : place + 1], objects[place : place + 1])
        before = [each.raw_data.clone() for each in into]
        time.sleep(0.2)
        assert all(torch.equal(a, b.raw_data) for a, b in zip(before, into, strict=True)), "nothing is written when it is over"
    if mode in ("away", "silent", "unavailable", "unauthorized"):
        assert loaded == "000" and look_up(adapter, keys) == "000"
        assert not store(adapter, make_keys(2, first=10), make_objects(2)).is_successful()
    proxy.mode = "sound"
    assert wait_for(lambda: "111" if look_up(adapter, keys) == "111" else None)
    assert load(adapter, keys, into) == "111" and are_equal(into, objects)
    adapter.close()


def test_a_service_that_comes_later_is_found(service):
    proxy = FaultProxy(service.url)
    proxy.mode = "away"
    adapter = KvasirL2({"url": proxy.url, "namespace": "later"})
    keys, objects = make_keys(2), make_objects(2, seed=10)
    assert look_up(adapter, keys) == "00" and load(adapter, keys, make_objects(2)) == "00"
    assert not store(adapter, keys, objects).is_successful() and not adapter.report_status()["is_healthy"]
    proxy.mode = "sound"
    wait_for(lambda: adapter.report_status()["is_healthy"] or None)
    assert store(adapter, keys, objects).is_successful() and look_up(adapter, keys) == "11"
    counts = adapter.report_status()["counts"]
    assert counts["stores:not_connected"] == 2 and counts["stores:stored"] == 2 and counts["finds:found"] == 2
    adapter.close()


def test_an_adapter_that_is_used_at_once_finds_what_is_stored(adapter, service):
    keys, objects = make_keys(2), make_objects(2, seed=12)
    assert store(adapter, keys, objects).is_successful()
    settings = {"url": service.url, "namespace": "test_an_adapter_that_is_used_at_once_finds_what_is_stored"}
    for _ in range(5):
        at_once = KvasirL2(settings | {"lookup_deadline_s": 30})
        assert look_up(at_once, keys) == "11"
        at_once.close()


def test_metrics_say_what_became_of_pages(service):
    """By OpenTelemetry, which LMCache's server serves or sends."""
    reader = InMemoryMetricReader()
    set_meter_provider(MeterProvider([reader]))
    adapter = make_adapter(service.url, namespace="metrics")
    before = observed(reader)
    store(adapter, make_keys(2), make_objects(2))
    look_up(adapter, make_keys(3))
    names = [("kvasir_pages", "stores:stored"), ("kvasir_pages", "finds:found"), ("kvasir_page_bytes", "store_bytes")]
    after = observed(reader)
    assert [after[name] - before.get(name, 0) for name in names] == [2, 2, 2 * make_objects(1)[0].get_size()]
    adapter.close()


def observed(reader) -> dict[tuple[str, str], int]:
    scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
    metrics = [metric for scope in scopes if scope.scope.name == "kvasir" for metric in scope.metrics]
    return {(metric.name, point.attributes["result"]): point.value for metric in metrics for point in metric.data.data_points}


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({}, "url is missing"),
        ({"url": "http://x", "colour": 1}, "colour is not a setting"),
        ({"url": "http://x", "load_deadline_s": 0}, "load_deadline_s is 0"),
    ],
)
def test_settings_that_cannot_be(params, what):
    with pytest.raises(InputError, match=what):
        KvasirL2(params)


def test_acceptance_command(service):
    """LMCache's own: it stores, looks up, loads and compares."""
    spec = {"type": "plugin", "module_path": "kvasir.lmcache", "class_name": "KvasirL2"}
    # What is late on a busy machine is a miss, and the command takes none.
    spec["adapter_params"] = {"url": service.url, "namespace": "bench", "lookup_deadline_s": 30, "load_deadline_s": 60}
    code = "from lmcache.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", "l2", "--l2-adapter", json.dumps(spec)]
    command += ["--no-skip-verify", "--in-flight", "4", "--rounds", "3", "--lookup-max-hit-rate", "1.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(":")[1].strip() for line in done.stdout.splitlines() if line.startswith("Total success")]
    assert lines == ["384", "384", "384"], done.stdout
    assert "verif" not in done.stderr.lower(), done.stderr
