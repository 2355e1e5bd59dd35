"""LMCache's objects, and its method of waiting for an adapter's batches."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

MODEL = "org/model"
SHAPE = (8, 256, 64)
# What threads may take above a deadline: on a busy machine they took 0.04 s. Where lookups have 0.3 s and loads 1.0 s, a lookup
# that takes a load's deadline fails, and so does a load that takes its own twice.
MARGIN_S = 0.6


def make_adapter(url: str, **params: Any) -> L2AdapterInterface:
    """As LMCache's server makes it, and connected."""
    spec = {"module_path": "kvasir.lmcache", "class_name": "KvasirL2", "adapter_params": {"url": url, **params}}
    adapter = create_l2_adapter(PluginL2AdapterConfig.from_dict(spec))
    wait_for(lambda: adapter.report_status()["is_healthy"] or None)
    return adapter


def make_keys(count: int, first: int = 0, **others: Any) -> list[ObjectKey]:
    """A row of keys, as of one prompt's chunks."""
    named = {"model_name": MODEL, "kv_rank": ObjectKey.ComputeKVRank(1, 0, 1, 0)} | others
    return [ObjectKey(chunk_hash=index.to_bytes(32, "big"), **named) for index in range(first, first + count)]


def make_objects(count: int, seed: int | None = None, dtype: torch.dtype = torch.bfloat16, times: int = 1) -> list[TensorMemoryObj]:
    """Memory of chunks, with `times` as many layers as usual: random bytes, or zeros."""
    shape = torch.Size((times * SHAPE[0], *SHAPE[1:]))
    size = shape.numel() * dtype.itemsize
    dice = torch.Generator().manual_seed(seed or 0)
    objects = []
    for _ in range(count):
        data = torch.zeros(size, dtype=torch.uint8)
        if seed is not None:
            data.random_(0, 256, generator=dice)
        meta = MemoryObjMetadata(shape, dtype, 0, size, 1, fmt=MemoryFormat.KV_2LTD, shapes=[shape], dtypes=[dtype])
        objects.append(TensorMemoryObj(raw_data=data, metadata=meta, parent_allocator=None))
    return objects


def make_caches(count: int, seed: int | None = None, layers: int = 4) -> list[TensorMemoryObj]:
    """Memory of chunks as an engine on its own fills them: keys and values of layers, with a scale of each element's own."""
    shape = torch.Size((2, layers, 256, 64))
    objects = []
    for index in range(count):
        values = torch.zeros(shape)
        if seed is not None:
            values.normal_(generator=torch.Generator().manual_seed(seed + index)).mul_(torch.linspace(0.1, 4, 64))
        data = values.to(torch.bfloat16).view(torch.uint8).flatten()
        types = {"fmt": MemoryFormat.KV_2LTD, "shapes": [shape], "dtypes": [torch.bfloat16]}
        meta = MemoryObjMetadata(shape, torch.bfloat16, 0, data.numel(), 1, **types)
        objects.append(TensorMemoryObj(raw_data=data, metadata=meta, parent_allocator=None))
    return objects


def layouts(dtype: torch.dtype = torch.bfloat16, groups: int = 1, times: int = 1) -> dict[int, MemoryLayoutDesc]:
    shape = torch.Size((times * SHAPE[0], *SHAPE[1:]))
    return {group: MemoryLayoutDesc(shapes=[shape], dtypes=[dtype]) for group in range(groups)}


def wait_for(query: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for an answer that is not None."""
    until = time.monotonic() + seconds
    while (found := query()) is None:
        assert time.monotonic() < until, "no answer"
        time.sleep(0.005)
    return found


def _signalled(fd: int, query: Callable[[], Any], seconds: float) -> Any:
    """The answer that an event announces; without the event LMCache would never ask."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    until = time.monotonic() + seconds
    while True:
        assert poller.poll(max(until - time.monotonic(), 0) * 1e3), "no event"
        consume_fd(fd)
        if (found := query()) is not None:
            return found


def store(adapter: L2AdapterInterface, keys: list[ObjectKey], objects: list[TensorMemoryObj], seconds: float = 40.0) -> Any:
    task = adapter.submit_store_task(keys, objects)
    return _signalled(adapter.get_store_event_fd(), lambda: adapter.pop_completed_store_tasks().get(task), seconds)


def look_up(adapter: L2AdapterInterface, keys: list[ObjectKey], of: dict[int, MemoryLayoutDesc] | None = None) -> str:
    """One character for each key: 1 where it is stored."""
    task = adapter.submit_lookup_and_lock_task(keys, layouts() if of is None else of)
    query = lambda: adapter.query_lookup_and_lock_result(task)  # noqa: E731
    found = _signalled(adapter.get_lookup_and_lock_event_fd(), query, 30.0)
    assert query() is None, "an answer is given once"
    return text_of(found, len(keys))


def load(adapter: L2AdapterInterface, keys: list[ObjectKey], objects: list[TensorMemoryObj]) -> str:
    task = adapter.submit_load_task(keys, objects)
    found = _signalled(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task), 30.0)
    return text_of(found, len(keys))


def text_of(bitmap: Any, count: int) -> str:
    return "".join("1" if bitmap.test(index) else "0" for index in range(count))


def are_equal(some: list[TensorMemoryObj], others: list[TensorMemoryObj]) -> bool:
    return all(torch.equal(a.raw_data, b.raw_data) for a, b in zip(some, others, strict=True))
