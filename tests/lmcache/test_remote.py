"""The in-process mode's adapter, from LMCache's remote back end into its memory. No engine: 0.5.6 needs a GPU for it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch
from batches import MARGIN_S, wait_for
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend
from proxy import MODES, FaultProxy

import kvasir

CHUNK, LAYERS, HEADS, DIM = 64, 4, 2, 32


class Process:
    """An engine's process: LMCache's memory, its loop, and its remote back end over the adapter."""

    def __init__(
        self, url: str, dtype: torch.dtype = torch.bfloat16, ranks: int = 1, heads: int = HEADS, layerwise: bool = False, **params
    ) -> None:
        where = "remote_storage_plugin.kvasir."
        extra = {where + "module_path": "kvasir.lmcache_remote", where + "class_name": "KvasirAdapter", where + "url": url}
        extra |= {where + name: value for name, value in params.items()}
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK,
            max_local_cpu_size=0.1,
            local_cpu=False,
            remote_storage_plugins=["kvasir"],
            extra_config=extra,
            use_layerwise=layerwise,
        )
        # With more heads it has fewer layers, as ranks that divide these.
        shape = (LAYERS * HEADS // heads, 2, CHUNK, heads, DIM)
        self.metadata = LMCacheMetadata("org/model", ranks, ranks, 0, 0, dtype, shape, chunk_size=CHUNK)
        self.memory = LocalCPUBackend(config, self.metadata, dst_device="cpu")
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.backend = RemoteBackend(config, self.metadata, self.loop, self.memory, "cpu", plugin_name="kvasir")
        self.connector = self.backend.connection.getWrappedConnector()
        self.pages = self.connector._pages
        wait_for(lambda: self.pages.is_connected or None)

    def keys(self, count: int, first: int = 0, **tags: str) -> list[CacheEngineKey]:
        configs = {f"lmcache.tag.{name}": value for name, value in tags.items()}
        dtype, ranks = self.metadata.kv_dtype, self.metadata.world_size
        return [CacheEngineKey("org/model", ranks, 0, 1 + index, dtype, configs) for index in range(first, first + count)]

    def store(self, keys: list[CacheEngineKey], seed: int, tokens: int = CHUNK) -> list[torch.Tensor]:
        dice, objects = torch.Generator().manual_seed(seed), []
        for _ in keys:
            objects.append(self.memory.allocate(self.metadata.get_shapes(tokens), self.metadata.get_dtypes()))
            objects[-1].tensor.copy_(torch.randn(objects[-1].tensor.shape, generator=dice).to(self.metadata.kv_dtype))
        values = [object.tensor.clone() for object in objects]
        over = threading.Semaphore(0)
        self.backend.batched_submit_put_task(keys, objects, on_complete_callback=lambda _: over.release())
        for object in objects:
            object.ref_count_down()
        assert all(over.acquire(timeout=40) for _ in keys)
        return values

    def load(self, keys: list[CacheEngineKey]) -> list[torch.Tensor | None]:
        objects = self.backend.batched_get_blocking(keys)
        values = [None if object is None else object.tensor.clone() for object in objects]
        for object in objects:
            if object is not None:
                object.ref_count_down()
        return values

    def used(self) -> int:
        """Bytes of LMCache's memory that something holds."""
        return self.memory.memory_allocator.pin_allocator.total_allocated_size

    def close(self) -> None:
        self.backend.close()


@pytest.fixture
def make(service, request):
    made = []

    def process(url: str = service.url, **params) -> Process:
        made.append(Process(url, **({"namespace": request.node.originalname} | params)))
        return made[-1]

    yield process
    for each in made:
        each.close()


def are_equal(some: list, others: list) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_another_process_loads_what_one_has_stored(make):
    one, other = make(), make()
    values = one.store(one.keys(3), seed=1)
    assert other.backend.batched_contains(other.keys(4)) == 3 and other.backend.contains(other.keys(1)[0])
    loaded = other.load(other.keys(4))
    assert are_equal(loaded[:3], values) and loaded[3] is None
    contains = other.backend.batched_async_contains("id", other.keys(4))
    assert asyncio.run_coroutine_threadsafe(contains, other.loop).result() == 3
    got = asyncio.run_coroutine_threadsafe(other.backend.batched_get_non_blocking("id", other.keys(4)), other.loop).result()
    assert are_equal([object.tensor for object in got], values)
    [object.ref_count_down() for object in got]
    assert one.used() == other.used() == 0
    assert other.backend.remove(other.keys(1)[0]) and other.backend.batched_contains(other.keys(3)) == 0


