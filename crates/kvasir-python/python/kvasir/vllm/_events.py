"""Events for vLLM's stream: blocks that are in the store, so that routers can send requests to an engine that loads them."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockStored
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, maybe_convert_block_hash, to_event_extra_keys

# Saves that no worker has reported yet; the oldest are dropped.
_WAITING_MAX = 10_000


class StoredEvents:
    """Events of saves, emitted once the workers report them as durable.

    Removals by the service are not reported: a block in an event may be gone.
    """

    def __init__(self, vllm_config: Any) -> None:
        events = vllm_config.kv_events_config
        self._is_wanted = events is not None and events.enable_kv_cache_events
        self._waiting: dict[int, BlockStored] = {}
        self._ready: list[BlockStored] = []

    def begin(self, number: int, request: Any, first: int, end: int, size: int) -> None:
        """Record a planned save of tokens ``first`` to ``end``, in blocks of ``size``. Only whole blocks have hashes."""
        begin, end = first // size, end // size
        hashes = [maybe_convert_block_hash(key) for key in request.block_hashes[:end]] if self._is_wanted else []
        if not hashes[begin:]:
            return
        extra, at = [], 0
        for block in range(end):
            keys, at = generate_block_hash_extra_keys(request, block * size, (block + 1) * size, at)
            extra.append(keys)
        lora = request.lora_request
        self._waiting[number] = BlockStored(
            block_hashes=hashes[begin:],
            parent_block_hash=hashes[begin - 1] if begin else None,
            token_ids=list(request.all_token_ids[begin * size : end * size]),
            block_size=size,
            lora_id=lora.adapter_id if lora else None,
            medium=MEDIUM_STORAGE,
            lora_name=lora.name if lora else None,
            extra_keys=to_event_extra_keys(extra[begin:]),
            group_idx=0,
        )
        if len(self._waiting) > _WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]

    def stored(self, numbers: set[int]) -> None:
        """Record that these saves are durable."""
        self._ready += [self._waiting.pop(number) for number in sorted(numbers) if number in self._waiting]

    def take(self) -> list[BlockStored]:
        """Return the events since the last call."""
        ready, self._ready = self._ready, []
        return ready
