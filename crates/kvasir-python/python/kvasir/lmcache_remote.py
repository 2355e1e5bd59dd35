"""Kvasir as remote storage of LMCache in its in-process mode. The guide is ``docs/lmcache.md``.

Configured by ``remote_storage_plugins: ["kvasir"]``, with the module's and the class's name and the address in ``extra_config``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey
from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from ._identities import Identity
from ._pages import Page, PageLayout, PageStore, Settings
from ._settings import read_settings, refuse
from .errors import InputError

__all__ = ["KvasirAdapter"]

logger = init_logger(__name__)

_OF_LMCACHE = ("module_path", "class_name")
# Types of chunks that can be encoded.
_DTYPES = ("torch.bfloat16", "torch.float16", "torch.float32")


class KvasirAdapter(ConnectorAdapter):
    """LMCache's adapter for ``plugin://kvasir``; several instances are named ``kvasir.NAME``."""

    def __init__(self) -> None:
        super().__init__("plugin://kvasir")

    def create_connector(self, context: ConnectorContext) -> RemoteConnector:
        """Build a connector from the settings in ``extra_config``.

        Raises
        ------
        IrrecoverableException
            For invalid settings: LMCache retries after any other exception.
        """
        try:
            return _Connector(context)
        except InputError as error:
            raise IrrecoverableException(str(error)) from error


class _Connector(RemoteConnector):
    """Stores whole chunks in batches. Partial chunks are not stored."""

    def __init__(self, context: ConnectorContext) -> None:
        super().__init__(context.config, context.metadata)
        where = f"remote_storage_plugin.{context.plugin_name}."
        given = {name.removeprefix(where): value for name, value in context.config.extra_config.items() if name.startswith(where)}
        if context.config.use_layerwise:
            refuse("use_layerwise", "single layers are not supported", "set it to false, or use LMCache's multi-process mode")
        self._settings = read_settings(Settings, {k: v for k, v in given.items() if k not in _OF_LMCACHE}, where)
        self._metadata, self._memory = context.metadata, context.local_cpu_backend
        self._pages = PageStore(self._settings, logger)

    async def exists(self, key: CacheEngineKey) -> bool:
        """Whether a chunk is stored."""
        return await self.batched_async_contains("", [key]) == 1

    def exists_sync(self, key: CacheEngineKey) -> bool:
        """Whether a chunk is stored."""
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        """Return True."""
        return True

    def batched_contains(self, keys: list[CacheEngineKey]) -> int:
        """Count the leading chunks that are stored."""
        return _leading(self._pages.find([self._names_of(keys)]).result()[0])

    async def batched_async_contains(self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False) -> int:
        """Count the leading chunks that are stored. Nothing is pinned: a chunk removed before its load becomes a miss."""
        [found] = await asyncio.wrap_future(self._pages.find([self._names_of(keys)]))
        return _leading(found)

    async def get(self, key: CacheEngineKey) -> MemoryObj | None:
        """Load a chunk."""
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        """Return True."""
        return True

    async def batched_get(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        """Load chunks into LMCache's memory: as many as it has room for."""
        shapes, dtypes = self._metadata.get_shapes(), self._metadata.get_dtypes()
        # Unless told not to, LMCache sleeps until memory is free, on its loop: transfers there, which hold memory, would never end.
        allocated = (self._memory.allocate(shapes, dtypes, self.meta_fmt, busy_loop=False) for _ in keys)
        objects = list(takewhile(lambda object: object is not None, allocated))
        loading = self._pages.load(self._names_of(keys[: len(objects)]), _pages_of(objects), self._layout())
        try:
            loaded = await asyncio.shield(asyncio.wrap_future(loading))
        except asyncio.CancelledError:
            # LMCache no longer waits, but the load writes to its memory until it ends.
            loading.add_done_callback(lambda _: [object.ref_count_down() for object in objects])
            raise
        for object, is_loaded in zip(objects, loaded, strict=True):
            if not is_loaded:
                object.ref_count_down()
        came = [object if is_loaded else None for object, is_loaded in zip(objects, loaded, strict=True)]
        return came + [None] * (len(keys) - len(came))

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[CacheEngineKey]) -> list[MemoryObj]:
        """Load the leading chunks, up to the first that fails."""
        objects = await self.batched_get(keys)
        leading = list(takewhile(lambda object: object is not None, objects))
        for object in objects[len(leading) :]:
            if object is not None:
                object.ref_count_down()
        return leading

    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        """Store a chunk."""
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        """Return True."""
        return True

    async def batched_put(self, keys: list[CacheEngineKey], memory_objs: list[MemoryObj]) -> None:
        """Store chunks, and wait until they are durable."""
        pairs = zip(keys, memory_objs, strict=True)
        whole = [(key, object) for key, object in pairs if object.get_size() == self.full_chunk_size_bytes]
        objects = [object for _, object in whole]
        storing = self._pages.store(self._names_of([key for key, _ in whole]), _pages_of(objects), self._layout())
        try:
            await asyncio.shield(asyncio.wrap_future(storing))
        except asyncio.CancelledError:
            # LMCache no longer waits, but the store reads its memory until it ends.
            for object in objects:
                object.ref_count_up()
            storing.add_done_callback(lambda _: [object.ref_count_down() for object in objects])
            raise

    def remove_sync(self, key: CacheEngineKey) -> bool:
        """Remove a chunk."""
        return self._pages.delete(self._names_of([key])).result()[0]

    async def list(self) -> Sequence[str]:
        """Return nothing: the service does not list keys."""
        return []

    async def close(self) -> None:
        """Wait for operations in flight, and stop."""
        await asyncio.to_thread(self._pages.close)

    def _layout(self) -> PageLayout | None:
        """Return the layout of whole chunks, if they can be encoded: keys and values of all layers, of one type."""
        metadata = self._metadata
        if self._settings.quality is None:
            return None
        layers, planes, tokens, heads, width = metadata.kv_shape
        [shape, *others], dtype = metadata.get_shapes(), str(metadata.get_dtypes()[0])
        if others or planes != 2 or tuple(shape) != (planes, layers, tokens, heads * width) or dtype not in _DTYPES:
            return None
        return PageLayout(metadata.model_name, dtype, (layers, tokens, heads, width), "2LNHD")

    def _names_of(self, keys: Sequence[CacheEngineKey]) -> Sequence[str]:
        names = []
        for key in keys:
            fields = (
                ("model", key.model_name),
                ("revision", self._settings.revision),
                ("dtype", str(key.dtype)),
                ("chunk_size", self._metadata.chunk_size),
                ("world_size", key.world_size),
                # Ranks that divide heads and ranks that divide layers may have chunks of equal sizes. The shape of the
                # configuration, not of the groups of layers: a scheduler, which only looks up, has none of these.
                ("kv_shape", str(tuple(self._metadata.kv_shape))),
                ("encoding", "as they are" if self._settings.quality is None else "encoded"),
            )
            # Chunks with other tags never match, like those with other salts.
            salt = json.dumps(key.tags) if key.tags else ""
            names += self._pages.names(Identity("lmcache-in-process", (), fields), (key.worker_id,), [key.chunk_hash_hex], salt)
        return names


def _pages_of(objects: Sequence[Any]) -> list[Page]:
    return [[(object.data_ptr, object.get_size())] for object in objects]


def _leading(found: Sequence[bool]) -> int:
    return sum(1 for _ in takewhile(bool, found))
