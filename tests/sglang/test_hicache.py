"""The back end from SGLang's factory: stored pages are found and loaded, pages that do not fit are misses, and nothing hangs."""

from __future__ import annotations

import importlib.util
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from controller import Engine
from host_pool import PAGE, HostPool
from prometheus_client import REGISTRY
from proxy import MODES, FaultProxy
from sglang.srt.mem_cache.hicache_storage import (
    STORAGE_BATCH_SIZE,
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageFailureInjector,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

import kvasir

# What threads may take above a deadline: on a busy machine they took 0.04 s. Where lookups have 0.3 s and loads 1.0 s, a lookup
# that takes a load's deadline fails, and so does a load that takes its own twice.
MARGIN_S = 0.6


def make_config(params: dict[str, Any] | None, **others: Any) -> HiCacheStorageConfig:
    extra = {"backend_name": "kvasir", "module_path": "kvasir.sglang", "class_name": "KvasirHiCache", "interface_v1": 1}
    fields: dict[str, Any] = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1}
    fields |= {"is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": True, "model_name": "org/model"}
    return HiCacheStorageConfig(**(fields | others), extra_config=extra | ({} if params is None else {"kvasir": params}))


@pytest.fixture(scope="module")
def service():
    with kvasir.testing.server() as server:
        yield server


@pytest.fixture
def make(service, request):
    """Makes back ends as SGLang's controller does, in a namespace of the test's own."""
    made = []

    def backend(
        pool: HostPool | None = None, url: str = service.url, params: dict[str, Any] | None = None, **others: Any
    ) -> HiCacheStorage:
        own = {"url": url, "namespace": request.node.originalname}
        storage = StorageBackendFactory.create_backend("dynamic", make_config(own | (params or {}), **others), pool)
        storage.register_mem_pool_host(pool or HostPool())
        storage.on_host_pools_registered()
        inner = getattr(storage, "_backend", storage)
        made.append(inner)
        until = time.monotonic() + 30
        while not inner._pages.is_connected:
            assert time.monotonic() < until
            time.sleep(0.01)
        return storage

    yield backend
    for each in made:
        each.close()


def make_keys(count: int, first: int = 0) -> list[str]:
    return [f"{index:064x}" for index in range(first, first + count)]


def test_another_engine_loads_what_one_has_stored(make):
    pool, keys, pages = HostPool(), make_keys(5), [3, 9, 1, 20]
    pool.fill(pages, seed=1)
    storage = make(pool)
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys[:4], pool.indices(pages)) == [True] * 4
    # As each engine does that has computed them, too.
    assert storage.batch_set_v1(keys[:4], pool.indices(pages)) == [True] * 4
    other = HostPool()
    reader = make(other)
    assert reader.batch_exists(keys) == 4 and reader.batch_exists(keys[1:]) == 3 and reader.batch_exists(keys[4:]) == 0
    assert reader.exists(keys[0]) and not reader.exists(keys[4])
    assert reader.batch_get_v1(keys, other.indices([0, 1, 2, 3, 4])) == [True] * 4 + [False]
    assert torch.equal(other.buffer[:, :4], pool.buffer[:, pages])


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
@pytest.mark.parametrize("quality", ["exact", "transparent"])
def test_pages_are_encoded_where_a_quality_is_named(make, layout, quality):
    pool, other, keys, pages = HostPool(), HostPool(), make_keys(20), list(range(20))
    pool.layout = other.layout = layout
    pool.fill(pages, seed=3)
    own = {"namespace": f"{layout}-{quality}"}
    storage, reader = (make(each, params=own | {"quality": quality}) for each in (pool, other))
    # Of 20 pages of 16 tokens, more than 128 count.
    assert all(storage.batch_set_v1(keys, pool.indices(pages)))
    assert reader.batch_exists(keys) == 20 and all(reader.batch_get_v1(keys, other.indices(pages)))
    truth, came = pool.buffer[:, :20].float(), other.buffer[:, :20].float()
    error = ((came - truth).square().sum((1, 2)) / truth.square().sum((1, 2))).tolist()
    if quality == "exact":
        assert error == [0, 0]
    else:
        assert 0 < error[0] < 2.5e-4 and 0 < error[1] < 1e-3
    exact = make(HostPool(layout=layout), params=own | {"quality": "exact"})
    assert all(exact.batch_get_v1(keys, other.indices(pages))) == (quality == "exact"), "who asks for more gets no less"
    assert make(pool, params=own).batch_exists(keys) == 0, "pages as they are are others"


