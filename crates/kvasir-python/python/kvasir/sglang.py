"""Kvasir as the storage (L3) of SGLang's HiCache, by its dynamic back end. The guide is ``docs/sglang.md``.

Configured by ``--hicache-storage-backend dynamic`` and ``--hicache-storage-backend-extra-config '{"backend_name": "kvasir",
"module_path": "kvasir.sglang", "class_name": "KvasirHiCache", "interface_v1": 1, "kvasir": {"url": "http://HOST:7480"}}'``.
"""

from __future__ import annotations

import functools
import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from ._identities import Identity
from ._pages import BYTES_TEXT, PAGES_TEXT, PRESENT, STORED, Page, PageLayout, PageStore, Settings, is_of_bytes, size_of
from ._settings import read_settings, refuse

__all__ = ["KvasirHiCache"]

logger = logging.getLogger(__name__)

# Types of pages that can be encoded.
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_WHERE = "hicache-storage-backend-extra-config, kvasir"
# Properties of a pool that determine the bytes of its pages.
_LAYOUT = ("layout", "dtype", "page_size", "layer_num", "head_num", "head_dim")
# SGLang keeps numbers of 8 and 4 bits in pools of this type, whichever of their types they are.
_BITS = "torch.uint8"
# Axes of a page by the pool's layout: K and V are its two parts. Pages of other layouts are stored unchanged.
_ORDERS = {"page_first": "2NLHD", "page_first_direct": "2LNHD"}
# Pools whose pages differ between ranks, even if all ranks have the same latent KV.
_OF_RANKS = (PoolName.MAMBA,)


