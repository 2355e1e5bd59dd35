"""Kvasir as a secondary tier of vLLM's multi-tier offloading (`TieringOffloadingSpec`). The guide is in ``docs/vllm.md``.

Configured among ``secondary_tiers``: ``{"type": "KvasirTier", "module_path": "kvasir.vllm_tier", "url": "http://HOST:7480"}``.
vLLM copies between its GPU and its memory, so this runs wherever vLLM's offloading does.
"""

from __future__ import annotations

import ctypes
import json
import math
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from itertools import chain
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.config import OffloadingModelConfig
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from ._identities import Identity
from ._pages import BYTES_TEXT, PAGES_TEXT, PRESENT, STORED, Page, PageLayout, PageStore, Settings, is_of_bytes
from ._settings import read_settings, refuse

__all__ = ["KvasirTier"]

logger = init_logger(__name__)

_PAGES = "vllm:kvasir_pages"
_BYTES = "vllm:kvasir_page_bytes"
# Bytes of a number of the types whose chunks can be packed.
_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# Most elements that a row of a layout may have.
_ROW_MAX = 65_536


class _Job(NamedTuple):
    """A running transfer. A load's future holds the loaded chunks, a store's future the outcome of each chunk."""

    transfer: TransferJob
    future: Future[list[bool]] | Future[list[str]]
    begun: float


class _Lookups(AsyncLookupManager):
    """vLLM's thread for lookups: a step's keys are sent in one batch per request."""

    def __init__(self, tier: KvasirTier) -> None:
        super().__init__(tier_type=tier.tier_type)
        self._tier = tier

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> list[bool]:
        """Report whether each key is stored."""
        return self._tier._find(keys, req_context)