def test_pages_with_values_of_another_width_are_stored_as_they_are(make):
    """They have the two parts of others, but no layout that the codec knows."""
    pool, keys = HostPool(), make_keys(2)
    pool.fill([0, 1], seed=9)
    addresses, sizes = pool.get_page_buffer_meta(pool.indices([0, 1]))
    pool.get_page_buffer_meta = lambda indices: (addresses, [size // (1 + part % 2) for part, size in enumerate(sizes)])
    storage = make(pool, params={"quality": "transparent"})
    assert storage.batch_set_v1(keys, pool.indices([0, 1])) == [True, True]
    before = pool.buffer[:, :2].clone()
    pool.buffer.zero_()
    assert storage.batch_get_v1(keys, pool.indices([0, 1])) == [True, True]
    assert torch.equal(pool.buffer[0, :2], before[0]) and pool.buffer[1, :2].any()


def test_a_batch_as_large_as_the_largest(make):
    pool = HostPool(pages=STORAGE_BATCH_SIZE)
    keys, pages = make_keys(STORAGE_BATCH_SIZE), list(range(STORAGE_BATCH_SIZE))
    pool.fill(pages, seed=2)
    storage, before = make(pool), pool.buffer.clone()
    assert all(storage.batch_set_v1(keys, pool.indices(pages)))
    pool.buffer.zero_()
    assert storage.batch_exists(keys) == STORAGE_BATCH_SIZE
    assert all(storage.batch_get_v1(keys, pool.indices(pages))) and torch.equal(pool.buffer, before)


def test_the_older_interface_takes_tensors(make):
    storage, value = make(), torch.randn(4, 100, dtype=torch.float32).to(torch.bfloat16)
    assert storage.set("a", value) and storage.batch_set(["b", "c"], [value + 1, value.T])
    into = [torch.zeros_like(value) for _ in range(2)]
    assert torch.equal(storage.get("a", torch.zeros_like(value)), value)
    [found, missing] = storage.batch_get(["b", "d"], into)
    assert torch.equal(found, value + 1) and missing is None
    assert storage.get("a", torch.zeros(7)) is None, "another size"


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"model_name": "org/other"}, "model is 'org/other' here and 'org/model' there"),
        ({"tp_size": 2}, "tp_size is '2' here and '1' there"),
        ({"tp_rank": 1, "tp_size": 2}, "tp_size is '2' here and '1' there"),
        ({"attn_cp_rank": 1, "attn_cp_size": 2}, "attn_cp_size is '2' here and '1' there"),
        # Another stage's pages have nothing to differ from.
        ({"pp_rank": 1, "pp_size": 2}, None),
        ({"params": {"revision": "b"}}, "revision is 'b' here and '' there"),
        ({"pool": HostPool(dtype=torch.float16)}, "dtype is 'torch.float16' here and 'torch.bfloat16' there"),
        ({"pool": HostPool(page_size=2 * PAGE)}, "page_size is '32' here and '16' there"),
    ],
)
def test_what_is_incompatible_is_a_miss_with_a_reason(make, others, reason):
    check_mismatch(make, HostPool(), {}, others, reason)


def test_stages_that_begin_at_other_layers_share_nothing(make):
    """Of 4 stages with 8, 7, 10 and 5 layers, and with 7, 9, 10 and 4, the third ones have equal numbers."""
    stage, pools = {"pp_rank": 2, "pp_size": 4}, [HostPool(start_layer=layer) for layer in (15, 16)]
    check_mismatch(make, pools[0], stage, stage | {"pool": pools[1]}, "start_layer is '16' here and '15' there")