def test_chunks_that_are_not_whole_are_not_stored(make):
    one = make()
    one.store(one.keys(1), seed=2, tokens=CHUNK // 2)
    assert one.backend.batched_contains(one.keys(1)) == 0


@pytest.mark.parametrize(("quality", "most"), [("exact", 0.95), ("small", 0.6)])
def test_chunks_are_encoded_where_a_quality_is_named(make, service, quality, most):
    own = {"namespace": f"encoded-{quality}"}
    one, other, exact = (make(quality=named, **own) for named in (quality, quality, "exact"))
    values = one.store(one.keys(6), seed=6)
    stored = kvasir.connect(service.url, **own).read_objects(one.connector._names_of(one.keys(6)))
    assert len(stored) == 6 and sum(map(len, stored)) < most * sum(value.nbytes for value in values)
    truth, came = (torch.stack(some).float() for some in (values, other.load(other.keys(6))))
    error = float((came - truth).square().sum() / truth.square().sum())
    assert error == 0 if quality == "exact" else 0 < error < 1e-1
    # Who asks for more gets no less.
    assert any(chunk is None for chunk in exact.load(exact.keys(6))) == (quality != "exact")
    # Who stores chunks as they are has others.
    assert make(**own).backend.batched_contains(one.keys(6)) == 0


@pytest.mark.parametrize(
    ("difference", "reason"),
    [
        ({"dtype": torch.float16}, "dtype is 'torch.float16' here and 'torch.bfloat16' there"),
        ({"ranks": 2}, "world_size is '2' here and '1' there"),
        ({"heads": 4}, "kv_shape is '(2, 2, 64, 4, 32)' here and '(4, 2, 64, 2, 32)' there"),
        ({"revision": "b"}, "revision is 'b' here and '' there"),
        ({"namespace": "other"}, None),
    ],
)
def test_what_is_incompatible_is_a_miss_with_a_reason(make, difference, reason):
    one, other = make(), make(**difference)
    one.store(one.keys(1), seed=3)
    one.pages.drain()
    assert other.backend.batched_contains(other.keys(1)) == 0 and other.load(other.keys(1)) == [None]
    other.pages.drain()
    assert list(other.pages.mismatches.values()) == ([] if reason is None else [reason])
    assert one.backend.batched_contains(one.keys(1, user="a")) == 0


def test_a_load_takes_the_memory_that_is_free(make):
    """And does not wait for more, on LMCache's loop."""
    one, other, held = make(), make(), []
    values = one.store(one.keys(4), seed=5)
    layout = other.metadata.get_shapes(), other.metadata.get_dtypes()
    while (object := other.memory.allocate(*layout, busy_loop=False)) is not None:
        held.append(object)
    for _ in range(2):
        held.pop().ref_count_down()
    loaded = other.load(other.keys(4))
    assert are_equal(loaded[:2], values[:2]) and loaded[2:] == [None, None]
    for object in held:
        object.ref_count_down()
    assert are_equal(other.load(other.keys(4)), values) and other.used() == 0


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "sound"])
def test_faults_of_the_network_are_misses_within_the_deadlines(make, service, mode):
    proxy = FaultProxy(service.url, seed=5)
    one = make(url=proxy.url, namespace=f"faults-{mode}", lookup_deadline_s=0.3, load_deadline_s=1.0)
    keys = one.keys(3)
    values = one.store(keys, seed=4)
    proxy.mode = mode
    for _ in range(4):
        begun = time.monotonic()
        one.backend.batched_contains(keys)
        loaded = one.load(keys)
        assert time.monotonic() - begun < 1.3 + MARGIN_S
        assert all(value is None or torch.equal(value, values[place]) for place, value in enumerate(loaded))
    proxy.mode = "sound"
    assert one.backend.batched_contains(keys) == 3 and are_equal(one.load(keys), values) and one.used() == 0


@pytest.mark.parametrize(
    ("params", "what"), [({"colour": "red"}, "colour is not a setting"), ({"layerwise": True}, "single layers are not supported")]
)
def test_settings_that_cannot_be(service, params, what):
    with pytest.raises(IrrecoverableException, match=what):
        Process(service.url, **params)
