"""Parts of LMCache's back ends that need no engine: plain objects stand in for what they import of its packages."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace

import pytest
from stand_ins import Cls

import kvasir


class Chunk:
    """A part of LMCache's memory."""

    data_ptr, references = 0, 1

    def get_size(self) -> int:
        return 8

    def ref_count_up(self) -> None:
        self.references += 1

    def ref_count_down(self) -> None:
        self.references -= 1


def import_lmcache_remote(import_over) -> ModuleType:
    connector = "lmcache.v1.storage_backend.connector"
    stand_ins = {
        "lmcache.logging": {"init_logger": logging.getLogger},
        "lmcache.utils": {"CacheEngineKey": Cls},
        "lmcache.v1.exceptions": {"IrrecoverableException": Exception},
        "lmcache.v1.memory_management": {"MemoryObj": Cls},
        connector: {"ConnectorAdapter": Cls, "ConnectorContext": Cls},
        f"{connector}.base_connector": {
            "RemoteConnector": type("RemoteConnector", (Cls,), {"full_chunk_size_bytes": 8, "meta_fmt": "2LTD"})
        },
    }
    return import_over("kvasir.lmcache_remote", stand_ins)


LMCACHE_KEY = SimpleNamespace(model_name="m", dtype="bf16", world_size=4, worker_id=0, tags=None, chunk_hash_hex="a")


def make_connector(module: ModuleType, memory=None, kv_shape=(32, 2, 64, 2, 128), **pages):
    """`pages` are the methods of its store, whose names of pages are their identities."""
    pages = {"names": lambda identity, rank, hashes, salt: [identity] * len(hashes)} | pages
    module.PageStore = lambda *_: SimpleNamespace(**pages)
    config = SimpleNamespace(extra_config={"remote_storage_plugin.kvasir.url": "http://x"}, use_layerwise=False)
    shapes = {"get_shapes": lambda: ["shape"], "get_dtypes": lambda: ["bf16"]}
    metadata = SimpleNamespace(chunk_size=64, kv_shape=kv_shape, **shapes)
    context = SimpleNamespace(config=config, metadata=metadata, plugin_name="kvasir", local_cpu_backend=memory)
    return module.KvasirAdapter().create_connector(context)


def test_ranks_of_lmcache_that_divide_layers_have_other_names(import_over):
    module = import_lmcache_remote(import_over)
    # Four ranks that divide heads, and two that divide heads with two that divide layers: chunks of equal sizes.
    shapes = [(32, 2, 64, 2, 128), (16, 2, 64, 4, 128), [32, 2, 64, 2, 128]]
    names = [make_connector(module, kv_shape=shape)._names_of([LMCACHE_KEY])[0].prefix() for shape in shapes]
    assert names[0] == names[2] != names[1]


def test_a_load_of_lmcache_does_not_wait_for_memory(import_over):
    free, asked = [Chunk(), Chunk()], []

    def allocate(shapes, dtypes, fmt=None, eviction=True, busy_loop=True):
        assert (shapes, dtypes, fmt) == (["shape"], ["bf16"], "2LTD")
        asked.append(busy_loop)
        return free.pop() if free else None

    def load(keys, pages, layout):
        assert layout is None and len(keys) == len(pages) == 2
        loaded: Future = Future()
        loaded.set_result([True, False])
        return loaded

    made = make_connector(import_lmcache_remote(import_over), SimpleNamespace(allocate=allocate), load=load)
    last, first = free
    assert asyncio.run(made.batched_get([LMCACHE_KEY] * 4)) == [first, None, None, None]
    assert asked == [False] * 3 and (first.references, last.references) == (1, 0)


