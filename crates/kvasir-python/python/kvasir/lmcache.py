"""Kvasir as the second level (L2) of LMCache in its multi-process mode. The guide is ``docs/lmcache.md``.

Configured as an adapter of type ``plugin``: ``{"type": "plugin", "module_path": "kvasir.lmcache", "class_name": "KvasirL2",
"adapter_params": {"url": "http://HOST:7480"}}``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain, groupby
from typing import Any
from weakref import WeakSet

import torch
from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier
from opentelemetry.metrics import Observation, get_meter

from ._identities import Identity
from ._pages import BYTES_TEXT, PAGES_TEXT, PRESENT, STORED, Page, PageLayout, PageStore, Settings, is_of_bytes, size_of
from ._settings import read_settings

__all__ = ["KvasirL2"]

logger = init_logger(__name__)

# One set of metrics per process.
_adapters: WeakSet[KvasirL2] = WeakSet()
# Types of pages that can be encoded.
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Model, rank and object group: their objects share a layout.
_Group = tuple[str, int, int]


class KvasirL2(L2AdapterInterface):
    """An L2 adapter: each call is a batch, and no call waits.

    Parameters
    ----------
    params : mapping
        ``adapter_params``: the fields of `kvasir._pages.Settings`.
    l1_memory_desc : L1MemoryDesc, optional
        LMCache's memory; it need not be registered.

    Raises
    ------
    InputError
        ``invalid_setting`` for an unknown key or invalid value.
    """

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        self._settings = read_settings(Settings, params, "adapter_params")
        self._pages = PageStore(self._settings, logger)
        self._stored, self._found, self._loaded = (create_event_notifier() for _ in range(3))
        self._lock = threading.Lock()
        self._tasks = 0
        self._stores: dict[int, L2StoreResult] = {}
        self._lookups: dict[int, Bitmap] = {}
        self._loads: dict[int, Bitmap] = {}
        # Layouts of object groups, by model, rank and group: keys contain these, but not every call names the layout.
        self._layouts: dict[_Group, str] = {}
        self._sizes: dict[_Group, int] = {}
        _adapters.add(self)

    def get_store_event_fd(self) -> int:
        """See the base class."""
        return int(self._stored.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        """See the base class."""
        return int(self._found.fileno())

    def get_load_event_fd(self) -> int:
        """See the base class."""
        return int(self._loaded.fileno())

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """Store a batch. It succeeds when all of it is durable."""
        pages = self._pages_of(keys, objects)

        def finish(future: Future[list[str]]) -> None:
            outcomes = future.result()
            sizes = [size_of(page) if outcome == STORED else 0 for outcome, page in zip(outcomes, pages, strict=True)]
            there = [outcome in (STORED, PRESENT) for outcome in outcomes]
            self._notify_keys_stored(_chosen(keys, there), _chosen(sizes, there))
            with self._lock:
                self._stores[task] = L2StoreResult(all(there), sum(sizes))
            self._stored.notify()

        task = self._next_task()
        self._pages.store(self._names_of(keys), pages, _layouts_of(keys, objects)).add_done_callback(finish)
        return task

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        """Return the operations that ended since the last call."""
        with self._lock:
            done, self._stores = self._stores, {}
        return done

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]) -> int:
        """Look a batch up. Stored objects are not locked: one that is removed before its load becomes a miss."""
        for key in keys:
            layout = group_layout_descs.get(key.object_group_id)
            # Callers without a layout pass an empty one.
            if layout is not None and layout.shapes:
                self._remember(key, layout.shapes, layout.dtypes)
        rows = [self._names_of(list(row)) for _, row in groupby(keys, _row_of)]
        # Keys of a row after a missing one are of no use, unless a group has a sliding window.
        gaps = len(group_layout_descs) > 1

        def finish(future: Future[list[list[bool]]]) -> None:
            bitmap = _bitmap(chain.from_iterable(future.result()), len(keys))
            with self._lock:
                self._lookups[task] = bitmap
            self._found.notify()

        task = self._next_task()
        self._pages.find(rows, gaps).add_done_callback(finish)
        return task

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        """Return the result of a lookup, once."""
        with self._lock:
            return self._lookups.pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Do nothing: nothing is locked."""

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """Load a batch into LMCache's memory."""
        pages = self._pages_of(keys, objects)

        def finish(future: Future[list[bool]]) -> None:
            loaded = future.result()
            self._notify_keys_accessed(_chosen(keys, loaded))
            with self._lock:
                self._loads[task] = _bitmap(loaded, len(keys))
            self._loaded.notify()

        task = self._next_task()
        self._pages.load(self._names_of(keys), pages, _layouts_of(keys, objects)).add_done_callback(finish)
        return task

    def query_load_result(self, task_id: int) -> Bitmap | None:
        """Return the result of a load, once."""
        with self._lock:
            return self._loads.pop(task_id, None)

    def delete(self, keys: list[ObjectKey]) -> None:
        """Remove objects that this server stored or loaded, and wait for the result."""
        known = [key for key in keys if _group_of(key) in self._sizes]
        deleted = self._pages.delete(self._names_of(known)).result()
        gone = _chosen(known, deleted)
        self._notify_keys_deleted(gone, [self._sizes[_group_of(key)] for key in gone])

    def report_status(self) -> dict[str, Any]:
        """Report whether the service is connected, and the counts."""
        counts = dict(sorted(self._pages.counts.items()))
        status = {"is_healthy": self._pages.is_connected, "type": "KvasirL2", "url": self._settings.url, "counts": counts}
        return status | {"mismatches": list(self._pages.mismatches.values())}

    def close(self) -> None:
        """Wait for operations in flight, and stop."""
        self._pages.close()
        for notifier in (self._stored, self._found, self._loaded):
            notifier.close()

    def _next_task(self) -> int:
        with self._lock:
            self._tasks += 1
            return self._tasks

    def _pages_of(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> list[Page]:
        for key, object in zip(keys, objects, strict=True):
            meta = object.metadata
            self._sizes[_group_of(key)] = object.get_size()
            self._remember(key, meta.shapes or [meta.shape], meta.dtypes or [meta.dtype])
        return [[(object.data_ptr, object.get_size())] for object in objects]

    def _remember(self, key: ObjectKey, shapes: Sequence[Any], dtypes: Sequence[Any]) -> None:
        parts = (f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in zip(shapes, dtypes, strict=True))
        self._layouts[_group_of(key)] = " ".join(parts)

    def _names_of(self, keys: Sequence[ObjectKey]) -> list[str]:
        """Names in the service: the identity, and the hash of the chunk's tokens and of all previous ones."""
        names = []
        for (group, salt), row in groupby(keys, _row_of):
            _, rank, _, local_rank = _ranks_of(group)
            names += self._pages.names(self._identity_of(group), (rank, local_rank), [key.chunk_hash.hex() for key in row], salt)
        return names

    def _identity_of(self, group: _Group) -> Identity:
        model, _, object_group = group
        ranks, _, local_ranks, _ = _ranks_of(group)
        fields = (
            ("model", model),
            ("revision", self._settings.revision),
            ("layout", self._layouts.get(group, "")),
            ("ranks", ranks),
            ("ranks of a host", local_ranks),
            ("encoding", "as they are" if self._settings.quality is None else "encoded"),
        )
        return Identity("lmcache", (object_group,), fields)


def _observe(of_bytes: bool) -> list[Observation]:
    # Of copies: adapters add to their own meanwhile, and a sum takes steps.
    counts = sum((Counter(adapter._pages.counts) for adapter in list(_adapters)), Counter())
    return [Observation(count, {"result": name}) for name, count in counts.items() if is_of_bytes(name) == of_bytes]


_meter = get_meter("kvasir")
_meter.create_observable_counter("kvasir_pages", [lambda _: _observe(of_bytes=False)], description=PAGES_TEXT)
_meter.create_observable_counter("kvasir_page_bytes", [lambda _: _observe(of_bytes=True)], description=BYTES_TEXT)


def _group_of(key: ObjectKey) -> _Group:
    return key.model_name, key.kv_rank, key.object_group_id


def _ranks_of(group: _Group) -> tuple[int, int, int, int]:
    """Return the number of ranks, this rank, the number of ranks on its host, and its number among them, as LMCache packs them."""
    kv_rank = group[1]
    return kv_rank >> 24, kv_rank >> 16 & 0xFF, kv_rank >> 8 & 0xFF, kv_rank & 0xFF


def _layouts_of(keys: Sequence[ObjectKey], objects: Sequence[MemoryObj]) -> list[PageLayout | None]:
    return [_layout(key, each.metadata) for key, each in zip(keys, objects, strict=True)]


def _layout(key: ObjectKey, meta: Any) -> PageLayout | None:
    """Return the layout of an object if it can be encoded: keys and values of all layers, of one type."""
    shapes, dtypes = meta.shapes or [meta.shape], meta.dtypes or [meta.dtype]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][0] != 2 or dtypes[0] not in _DTYPES:
        return None
    _, layers, tokens, width = shapes[0]
    # The boundaries of heads are unknown: treat a row of all heads as one.
    return PageLayout(key.model_name, str(dtypes[0]), (layers, tokens, 1, width), "2LNHD")


def _row_of(key: ObjectKey) -> tuple[_Group, str]:
    return _group_of(key), key.cache_salt


def _bitmap(bits: Iterable[bool], count: int) -> Bitmap:
    bitmap = Bitmap(count)
    for index, bit in enumerate(bits):
        if bit:
            bitmap.set(index)
    return bitmap


def _chosen(values: list[Any], which: list[bool]) -> list[Any]:
    return [value for value, is_chosen in zip(values, which, strict=True) if is_chosen]