def test_head_groups_of_the_unified_layout_share_nothing(make):
    """Pages of SGLang's `page_unified` have as many bytes with one group of heads as with two, in another order."""
    [package] = importlib.util.find_spec("sglang").submodule_search_locations
    # Its package needs sgl_kernel; this module does not.
    spec = importlib.util.spec_from_file_location("page_unified", f"{package}/srt/mem_cache/pool_host/page_unified.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    sizes = {"page_size": PAGE, "layer_num": HostPool.layer_num, "head_num": HostPool.heads, "head_dim": HostPool.width}
    one, two = (module.PageUnifiedLayout(**sizes, head_group_num=groups, itemsize=2) for groups in (1, 2))
    assert one.bytes_per_page == two.bytes_per_page and one.chunk_span((0, 1)) != two.chunk_span((0, 1))
    pools = [HostPool(layout="page_unified", head_group_num=layout.head_group_num) for layout in (one, two)]
    check_mismatch(make, pools[0], {}, {"pool": pools[1]}, "head_group_num is '2' here and '1' there")


def check_mismatch(make, pool: HostPool, own: dict[str, Any], others: dict[str, Any], reason: str | None) -> None:
    """One back end stores pages, and another one finds none of them and says why."""
    keys = make_keys(2)
    writer = make(pool, **own)
    writer.batch_set_v1(keys, pool.indices([0, 1]))
    writer._pages.drain()
    asker = make(**others)
    assert asker.batch_exists(keys) == 0
    assert asker.batch_get_v1(keys, asker.mem_pool_host.indices([0, 1])) == [False, False]
    asker._pages.drain()
    assert list(asker._pages.mismatches.values()) == ([] if reason is None else [reason])
    store = kvasir.connect(asker._settings.url, namespace=asker._settings.namespace)
    causes = store.explain_objects(asker._names_of(PoolName.KV, keys))["causes"]
    assert [cause["reason"] for cause in causes if "differences" in cause] == ([] if reason is None else ["other_model"])


def test_metrics_say_what_became_of_pages(make):
    """In SGLang's Prometheus registry, by cause, added up where it asks for stats."""
    pool, labels = HostPool(), {"model_name": "org/metrics", "tp_rank": "0", "pp_rank": "0"}
    storage = make(pool, model_name="org/metrics")
    storage.batch_set_v1(make_keys(2), pool.indices([0, 1]))
    for _ in range(2):
        storage.batch_exists(make_keys(3))
        assert storage.get_stats() is None
    value = lambda name, result: REGISTRY.get_sample_value(f"sglang:{name}_total", labels | {"result": result})  # noqa: E731
    assert value("kvasir_pages", "stores:stored") == 2 and value("kvasir_pages", "finds:found") == 4
    assert value("kvasir_page_bytes", "store_bytes") == 2 * pool.buffer[:, 0].nbytes


def test_of_latent_attention_one_rank_writes_and_all_read(make):
    pool, keys = HostPool(parts=1), make_keys(2)
    pool.fill([0, 1], seed=3)
    second = make(pool, is_mla_model=True, tp_rank=1, tp_size=2)
    assert second.batch_set_v1(keys, pool.indices([0, 1])) == [True, True]
    assert second.batch_exists(keys) == 0, "it leaves that to the first"
    make(pool, is_mla_model=True, tp_rank=0, tp_size=2).batch_set_v1(keys, pool.indices([0, 1]))
    other = HostPool(parts=1)
    # Of four ranks, too: each has the same latent rows.
    reader = make(other, is_mla_model=True, tp_rank=3, tp_size=4)
    assert reader.batch_exists(keys) == 2 and reader.batch_get_v1(keys, other.indices([0, 1])) == [True, True]
    assert torch.equal(other.buffer[:, :2], pool.buffer[:, :2])


def make_hybrid(make, parts: int = 3) -> tuple[HiCacheStorage, HostPool, HostPool]:
    kv, state = HostPool(), HostPool(parts=parts, page_size=1)
    storage = make(kv)
    storage.register_mem_host_pool_v2(kv, PoolName.KV)
    storage.register_mem_host_pool_v2(state, PoolName.MAMBA)
    return storage, kv, state


def test_pools_beside_the_keys_and_values(make):
    storage, kv, state = make_hybrid(make)
    keys = make_keys(6)
    kv.fill([0, 1, 2, 3, 4, 5], seed=4)
    state.fill([7, 8], seed=5)
    # The states of the second and the fourth page.
    transfers = [
        PoolTransfer(PoolName.KV, kv.indices([0, 1, 2, 3, 4]), keys=keys[:5]),
        PoolTransfer(PoolName.MAMBA, state.indices([7, 8]), keys=[keys[1], keys[3]], hit_policy=PoolHitPolicy.TRAILING_PAGES),
    ]
    assert storage.batch_set_v2(transfers) == {PoolName.KV: [True] * 5, PoolName.MAMBA: [True] * 2}
    trailing = PoolTransfer(PoolName.MAMBA, keys=[keys[0]], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    found = storage.batch_exists_v2(keys, [trailing])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [2, 4])
    assert found.extra_pool_hit_pages == {PoolName.KV: 5, PoolName.MAMBA: 4}
    window = PoolTransfer(PoolName.MAMBA, keys=keys[:2], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    assert storage.batch_exists_v2(keys, [window]).kv_hit_pages == 0
    every = PoolTransfer(PoolName.MAMBA, keys=keys, hit_policy=PoolHitPolicy.ALL_PAGES)
    assert storage.batch_exists_v2(keys, [every]).kv_hit_pages == 0
    assert storage.batch_exists_v2(keys).kv_hit_pages == 5
    blocks = PoolTransfer(PoolName.DEEPSEEK_V4_C4, keys=keys, hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=2, group_pages=1)
    assert storage.batch_exists_v2(keys, [blocks]).kv_hit_pages == 5
    other, other_kv, other_state = make_hybrid(make)
    got = other.batch_get_v2(
        [
            PoolTransfer(PoolName.KV, other_kv.indices([10, 11, 12, 13]), keys=keys[:4]),
            PoolTransfer(PoolName.MAMBA, other_state.indices([0]), keys=[keys[3]]),
        ]
    )
    assert got == {PoolName.KV: [True] * 4, PoolName.MAMBA: [True]}
    assert torch.equal(other_kv.buffer[:, 10:14], kv.buffer[:, :4]) and torch.equal(other_state.buffer[:, 0], state.buffer[:, 8])
    assert other.batch_get_v2([PoolTransfer(PoolName.MAMBA, None, keys=[keys[3]])]) == {PoolName.MAMBA: [False]}


def test_sglangs_own_faults(make, monkeypatch):
    """Its wrapper fails and delays calls; what is said to be there is."""
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.01")
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.3")
    pool, keys = HostPool(), make_keys(3)
    pool.fill([0, 1, 2], seed=6)
    storage, before = make(pool), pool.buffer[:, :3].clone()
    assert isinstance(storage, HiCacheStorageFailureInjector)
    loads = 0
    for _ in range(60):
        storage.batch_set_v1(keys, pool.indices([0, 1, 2]))
        assert storage.batch_exists(keys) in (0, 3)
        pool.buffer[:, 3:6] = 0
        if all(storage.batch_get_v1(keys, pool.indices([3, 4, 5]))):
            assert torch.equal(pool.buffer[:, 3:6], before)
            loads += 1
    assert 10 < loads < 60


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "sound"])
def test_faults_of_the_network_are_misses_within_the_deadlines(make, service, mode):
    proxy = FaultProxy(service.url, seed=4)
    params = {"namespace": f"faults-{mode}", "lookup_deadline_s": 0.3, "load_deadline_s": 1.0}
    pool, keys = HostPool(), make_keys(3)
    pool.fill([0, 1, 2], seed=7)
    make(pool, params=params).batch_set_v1(keys, pool.indices([0, 1, 2]))
    other = HostPool()
    storage = make(other, url=proxy.url, params=params)
    proxy.mode = mode
    for _ in range(4):
        begun = time.monotonic()
        storage.batch_exists(keys)
        assert time.monotonic() - begun < 0.3 + MARGIN_S
        begun = time.monotonic()
        found = storage.batch_get_v1(keys, other.indices([0, 1, 2]))
        assert time.monotonic() - begun < 1.0 + MARGIN_S
        for page, is_loaded in enumerate(found):
            assert not is_loaded or torch.equal(other.buffer[:, page], pool.buffer[:, page])
    if mode in ("away", "silent", "unavailable", "unauthorized"):
        assert found == [False] * 3
    proxy.mode = "sound"
    assert storage.batch_exists(keys) == 3 and all(storage.batch_get_v1(keys, other.indices([0, 1, 2])))