class KvasirTier(SecondaryTierManager):
    """A tier whose chunks are objects in the service. Only `drain_jobs` and `shutdown` wait.

    Parameters
    ----------
    offloading_spec, primary_kv_view, tier_type, backpressure_detector
        As passed by vLLM's factory.
    enable_kv_events : bool
        Whether durable chunks are reported in vLLM's stream of KV events.
    locality : str, optional
        ``LOCAL`` or ``REMOTE``, for requests' filters.
    **params
        The fields of `kvasir._pages.Settings`.

    Raises
    ------
    InputError
        ``invalid_setting`` for an unknown key or invalid value.
    """

    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        enable_kv_events: bool = False,
        locality: str | None = None,
        **params: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        settings = read_settings(Settings, params, "secondary_tiers")
        if settings.quality not in (None, "exact"):
            remedy = "give exact, or omit it: vLLM does not tell tiers where a chunk has its heads, keys and values"
            refuse("secondary_tiers", f"quality is {settings.quality!r}", remedy)
        self.locality = None if locality is None else Locality(locality)
        config = offloading_spec.config
        # Properties that make bytes with equal hashes incompatible. As in vLLM's own tiers, but: vLLM counts its direct layout as
        # the same for all numbers of ranks, and a chunk of it has each rank's layers one after the other.
        mapper = FileMapper.from_offloading_spec(
            "",
            offloading_spec,
            blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=config.canonical_layout or config.replicated_layout,
        )
        fields = mapper.get_run_config() | {"revision": settings.revision, "bytes of a chunk": self.block_size_bytes}
        # The order of heads and tokens in a block.
        fields["kv_cache_layout"] = config.kv_cache_layout or ""
        fields["encoding"] = "as they are" if settings.quality is None else "encoded"
        named = ((name, value if isinstance(value, (str, int)) else json.dumps(value)) for name, value in sorted(fields.items()))
        self._identity, self._rank = Identity("vllm", (), tuple(named)), mapper.rank
        self._layout = None if settings.quality is None else _layout_of(config.model, self.block_size_bytes)
        # Keep no view: vLLM unmaps the memory once all tiers are shut down.
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(primary_kv_view))
        self._tells = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[OffloadingEvent] = []
        self._jobs: dict[int, _Job] = {}
        # When each request first asked.
        self._asked: dict[str, float] = {}
        self._pages = PageStore(settings, logger)
        self._lookups = _Lookups(self)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Return ``RETRY`` until the step's batch has completed."""
        found = self._lookups.lookup(key, req_context)
        if found is None:
            self._asked.setdefault(req_context.req_id, time.monotonic())
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Store chunks from vLLM's memory."""
        future = self._pages.store(self._names_of(job_metadata.keys), self._pages_of(job_metadata), self._layout)
        self._jobs[job_metadata.job_id] = _Job(job_metadata, future, time.monotonic())

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Load chunks into vLLM's memory."""
        future = self._pages.load(self._names_of(job_metadata.keys), self._pages_of(job_metadata), self._layout)
        self._jobs[job_metadata.job_id] = _Job(job_metadata, future, time.monotonic())

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the finished jobs; for loads, with the loaded chunks."""
        over = [job for job in self._jobs.values() if job.future.done()]
        for job in over:
            del self._jobs[job.transfer.job_id]
        return [self._result_of(job) for job in over]

    def has_pending_work(self) -> bool:
        """Whether a job is running: its chunks stay pinned until its result is fetched."""
        return bool(self._jobs)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return the chunks stored since the last call."""
        events, self._events = self._events, []
        return events

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Request only new chunks: those that another request offloaded are already stored."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Drop the request's lookup results."""
        self._asked.pop(req_context.req_id, None)
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Send the step's lookups."""
        self._lookups.flush()

    def drain_jobs(self) -> None:
        """Wait for all jobs; each ends by its deadline."""
        self._pages.drain()

    def shutdown(self) -> None:
        """Stop, so that nothing accesses vLLM's memory afterwards."""
        self._lookups.shutdown()
        self._pages.close()

    @classmethod
    def build_metric_definitions(cls, extra_config: Mapping[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Return the names of the counters, in addition to vLLM's own."""
        return {
            _PAGES: OffloadingCounterMetadata(documentation=PAGES_TEXT, labelnames=("result",)),
            _BYTES: OffloadingCounterMetadata(documentation=BYTES_TEXT, labelnames=("result",)),
        }

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return the counts since the last call."""
        stats = OffloadingConnectorStats()
        for name, count in self._pages.take_counts().items():
            stats.increase_counter(_BYTES if is_of_bytes(name) else _PAGES, count, (name,))
        return None if stats.is_empty() else stats

    def _find(self, keys: list[OffloadKey], req_context: ReqContext) -> list[bool]:
        groups: dict[int, list[OffloadKey]] = {}
        for key in keys:
            groups.setdefault(get_offload_group_idx(key), []).append(key)
        # A prefix is requested from its beginning, and chunks after a gap are of no use; a window from its end.
        places = [[req_context.get_offload_key_position(key) or 0 for key in group] for group in groups.values()]
        gaps = any(group != sorted(group) for group in places)
        # vLLM looks up for one request after another: while the service is silent, each would wait for all before it.
        asked_at = self._asked.get(req_context.req_id, -math.inf)
        found = self._pages.find([self._names_of(group) for group in groups.values()], gaps, asked_at).result()
        there = dict(zip(chain.from_iterable(groups.values()), chain.from_iterable(found), strict=True))
        return [there[key] for key in keys]

    def _result_of(self, job: _Job) -> JobResult:
        transfer, outcomes = job.transfer, job.future.result()
        keys = list(transfer.keys)
        there = [outcome in (True, STORED, PRESENT) for outcome in outcomes]
        good = [key for key, is_there in zip(keys, there, strict=True) if is_there]
        result = JobResult(
            job_id=transfer.job_id,
            success=all(there),
            transfer_time=time.monotonic() - job.begun,
            transfer_bytes=len(good) * self.block_size_bytes,
        )
        if transfer.is_promotion and not result.success:
            result.successful_keys = good
            # vLLM would keep looking them up, and hit, forever.
            self._lookups.mark_miss(set(keys) - set(good))
        elif good and self._tells and not transfer.is_promotion:
            self._events.append(OffloadingEvent(keys=good, medium=self.medium, removed=False, locality=self.locality))
        return result

    def _pages_of(self, transfer: TransferJob) -> list[Page]:
        size = self.block_size_bytes
        return [[(self._address + int(chunk) * size, size)] for chunk in transfer.chunk_ids]

    def _names_of(self, keys: Collection[OffloadKey]) -> list[str]:
        """Names in the service: the identity, and vLLM's hash of the tokens with the group's number."""
        return self._pages.names(self._identity, (self._rank,), [key.hex() for key in keys])


def _layout_of(model: OffloadingModelConfig, chunk_bytes: int) -> PageLayout | None:
    """Return a layout that packs chunks bit for bit, or None for types that are not packed.

    Packing depends on the type alone, so any axes of the chunk's size will do. Groups of other types are packed as well, but less.
    """
    item = _ITEM_BYTES.get(model.dtype)
    if item is None:
        return None
    # vLLM's chunks are whole pages of memory, so at least 512 divides this.
    elements = chunk_bytes // (2 * item)
    rows = math.gcd(elements, 1024)
    if elements // rows > _ROW_MAX:
        refuse("secondary_tiers", f"quality is exact, and a chunk has {chunk_bytes} bytes", "give vLLM fewer blocks_per_chunk")
    return PageLayout(model.name, model.dtype, (1, rows, 1, elements // rows), "2LNHD")
