"""SGLang's own controller of its storage: its threads query, prefetch and back up. Plain objects stand in for what needs a GPU."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from host_pool import PAGE, HostPool

# What an answer may take on a busy machine.
ANSWER_S = 45.0
_NAME = "sglang.srt.managers.cache_controller"


def page_hashes(tokens: Sequence[int], prior: str | None = None, page_size: int = PAGE) -> list[str]:
    """A chain, as SGLang's native one, which is compiled on its first use."""
    found = []
    for start in range(0, len(tokens) - page_size + 1, page_size):
        prior = hashlib.sha256(f"{prior} {tokens[start : start + page_size]}".encode()).hexdigest()
        found.append(prior)
    return found


def _stand_ins() -> dict[str, dict[str, Any]]:
    """What the controller takes from modules that need sgl_kernel, and does not use for its storage."""
    ranks = {f"{name}_rank": 0 for name in ("tp", "pp", "attn_tp", "attn_dp", "attn_dcp")}
    sizes = {f"{name}_size": 1 for name in ("tp", "pp", "attn_tp", "attn_dcp")}
    parallel = SimpleNamespace(**ranks, **sizes)
    memory = "sglang.srt.mem_cache"
    return {
        "sglang.srt.distributed.parallel_state": {"create_custom_parallel_group": None},
        "sglang.srt.layers.dp_attention": {"is_dp_attention_enabled": lambda: False},
        "sglang.srt.runtime_context": {"get_parallel": lambda: parallel},
        "sglang.srt.utils": {"get_device_module": lambda: SimpleNamespace(Event=object)},
        f"{memory}.deepseek_v4_memory_pool": {"DeepSeekV4TokenToKVPool": type("DeepSeekV4TokenToKVPool", (), {})},
        f"{memory}.l2_transfer": {"L2Transfer": object, "L2TransferEngine": lambda _: None},
        f"{memory}.memory_pool": {name: type(name, (), {}) for name in ("MLATokenToKVPool", "HybridLinearKVPool")},
        f"{memory}.utils": {"get_storage_hash_str": page_hashes, "get_hash_str": page_hashes},
    }


class Engine:
    """One that has a host pool and the controller; its calls of the storage are recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pool: HostPool, extra_config: dict[str, Any]) -> None:
        for name, members in _stand_ins().items():
            module = ModuleType(name)
            vars(module).update(members)
            monkeypatch.setitem(sys.modules, name, module)
        [package] = importlib.util.find_spec("sglang").submodule_search_locations
        spec = importlib.util.spec_from_file_location(_NAME, f"{package}/srt/managers/cache_controller.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, _NAME, module)
        spec.loader.exec_module(module)
        device = SimpleNamespace(device="cpu", layer_num=pool.layer_num, register_layer_transfer_counter=lambda _: None)
        self.pool, self.calls, self._requests = pool, [], 0
        self._controller = module.HiCacheController(
            SimpleNamespace(get_kvcache=lambda: device),
            pool,
            PAGE,
            None,
            threading.Event(),
            storage_backend="dynamic",
            model_name="org/model",
            storage_backend_extra_config=extra_config,
        )
        for name in ("batch_exists", "batch_get_v1", "batch_set_v1"):
            self._record(name)

    def _record(self, name: str) -> None:
        storage = self._controller.storage_backend
        work = getattr(storage, name)

        def recorded(keys: list[str], *others: Any) -> Any:
            self.calls.append((name, len(keys)))
            return work(keys, *others)

        setattr(storage, name, recorded)

    def prefetch(self, tokens: list[int]) -> int:
        """Load a prompt's stored pages into the pool, from its beginning, and count them."""
        self._requests += 1
        operation = self._controller.prefetch(f"r{self._requests}", tokens, None, [])
        assert self._controller.prefetch_hit_queue.get(timeout=ANSWER_S) is operation
        pages = operation.storage_hit_count // PAGE
        if not pages:
            return 0
        # As SGLang's scheduler does, which allocates them.
        operation.host_indices = self.pool.indices(list(range(pages)))
        self._controller.prefetch_buffer.put(operation)
        completed = 0
        while not (ack := self._controller.ack_prefetch_queue.get(timeout=ANSWER_S)).completed_req:
            completed = ack.completed_tokens // PAGE
        return completed

    def back_up(self, tokens: list[int], first: int) -> int:
        """Store the pages of a prompt from a place on, and count those that were stored."""
        hashes = page_hashes(tokens)
        indices = self.pool.indices(list(range(first, len(hashes))))
        self._controller.write_storage(indices, tokens[first * PAGE :], hashes[first:], hashes[:first])
        return self._controller.ack_backup_queue.get(timeout=ANSWER_S).completed_tokens // PAGE

    def close(self) -> None:
        self._controller.detach_storage_backend()