def test_close_waits_for_what_is_under_way(make, service):
    proxy, pool, keys = FaultProxy(service.url), HostPool(), make_keys(3)
    storage = make(url=proxy.url)
    proxy.mode = "slow"
    with ThreadPoolExecutor() as threads:
        stored = threads.submit(storage.batch_set_v1, keys, pool.indices([0, 1, 2]))
        while not storage._pages._moving:
            assert not stored.done()
        storage.close()
        assert stored.result() == [True] * 3
    assert make().batch_exists(keys) == 3


def test_sglangs_controller_prefetches_and_backs_up(service, monkeypatch):
    """What one engine has backed up, in batches of its own, another one prefetches."""
    truth, tokens = HostPool(pages=300), list(range(300 * PAGE))
    truth.fill(list(range(300)), seed=8)
    # What is late on a busy machine is a miss.
    patient = {"lookup_deadline_s": 30, "load_deadline_s": 40}
    extra = make_config({"url": service.url, "namespace": "controller"} | patient).extra_config
    first, other = (
        Engine(monkeypatch, HostPool(pages=300, storage_format_tag=None, logical_size=300 * PAGE), dict(extra)) for _ in range(2)
    )

    def serve(engine: Engine, pages: int) -> int:
        engine.pool.buffer.zero_()
        prompt = tokens[: pages * PAGE]
        there = engine.prefetch(prompt)
        assert torch.equal(engine.pool.buffer[:, :there], truth.buffer[:, :there])
        # The rest is computed.
        engine.pool.buffer[:, there:pages] = truth.buffer[:, there:pages]
        assert there == pages or engine.back_up(prompt, there) == pages - there
        return there

    assert [serve(first, 140), serve(first, 300), serve(other, 300), serve(other, 20)] == [0, 140, 300, 20]
    exists, get, put = "batch_exists", "batch_get_v1", "batch_set_v1"
    assert first.calls[:3] == [(exists, 128), (put, 128), (put, 12)]
    assert first.calls[3:] == [(exists, 128), (exists, 128), (get, 128), (get, 12), (put, 128), (put, 32)]
    assert other.calls[:6] == [(name, count) for name in (exists, get) for count in (128, 128, 44)]
    assert other.calls[6:] == [(exists, 20), (get, 20)]
    for engine in (first, other):
        engine.close()


def test_clear_and_settings(make, caplog):
    pool = HostPool()
    storage = make(pool)
    storage.batch_set_v1(make_keys(1), pool.indices([0]))
    storage.clear()
    assert storage.batch_exists(make_keys(1)) == 1 and "pages in Kvasir are kept" in caplog.text
    with pytest.raises(kvasir.InputError, match="it is missing"):
        StorageBackendFactory.create_backend("dynamic", make_config(None), pool)
    with pytest.raises(kvasir.InputError, match="colour is not a setting"):
        StorageBackendFactory.create_backend("dynamic", make_config({"url": "http://127.0.0.1:1", "colour": 1}), pool)
