"""vLLM's tiering manager, as its scheduler calls it, with a stand-in for the GPU's end of the primary tier."""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

BLOCK_BYTES = 64 << 10
BLOCKS_PER_CHUNK = 2
TOKENS = 16


def make_config(
    tiers: list[dict[str, Any]],
    chunks: int = 8,
    model: str = "org/model",
    dtype: str = "bfloat16",
    tp: int = 1,
    agnostic: bool = False,
    canonical: bool = False,
    layout: str | None = None,
) -> Any:
    """An engine's; `agnostic` is vLLM's word for a cache that it counts as the same for all numbers of ranks."""
    groups = tuple(OffloadingGroupConfig(TOKENS, (f"layer.{group}",), group) for group in range(2))
    return OffloadingConfig(
        groups=groups,
        worker_kv_bytes_per_block=BLOCK_BYTES // tp,
        enable_kv_cache_events=True,
        extra_config={"cpu_bytes_to_use": chunks * BLOCK_BYTES * BLOCKS_PER_CHUNK, "secondary_tiers": tiers},
        engine_id=uuid.uuid4().hex,
        model=OffloadingModelConfig(model, dtype),
        cache=OffloadingCacheConfig(TOKENS, BLOCKS_PER_CHUNK),
        parallel=OffloadingParallelConfig(0, tp, tp, 1, 1, 1, 0, 1, None, agnostic),
        canonical_layout=canonical,
        kv_cache_layout=layout,
    )


def make_keys(count: int, first: int = 0, group: int = 0) -> list[OffloadKey]:
    """Keys of a prompt's chunks."""
    hashes = [hashlib.sha256(f"{index}".encode()).digest() for index in range(first, first + count)]
    return [make_offload_key(each, group) for each in hashes]


class Scheduler:
    """One engine's manager."""

    def __init__(self, url: str, chunks: int = 8, params: dict[str, Any] | None = None, **model: Any) -> None:
        tier = {"type": "KvasirTier", "module_path": "kvasir.vllm_tier", "url": url} | (params or {})
        self.spec = TieringOffloadingSpec(make_config([tier], chunks, **model))
        self.manager = self.spec.get_manager()
        [self.tier] = self.manager.secondary_tiers
        self.view = self.manager.primary_tier.get_kv_memoryview()
        self._requests = 0
        until = time.monotonic() + 30
        while not self.tier._pages.is_connected:
            assert time.monotonic() < until
            time.sleep(0.01)

    def request(self, keys: list[OffloadKey]) -> ReqContext:
        """Begin a request with a prompt of these chunks."""
        self._requests += 1
        context = ReqContext(f"r{self._requests}")
        for place, key in enumerate(keys):
            context.set_offload_key_position(key, (place + 1) * TOKENS * BLOCKS_PER_CHUNK)
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def chunk(self, place: int) -> memoryview:
        """A chunk's bytes in the primary tier."""
        size = self.view.strides[0]
        return self.view.cast("B")[place * size : (place + 1) * size]

    def offload(self, keys: list[OffloadKey], values: list[bytes]) -> ReqContext:
        """Bring chunks from the GPU into the primary tier, from which vLLM gives them to the tier."""
        context = self.request(keys)
        prepared = self.manager.prepare_store(keys, context)
        assert prepared is not None and prepared.keys_to_store == keys
        for place, value in zip(prepared.store_spec.chunk_ids, values, strict=True):
            self.chunk(int(place))[:] = value
        self.manager.complete_store(keys, context)
        return context

    def finish(self, context: ReqContext) -> None:
        self.manager.on_request_finished(context)

    def settle(self, seconds: float = 45.0) -> None:
        """Do steps until no transfer is under way."""
        until = time.monotonic() + seconds
        self.step()
        while self.manager._jobs or self.tier.has_pending_work():
            assert time.monotonic() < until, "a job does not end"
            time.sleep(0.005)
            self.step()

    def look_up(self, keys: list[OffloadKey], context: ReqContext | None = None, seconds: float = 45.0) -> list[bool]:
        """Ask as vLLM's connector does, step by step, until nothing is pending: of each key whether it can be loaded."""
        context = context or self.request(sorted(keys))
        until = time.monotonic() + seconds
        while True:
            found = [self.manager.lookup(key, context) for key in keys]
            self.step()
            if not {LookupResult.RETRY, LookupResult.HIT_PENDING} & set(found):
                return [result is LookupResult.HIT for result in found]
            assert time.monotonic() < until, found
            time.sleep(0.005)

    def load(self, keys: list[OffloadKey]) -> list[bytes]:
        """The bytes that vLLM would copy to the GPU."""
        context = self.request(keys)
        assert all(self.look_up(keys, context))
        places = self.manager.prepare_load(keys, context).chunk_ids
        values = [bytes(self.chunk(int(place))) for place in places]
        self.manager.complete_load(keys, context)
        self.finish(context)
        return values

    def counts(self) -> dict[str, float]:
        return dict(self.tier._pages.counts)

    def close(self) -> None:
        self.manager.shutdown()
