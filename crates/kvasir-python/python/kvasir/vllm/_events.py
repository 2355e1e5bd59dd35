"""Events of vLLM's stream: prompts whose blocks are in the store, so that routers send a request to an engine that reads it."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockStored
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, maybe_convert_block_hash, to_event_extra_keys

# Saves whose end no worker has told yet; the oldest are forgotten.
_WAITING_MAX = 10_000


class StoredEvents:
    """Events of saves, given when the workers report that they are durable.

    What the service removes is not told: a block that an event names may be gone.
    """

    def __init__(self, vllm_config: Any) -> None:
        events = vllm_config.kv_events_config
        self._is_wanted = events is not None and events.enable_kv_cache_events
        self._waiting: dict[int, BlockStored] = {}
        self._ready: list[BlockStored] = []

    def begin(self, number: int, request: Any, first: int, end: int, size: int) -> None:
        """A save of tokens ``first`` to ``end`` is planned, in blocks of ``size``. Whole ones have hashes."""
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
        """These saves are durable."""
        self._ready += [self._waiting.pop(number) for number in sorted(numbers) if number in self._waiting]

    def take(self) -> list[BlockStored]:
        """Give the events since the last call."""
        ready, self._ready = self._ready, []
        return ready