class KvasirHiCache(HiCacheStorage):
    """A storage whose pages are objects in the service. SGLang calls it from its own threads, which wait up to the deadlines.

    Parameters
    ----------
    config : HiCacheStorageConfig
        SGLang's configuration; the key ``kvasir`` of `extra_config` has the fields of `kvasir._pages.Settings`.
    kwargs : mapping
        Unused.

    Raises
    ------
    InputError
        ``invalid_setting`` for an unknown key or invalid value.
    """

    def __init__(self, config: HiCacheStorageConfig, kwargs: Mapping[str, Any]) -> None:
        given = (config.extra_config or {}).get("kvasir")
        if not isinstance(given, Mapping):
            refuse(_WHERE, "it is missing", 'give {"url": "http://HOST:7480"}, the address of `kvasir serve`')
        self._settings = read_settings(Settings, given, _WHERE)
        self._config = config
        self.registered_pools: dict[str, Any] = {}
        self._pages = PageStore(self._settings, logger)

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Register the pool of the KV pages."""
        self.mem_pool_host = mem_pool_host
        self.registered_pools.setdefault(PoolName.KV, mem_pool_host)

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """Count the leading pages that are stored."""
        return _leading(self._find(PoolName.KV, keys, gaps=False))

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Load pages into SGLang's pool."""
        return self._get(PoolName.KV, keys, host_indices)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Store pages of SGLang's pool."""
        return self._set(PoolName.KV, keys, host_indices)

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Find the lengths of the prefix for which every pool has the pages that its policy requires."""
        count = self.batch_exists(keys, extra_info)
        hits: dict[str, int] = {PoolName.KV: count} if count else {}
        lengths = list(range(1, count + 1))
        for transfer in pool_transfers or []:
            if not lengths:
                break
            there = self._find(transfer.name, keys[:count], gaps=transfer.hit_policy != PoolHitPolicy.ALL_PAGES)
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                fit = set(range(1, _leading(there) + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                window = max(1, len(transfer.keys or ()))
                fit = {length for length in lengths if all(there[max(0, length - window) : length])}
            else:
                # A second form of the KV pages, which is optional for SGLang.
                continue
            if fit:
                hits[transfer.name] = max(fit)
            lengths = [length for length in lengths if length in fit]
        return PoolTransferResult(max(lengths, default=0), hits, lengths)

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Load pages into several pools."""
        return self._each(transfers, self._get)

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Store pages of several pools."""
        return self._each(transfers, self._set)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """Load a page into a tensor."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[torch.Tensor | None]:
        """Load pages into tensors."""
        loaded = self._pages.load(self._names_of(PoolName.KV, keys), [_page_of(tensor) for tensor in target_locations]).result()
        return [tensor if is_loaded else None for tensor, is_loaded in zip(target_locations, loaded, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store a tensor as a page."""
        return self.batch_set([key], [value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Store tensors as pages."""
        tensors = [value.contiguous() for value in values]
        return all(self._store(PoolName.KV, keys, [_page_of(tensor) for tensor in tensors]))

    def exists(self, key: str) -> bool:
        """Whether a page is stored."""
        return self.batch_exists([key]) == 1

    def clear(self) -> None:
        """Do nothing: other engines use the pages. Unused ones expire by the service's time to live and capacity."""
        logger.warning("pages in Kvasir are kept: remove the namespace's objects at the service, or use another namespace")

    def get_stats(self) -> None:
        """Add the counts since the last call to the process's metrics. SGLang calls it if its metrics are enabled."""
        pages, in_bytes = _counters()
        config = self._config
        for name, count in self._pages.take_counts().items():
            counter = in_bytes if is_of_bytes(name) else pages
            counter.labels(config.model_name or "", config.tp_rank, config.pp_rank, name).inc(count)

    def close(self) -> None:
        """Wait for operations in flight, and stop."""
        self._pages.close()

    def _get(self, pool: str, keys: list[str], host_indices: torch.Tensor | None) -> list[bool]:
        pages = self._pages_of(pool, len(keys), host_indices)
        if pages is None:
            return [False] * len(keys)
        return self._pages.load(self._names_of(pool, keys), pages, self._layout_of(pool, pages)).result()

    def _set(self, pool: str, keys: list[str], host_indices: torch.Tensor | None) -> list[bool]:
        pages = self._pages_of(pool, len(keys), host_indices)
        if pages is None:
            return [False] * len(keys)
        return self._store(pool, keys, pages, self._layout_of(pool, pages))

    def _store(self, pool: str, keys: list[str], pages: Sequence[Page], layout: PageLayout | None = None) -> list[bool]:
        if not self._config.is_storage_writer and pool not in _OF_RANKS:
            # Another rank stores the same bytes.
            return [True] * len(keys)
        outcomes = self._pages.store(self._names_of(pool, keys), pages, layout).result()
        return [outcome in (STORED, PRESENT) for outcome in outcomes]

    def _find(self, pool: str, keys: list[str], gaps: bool) -> list[bool]:
        [found] = self._pages.find([self._names_of(pool, keys)], gaps).result()
        return found

    def _each(
        self, transfers: list[PoolTransfer], work: Callable[[str, list[str], torch.Tensor | None], list[bool]]
    ) -> dict[str, list[bool]]:
        return {transfer.name: work(transfer.name, transfer.keys or [], transfer.host_indices) for transfer in transfers}

    def _pages_of(self, pool: str, count: int, host_indices: torch.Tensor | None) -> list[Page] | None:
        """Return the parts of each page, K and V or more, at the pool's addresses."""
        host_pool = self.registered_pools[pool]
        page_size = getattr(host_pool, "page_size", 1) or 1
        if host_indices is None or host_indices.numel() != count * page_size:
            given = 0 if host_indices is None else host_indices.numel()
            logger.error("unexpected: pool %s has %d indices for %d pages of %d; please report it", pool, given, count, page_size)
            return None
        # None of a pool that only counts pages, whose bytes are in others (DeepSeek V4's): its pages are stored as empty ones.
        addresses, sizes = host_pool.get_page_buffer_meta(host_indices) or ((), ())
        parts = list(zip(addresses, sizes, strict=True))
        each = len(parts) // count if count else 0
        return [parts[place * each : (place + 1) * each] for place in range(count)]

    def _layout_of(self, pool: str, pages: Sequence[Page]) -> PageLayout | None:
        """Return the layout of a pool's pages, if it can be encoded."""
        host_pool = self.registered_pools[pool]
        order = _ORDERS.get(str(getattr(host_pool, "layout", "")))
        # Pools of latents and of states have no heads.
        if order is None or host_pool.dtype not in _DTYPES or not hasattr(host_pool, "head_num"):
            return None
        shape = (host_pool.layer_num, host_pool.page_size, host_pool.head_num, host_pool.head_dim)
        # Of some models, a head's value has another width than its key.
        size = 2 * math.prod(shape) * host_pool.dtype.itemsize
        if any(len(page) != 2 or size_of(page) != size for page in pages):
            return None
        return PageLayout(self._config.model_name or "", str(host_pool.dtype), shape, order)

    def _names_of(self, pool: str, keys: Sequence[str]) -> list[str]:
        """Names in the service: the identity, and SGLang's hash of the page and all previous ones."""
        config, host_pool = self._config, self.registered_pools.get(pool)
        rank = [config.attn_cp_rank, config.dcp_rank]
        fields: dict[str, str | int] = {"model": config.model_name or "", "revision": self._settings.revision}
        fields |= {name: str(getattr(host_pool, name, "")) for name in _LAYOUT}
        if fields["dtype"] == _BITS:
            fields["kv_dtype"] = _kv_dtype_of(host_pool)
        fields["encoding"] = "as they are" if self._settings.quality is None else "encoded"
        fields |= {"pp_size": config.pp_size, "attn_cp_size": config.attn_cp_size, "dcp_size": config.dcp_size}
        if config.pp_size > 1:
            # Stages of two divisions of the layers may have equal numbers of them.
            fields["start_layer"] = str(getattr(host_pool, "start_layer", ""))
        temporal_dtype = getattr(host_pool, "temporal_dtype", None)
        if temporal_dtype is not None:
            # A page of states has numbers of two types; this one is a setting.
            fields["temporal_dtype"] = str(temporal_dtype)
        if fields["layout"] == "page_unified":
            # The number of head groups changes the order of a page's bytes, but not their number.
            fields["head_group_num"] = str(getattr(host_pool, "head_group_num", ""))
        if not config.is_mla_model or pool in _OF_RANKS:
            rank.append(config.tp_rank)
            fields["tp_size"] = config.tp_size
        elif config.dcp_size > 1:
            fields["tp_size"] = config.tp_size
        return self._pages.names(Identity("sglang", (str(pool), config.pp_rank), tuple(fields.items())), rank, keys)


def _kv_dtype_of(host_pool: Any) -> str:
    """Return the type of the numbers in a pool of bits."""
    # Of the pools of keys and values, none has it in 0.5.23.
    dtype = getattr(getattr(host_pool, "device_pool", None), "dtype", None)
    return _configured_kv_dtype() if dtype is None else str(dtype)


@functools.cache
def _configured_kv_dtype() -> str:
    """Return the type of this process's keys and values, as SGLang itself derives it from its settings."""
    try:
        from sglang.srt.mem_cache.kv_cache_dtype import configure_kv_cache_dtype
        from sglang.srt.runtime_context import get_model

        name = get_model().kv_cache_dtype
        # By one name, GPUs have different types. With "auto" the model decides: of those of 8 bits, only for this one.
        _, dtype = configure_kv_cache_dtype(
            server_args_kv_cache_dtype="fp8_e4m3" if name == "auto" else name,
            model=None,
            model_dtype=torch.bfloat16,
            is_draft_worker=False,
            is_dflash=False,
            speculative_draft_attention_backend="",
        )
    except Exception:
        logger.exception("unexpected: SGLang's type of cache is unknown, no other process loads its pages; report it")
        return f"unknown, of process {secrets.token_hex(8)}"
    return f"{name}, {dtype}"


@functools.cache
def _counters() -> tuple[Any, Any]:
    """Metrics of this process, created once SGLang has set the directory of its processes' metrics."""
    from prometheus_client import Counter

    labels = ("model_name", "tp_rank", "pp_rank", "result")
    return Counter("sglang:kvasir_pages", PAGES_TEXT, labels), Counter("sglang:kvasir_page_bytes", BYTES_TEXT, labels)


def _page_of(tensor: torch.Tensor) -> Page:
    return [(tensor.data_ptr(), tensor.nbytes)]


def _leading(there: Sequence[bool]) -> int:
    return sum(1 for _ in takewhile(bool, there))
