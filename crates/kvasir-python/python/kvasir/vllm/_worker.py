"""The connector in a worker: moves keys and values between vLLM's blocks and the service, aside."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

from vllm.logger import init_logger

from ..errors import InputError, KvasirError
from ._layout import Blocks, Rows
from ._lossy import LossyPrefixes
from ._metrics import Collector
from ._notices import Notices
from ._plan import LoadPlan, SavePlan, StepPlan, WorkerReport
from ._service import Service, service_of
from ._settings import Settings

logger = init_logger(__name__)

_LOADS_AT_ONCE = 16
# Longest that a save waits for the service's answer to its lookup.
_SAVE_LOOKUP_S = 5.0
# Longest that the end of the process waits for saves.
_CLOSE_S = 10.0


@dataclass
class _Load:
    """A load under way. Whoever takes it out of the table of loads decides what becomes of the request."""

    plan: LoadPlan
    begun_at: float
    due_at: float


@dataclass
class _Copy:
    """Rows that are to be stored."""

    plan: SavePlan
    rows: Rows
    bytes: int


class Worker:
    """Moves, and holds no step up for the service."""

    def __init__(self, settings: Settings, vllm_config: Any, kv_cache_config: Any) -> None:
        self._settings = settings
        self._configs = vllm_config, kv_cache_config
        self._blocks: Blocks | None = None
        self._service: Service | None = None
        self._lock = threading.Lock()
        self._loads: dict[str, _Load] = {}
        self._received: set[str] = set()
        self._sent: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._report = WorkerReport()
        self.metrics = Collector()
        self._notices = Notices(logger.warning)
        self._pool = ThreadPoolExecutor(_LOADS_AT_ONCE, "kvasir-load")
        self._copies: Queue[_Copy | None] = Queue()
        self._lossy = LossyPrefixes()
        self._queued_bytes = 0
        self._saver = threading.Thread(target=self._store_all, name="kvasir-save", daemon=True)

    def register(self, caches: dict[str, Any]) -> None:
        """Learn where vLLM's blocks are."""
        try:
            self._blocks = Blocks(*self._configs, caches)
            self._service = service_of(self._settings, self._configs[0])
            self._saver.start()
        except InputError as error:
            logger.error("vLLM runs without Kvasir: %s", error)
            self._report.unusable = error.message

    def load(self, plan: StepPlan) -> None:
        """Begin the loads of a step."""
        now = time.monotonic()
        for load in plan.loads:
            due_at = now + load.budget_s
            with self._lock:
                self._loads[load.request_id] = _Load(load, now, due_at)
            self._pool.submit(self._load_one, load, due_at)

    def _load_one(self, plan: LoadPlan, due_at: float) -> None:
        """Load into memory of our own, and write vLLM's blocks only where nobody has given the load up."""
        rows, usable = None, plan.start
        try:
            rows, usable = self._fetched(plan, due_at)
        except KvasirError as error:
            self._notices.say("load", "the load of request %s failed, and vLLM computes it: %s", plan.request_id, error)
        except Exception:
            logger.exception("the load of request %s failed, and vLLM computes it", plan.request_id)
        with self._lock:
            load = self._loads.pop(plan.request_id, None)
            if load is None:
                return
            count = 0
            if rows is not None and self._blocks is not None:
                count = (usable - plan.start) // self._blocks.block_tokens
                self._blocks.scatter(rows, plan.blocks[:count], plan.start)
                self.metrics.count("load_tokens", count * self._blocks.block_tokens)
            self._over(plan, count)
        self.metrics.count("loads:whole" if count == len(plan.blocks) else "loads:partial" if count else "loads:failed")
        self.metrics.took("load_seconds", time.monotonic() - load.begun_at)

    def _fetched(self, plan: LoadPlan, due_at: float) -> tuple[Rows | None, int]:
        """Rows from token 0 on, of which those that vLLM has are empty, and up to where whole blocks of them can be used."""
        if self._service is None or self._blocks is None:
            return None, plan.start
        session = self._service.session(plan.prompt, max(due_at - time.monotonic(), 0.001))
        if session.matched <= plan.start:
            return None, plan.start
        rows = self._blocks.empty(session.matched)
        loaded = session.load(rows, deadline=max(due_at - time.monotonic(), 0.001), present=plan.start)
        self.metrics.count("load_bytes", loaded.bytes)
        self._lossy.note(plan.prompt, loaded.losses)
        end = min(loaded.prefix_tokens, plan.end)
        return rows, max(end - end % self._blocks.block_tokens, plan.start)

    def _over(self, plan: LoadPlan, count: int) -> None:
        """Say that a load is over, and that it filled the first ``count`` blocks. Under the lock."""
        self._received.add(plan.request_id)
        if count < len(plan.blocks):
            self._failed_blocks.update(plan.blocks[count:])
            self._report.failed.add(plan.request_id)

    def save(self, plan: StepPlan) -> None:
        """Copy what a step's plan saves. vLLM may use the blocks again when this returns."""
        for save in plan.saves:
            if save.releases:
                self._sent.add(save.request_id)
            if self._service is None or self._blocks is None or not self._service.is_connected:
                continue
            end = len(save.prompt.tokens)
            size = self._blocks.bytes_of(end - save.first)
            with self._lock:
                if self._queued_bytes + size > self._settings.save_queue_mb << 20:
                    self.metrics.count("saves:dropped")
                    self._notices.say("queue", "a save was dropped: %d MiB wait to be stored", self._queued_bytes >> 20)
                    continue
                self._queued_bytes += size
            self._copies.put(_Copy(save, self._blocks.gather(save.blocks, save.first, end), size))

    def _store_all(self) -> None:
        """Store copies, one after the other: those of one request build on each other."""
        while (copy := self._copies.get()) is not None:
            result, begun = "failed", time.monotonic()
            try:
                result = self._store(copy)
            except KvasirError as error:
                self._notices.say("save", "a save failed: %s", error)
            except Exception:
                logger.exception("a save failed")
            self.metrics.count(f"saves:{result}")
            self.metrics.took("save_seconds", time.monotonic() - begun)
            with self._lock:
                self._queued_bytes -= copy.bytes
            del copy

    def _store(self, copy: _Copy) -> str:
        """Give what came of a save, as in `COUNTERS`."""
        assert self._service is not None
        prompt, chunk_tokens = copy.plan.prompt, self._settings.chunk_tokens
        session = self._service.session(prompt, _SAVE_LOOKUP_S)
        if session.matched // chunk_tokens * chunk_tokens < copy.plan.first:
            # Rows before the first one were not copied.
            return "orphaned"
        # Of this request's load, or of another one's whose blocks vLLM had.
        if (loss := self._lossy.beneath(prompt)) is not None:
            session.reused(loss)
        saved = session.save(copy.rows)
        self.metrics.count("save_bytes", saved.bytes)
        outcomes = {chunk.outcome for chunk in saved.chunks}
        if "too_lossy" in outcomes:
            return "lossy"
        with self._lock:
            self._report.stored.add(copy.plan.number)
        return "stored" if "stored" in outcomes else "present"

    def finished(self, now: float) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose blocks were copied, and requests whose loads are over. Gives up loads that are late."""
        with self._lock:
            for load in [load for load in self._loads.values() if load.due_at < now]:
                del self._loads[load.plan.request_id]
                self.metrics.count("loads:late")
                self.metrics.took("load_seconds", now - load.begun_at)
                self._notices.say("late", "the load of request %s is late, and vLLM computes it", load.plan.request_id)
                self._over(load.plan, 0)
            received, self._received = self._received, set()
        sent, self._sent = self._sent, set()
        return sent or None, received or None

    def take_failed_blocks(self) -> set[int]:
        """Blocks that loads left as they were."""
        with self._lock:
            failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> WorkerReport | None:
        """What the scheduler has to know."""
        with self._lock:
            report, self._report = self._report, WorkerReport()
        return report if report.failed or report.stored or report.unusable else None

    def close(self) -> None:
        """Send what was copied, for a while, and end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._saver.is_alive():
            self._copies.put(None)
            self._saver.join(_CLOSE_S)
            try:
                while True:
                    self._copies.get_nowait()
            except Empty:
                pass
        if self._service is not None:
            self._service.close()