def test_a_store_that_lmcache_abandons_holds_its_memory(import_over):
    stores: list[Future] = []

    def store(keys, pages, layout):
        stores.append(Future())
        return stores[-1]

    made, key = make_connector(import_lmcache_remote(import_over), store=store), LMCACHE_KEY

    async def main() -> None:
        waited, abandoned = Chunk(), Chunk()
        putting = [asyncio.create_task(made.batched_put([key], [chunk])) for chunk in (waited, abandoned)]
        await asyncio.sleep(0)
        putting[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting[1]
        # What LMCache held itself.
        abandoned.ref_count_down()
        assert not stores[1].done() and abandoned.references == 1
        for storing in stores:
            storing.set_result(["stored"])
        await putting[0]
        assert (waited.references, abandoned.references) == (1, 0)

    asyncio.run(main())


class Notifier(threading.Semaphore):
    """LMCache's."""

    notify = threading.Semaphore.release


class EncodedObjects:
    """The extension's objects, which load what was stored with the same layout."""

    def __init__(self, stored: dict, calls: list, layout: tuple | None = None) -> None:
        self.stored, self.calls, self.layout = stored, calls, layout

    def encoded(self, dtype, shape, order, quality, model):
        return EncodedObjects(self.stored, self.calls, shape)

    async def store(self, keys, pages, seconds, is_async):
        self.calls.append(("store", self.layout, len(keys)))
        self.stored.update(dict.fromkeys(keys, self.layout))
        return ["stored"] * len(keys)

    async def load(self, keys, pages, seconds, is_async):
        self.calls.append(("load", self.layout, len(keys)))
        found = [self.stored.get(key, "") for key in keys]
        return ["missing" if layout == "" else "loaded" if layout == self.layout else "other_size" for layout in found]


def make_page_store(module: ModuleType, monkeypatch, objects, quality: str | None = "exact"):
    """One that has no service besides `objects`."""

    async def connect(*_):
        raise kvasir.InputError("enough is known", "test", "")

    async def note(*_):
        pass

    monkeypatch.setattr(module._kvasir, "connect", connect)
    monkeypatch.setattr(module.PageStore, "_note", note)
    pages = module.PageStore(module.Settings("http://x", quality=quality), logging.getLogger("test"))
    pages._connecting.result(30)
    pages._objects = objects
    return pages


def import_lmcache(import_over) -> ModuleType:
    l2, of_metrics = "lmcache.v1.distributed", SimpleNamespace(create_observable_counter=lambda *_, **__: None)
    adapters = type("L2AdapterInterface", (Cls,), dict.fromkeys(["_notify_keys_stored", "_notify_keys_accessed"], lambda *_: None))
    stand_ins = {
        "torch": {name: f"torch.{name}" for name in ("bfloat16", "float16", "float32")},
        "lmcache.lmcache_native": {"Bitmap": lambda count: set()},
        "lmcache.logging": {"init_logger": logging.getLogger},
        f"{l2}.api": {"MemoryLayoutDesc": Cls, "ObjectKey": Cls},
        f"{l2}.internal_api": {"L2StoreResult": lambda *given: given},
        f"{l2}.l2_adapters.base": {"L2AdapterInterface": adapters},
        "lmcache.v1.memory_management": {"MemoryObj": Cls},
        "lmcache.v1.platform": {"create_event_notifier": lambda: Notifier(0)},
        "opentelemetry.metrics": {"Observation": lambda *given: given, "get_meter": lambda _: of_metrics},
    }
    return import_over("kvasir.lmcache", stand_ins)


def test_metrics_of_lmcache_are_read_while_adapters_count(import_over):
    module = import_lmcache(import_over)

    class Counts(Counter):
        """To which another thread adds while it is read step by step."""

        def items(self):
            for each in super().items():
                yield each
                self["finds:missing"] += 1

    adapters = [SimpleNamespace(_pages=SimpleNamespace(counts=Counts({"finds:found": 2, "load_bytes": 8}))) for _ in range(2)]
    module._adapters = adapters
    assert module._observe(of_bytes=False) == [(4, {"result": "finds:found"})]
    assert module._observe(of_bytes=True) == [(16, {"result": "load_bytes"})]


@pytest.mark.parametrize("quality", ["exact", None])
def test_each_chunk_of_a_batch_of_lmcache_has_its_layout(import_over, monkeypatch, quality):
    module = import_lmcache(import_over)
    from kvasir import _pages

    stored, calls = {}, []
    pages = make_page_store(_pages, monkeypatch, EncodedObjects(stored, calls), quality)
    monkeypatch.setattr(module, "PageStore", lambda *_: pages)
    adapter = module.KvasirL2({"url": "http://x", "quality": quality})
    # Of three groups of layers, the last of which cannot be encoded.
    groups, shapes = [0, 1, 0, 2], [(2, 4, 256, 64), (2, 2, 256, 64), (2, 4, 256, 64), (4, 256, 64)]
    of_all = {"model_name": "m", "kv_rank": 1 << 24, "cache_salt": ""}
    keys = [SimpleNamespace(object_group_id=group, chunk_hash=bytes([n]), **of_all) for n, group in enumerate(groups)]
    metas = [SimpleNamespace(shapes=[shape], dtypes=["torch.bfloat16"]) for shape in shapes]
    objects = [SimpleNamespace(metadata=meta, data_ptr=0, get_size=lambda: 8) for meta in metas]

    def load(*which: int) -> set[int]:
        task = adapter.submit_load_task([keys[n] for n in which], [objects[n] for n in which])
        assert adapter._loaded.acquire(timeout=30)
        return {which[place] for place in adapter.query_load_result(task)}

    def bitmap(bits, count: int) -> set[int]:
        return {place for place, bit in enumerate(bits) if bit}

    monkeypatch.setattr(module, "_bitmap", bitmap)
    # What is stored by group is loaded with the others.
    for which in ([0, 2], [1], [3]):
        adapter.submit_store_task([keys[n] for n in which], [objects[n] for n in which])
        assert adapter._stored.acquire(timeout=30)
    assert load(0, 1, 2, 3) == {0, 1, 2, 3}
    most, few = (4, 256, 1, 64), (2, 256, 1, 64)
    if quality is None:
        # As before in one request.
        assert calls[3:] == [("load", None, 4)]
    else:
        assert calls[3:] == [("load", most, 2), ("load", few, 1), ("load", None, 1)]
    # The third chunk.
    del stored[list(stored)[1]]
    assert load(0, 1, 2, 3) == {0, 1, 3}
    adapter.submit_store_task(keys, objects)
    assert adapter._stored.acquire(timeout=30) and all(is_done for is_done, _ in adapter.pop_completed_store_tasks().values())
    assert list(stored.values()) == ([None] * 4 if quality is None else [most, few, None, most])
    pages.close()


def test_a_batch_that_fails_for_one_layout_ends_with_the_others(import_over, monkeypatch):
    from kvasir import _pages

    free, ended = threading.Event(), []

    class Objects(EncodedObjects):
        def encoded(self, dtype, shape, order, quality, model):
            return Objects(self.stored, self.calls, shape)

        async def load(self, keys, *_):
            if self.layout == (1, 1, 1, 1):
                raise RuntimeError("a fault")
            await asyncio.to_thread(free.wait, 30)
            ended.append(self.layout)
            return ["loaded"] * len(keys)

    pages = make_page_store(_pages, monkeypatch, Objects({}, []))
    faulty, sound = (_pages.PageLayout("m", "bfloat16", (size,) * 4, "2LNHD") for size in (1, 2))
    loading = pages.load(["a", "b"], [[(0, 8)]] * 2, [faulty, sound])
    with pytest.raises(TimeoutError):
        loading.result(0.2)
    free.set()
    assert loading.result(30) == [False, False] and ended == [(2, 2, 2, 2)]
    pages.close()
