"""The connector in a worker: moves keys and values between vLLM's blocks and the service, in the background."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.logger import init_logger

from .._notices import Notices
from .._session import Session
from ..errors import InputError, KvasirError
from ._layout import BlockRows, Blocks, Rows, Taken
from ._lossy import LossyPrefixes
from ._metrics import Collector
from ._plan import CopyPlan, LoadPlan, SavePlan, StepPlan, WorkerReport
from ._ranks import Gatherer, Part, Ranks, Sender
from ._service import Service, service_of
from ._settings import Settings
from ._windows import CopiedRows

logger = init_logger(__name__)

_LOADS_AT_ONCE = 16
# Headers without rows that wait for the first rank. It does without those beyond: a later one says that they do not come.
_HEADERS_MAX = 1_000
# Time limit of a save's lookup.
_SAVE_LOOKUP_S = 5.0
# Longest wait for saves at the end of the process.
_CLOSE_S = 10.0


@dataclass
class _Load:
    """A running load. The thread that removes it from the table of loads decides the outcome of the request."""

    plan: LoadPlan
    begun_at: float
    due_at: float


@dataclass
class _Copy:
    """Rows to store.

    Rows of layers without a window are still in blocks; layers with a window have rows from token ``windowed_first`` on.
    """

    plan: SavePlan
    rows: BlockRows
    taken: Taken
    windowed_first: int
    bytes: int


class Worker:
    """Moves rows without delaying steps for the service."""

    def __init__(self, settings: Settings, vllm_config: Any, kv_cache_config: Any) -> None:
        self._settings = settings
        self._configs = vllm_config, kv_cache_config
        self._blocks: Blocks | None = None
        self._service: Service | None = None
        self._ranks: Ranks | None = None
        self._sender: Sender | None = None
        self._gatherer: Gatherer | None = None
        self._lock = threading.Lock()
        self._loads: dict[str, _Load] = {}
        self._received: set[str] = set()
        self._sent: set[str] = set()
        self._failed: set[str] = set()
        self._failed_blocks: set[int] = set()
        # For running requests.
        self._copied: dict[str, CopiedRows] = {}
        self._report = WorkerReport()
        self.metrics = Collector()
        self._notices = Notices(logger.warning)
        self._pool = ThreadPoolExecutor(_LOADS_AT_ONCE, "kvasir-load")
        self._copies: Queue[_Copy | Part | None] = Queue()
        self._lossy = LossyPrefixes()
        self._queued_bytes = 0
        self._saver = threading.Thread(target=self._store_all, name="kvasir-save", daemon=True)

    def register(self, caches: dict[str, Any]) -> None:
        """Register vLLM's blocks."""
        try:
            self._blocks = Blocks(*self._configs, caches)
            self._service = service_of(self._settings, self._configs[0])
            if self._blocks.layers != (count := len(self._service.heads)):
                # vLLM numbers the layers of a draft model (EAGLE) after those of the model.
                what = f"the cache has {self._blocks.layers} layers, and the model {count}"
                raise InputError(what, "unknown_layout", "serve without a draft model; vLLM continues without Kvasir")
            self._ranks = Ranks.of(self._configs[0], self._service.heads)
            if not self._ranks.is_first:
                self._sender = Sender(self._ranks)
            elif self._ranks.size > 1:
                self._gatherer = Gatherer(self._ranks)
            self._saver.start()
        except KvasirError as error:
            logger.error("vLLM runs without Kvasir: %s", error)
            self._report.unusable = error.message
        except Exception as error:
            # What no one foresaw, such as another version of vLLM's private functions, must not end vLLM.
            logger.exception("vLLM runs without Kvasir: unexpected error, please report it")
            self._report.unusable = repr(error)

    def load(self, plan: StepPlan) -> None:
        """Start the loads of a step."""
        now = time.monotonic()
        for load in plan.loads:
            begun = _Load(load, now, now + load.budget_s)
            with self._lock:
                self._loads[load.request_id] = begun
            self._pool.submit(self._load_one, begun)

    def _load_one(self, begun: _Load) -> None:
        """Load into private memory, and write vLLM's blocks only if the load has not been given up."""
        plan, due_at = begun.plan, begun.due_at
        with self._lock:
            # It waited for a thread until it was late: `finished` gives it up, and this thread is free for one that is not.
            if self._loads.get(plan.request_id) is not begun or time.monotonic() >= due_at:
                return
        taken, count = None, 0
        try:
            taken, count = self._fetched(plan, due_at)
        except KvasirError as error:
            self._notices.say("load", "the load of request %s failed; vLLM computes it: %s", plan.request_id, error)
        except Exception:
            logger.exception("the load of request %s failed; vLLM computes it", plan.request_id)
        with self._lock:
            if self._loads.get(plan.request_id) is not begun:
                return
            del self._loads[plan.request_id]
            if taken is not None and self._blocks is not None:
                self._blocks.put(taken, tuple(ids[: count // self._blocks.block_tokens] for ids in plan.blocks))
            self._over(plan, count)
        whole = plan.end - plan.start
        result = "whole" if count == whole else "partial" if count else "failed"
        self._count_load(result, time.monotonic() - begun.begun_at, count)

    def _fetched(self, plan: LoadPlan, due_at: float) -> tuple[Taken | None, int]:
        """Return blocks in vLLM's layout, and the number of the load's tokens in them."""
        if self._service is None or self._blocks is None or self._ranks is None:
            return None, 0
        session = plan.session or self._service.session(plan.prompt, max(due_at - time.monotonic(), 0.001))
        if session.matched <= plan.start:
            return None, 0
        # From token 0 on; the tokens that vLLM already has stay empty.
        rows = self._blocks.empty(session.matched)
        left, soft = max(due_at - time.monotonic(), 0.001), self._settings.soft_quality
        loaded = session.load(rows.layers, deadline=left, present=plan.start, rank=self._ranks.part, soft_quality=soft)
        self.metrics.count("load_bytes", loaded.bytes)
        self._lossy.note(plan.prompt, [(tokens, loss) for tokens, loss in loaded.losses if tokens.start < plan.end])
        end = self._blocks.begin_of(min(loaded.prefix_tokens, plan.end))
        if end <= plan.start or (end < plan.end and not self._blocks.can_load_in_part):
            return None, 0
        return self._blocks.from_rows(rows, plan.start, (end - plan.start) // self._blocks.block_tokens), end - plan.start

    def _count_load(self, result: str, seconds: float, tokens: int = 0) -> None:
        """Count a finished load; once for all ranks."""
        if self._sender is None:
            self.metrics.count(f"loads:{result}")
            self.metrics.took("load_seconds", seconds)
            if tokens:
                self.metrics.count("load_tokens", tokens)

    def _over(self, plan: LoadPlan, count: int) -> None:
        """Record that a load has ended with its first ``count`` tokens in vLLM's blocks. Requires the lock."""
        self._received.add(plan.request_id)
        if plan.start + count == plan.end:
            return
        self._report.failed.add(plan.request_id)
        if self._blocks is not None and self._blocks.can_load_in_part:
            self._failed_blocks.update(plan.blocks[0][count // self._blocks.block_tokens :])
        else:
            self._failed.add(plan.request_id)

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn from a step's forward of this many seconds how long computing takes here: later loads are compared with it."""
        if plan.prefill is not None and self._service is not None:
            self._service.observe_prefill(range(*plan.prefill), seconds)

    def save(self, plan: StepPlan) -> None:
        """Copy the blocks of a step's saves and copies. vLLM may reuse the blocks when this returns."""
        for save in plan.saves:
            if save.releases:
                self._sent.add(save.request_id)
            copied = self._forget(save.request_id)
            if self._blocks is None or not self._can_store:
                continue
            size = self._blocks.bytes_of(len(save.prompt.tokens) - save.first)
            if self._has_room(size):
                self._copies.put(self._gathered(save, copied, size))
            elif self._sender is None:
                self.metrics.count("saves:dropped")
            elif self._copies.qsize() < _HEADERS_MAX:
                # So that the first rank does not wait for this one.
                self._copies.put(Part(save.number, save.first, len(save.prompt.tokens), save.windowed_first, None))
        # Rows after the end of a request's save.
        for copy in plan.copies:
            self._copy_windowed(copy)

    @property
    def _can_store(self) -> bool:
        """Whether there is a receiver for copies: the service, or for ranks other than the first, the first rank."""
        return self._sender is not None or (self._service is not None and self._service.is_connected)

    def _has_room(self, size: int) -> bool:
        """Reserve memory for copies of this many bytes, if there is room."""
        with self._lock:
            if self._queued_bytes + size <= self._settings.save_queue_mb << 20:
                self._queued_bytes += size
                return True
        self._notices.say("queue", "a save was dropped: %d MiB are already waiting to be stored", self._queued_bytes >> 20)
        return False

    def _copy_windowed(self, plan: CopyPlan) -> None:
        """Copy rows that vLLM is about to drop."""
        if self._blocks is None or not self._can_store:
            return
        if not self._has_room(self._blocks.bytes_of(plan.end - plan.first, windowed=True)):
            self._forget(plan.request_id)
            return
        rows = self._blocks.empty(plan.end - self._blocks.begin_of(plan.first))
        self._blocks.to_rows(self._blocks.take(plan.blocks, windowed=True), rows, 0)
        self._keep(plan.request_id, plan.first, plan.end, rows.layers)

    def _keep(self, request_id: str, first: int, end: int, rows: Rows) -> None:
        """Keep rows for the next save of a request. Their memory is already reserved."""
        assert self._blocks is not None
        copied = self._copied.setdefault(request_id, CopiedRows())
        before = copied.bytes
        copied.add(self._blocks, first, end, rows)
        with self._lock:
            self._queued_bytes -= before + self._blocks.bytes_of(end - first, windowed=True) - copied.bytes

    def _forget(self, request_id: str) -> CopiedRows | None:
        """Take the copied rows of a request."""
        copied = self._copied.pop(request_id, None)
        if copied is not None:
            with self._lock:
                self._queued_bytes -= copied.bytes
        return copied

    def _gathered(self, plan: SavePlan, copied: CopiedRows | None, size: int) -> _Copy:
        """Copy the rows of a save, and keep those that the request's next save begins with."""
        assert self._blocks is not None
        end, first = len(plan.prompt.tokens), plan.windowed_first
        rows = self._blocks.empty(end)
        taken = self._blocks.take(plan.blocks, windowed=False)
        self._blocks.to_rows(self._blocks.take(plan.blocks, windowed=True), rows, self._blocks.begin_of(first))
        if copied is not None and copied.end == first:
            copied.give(self._blocks, rows.layers, plan.first)
            first = max(copied.first, plan.first)
        begin = max(first, end - end % self._settings.chunk_tokens)
        if self._blocks.has_windows and not plan.releases and begin < end:
            if self._has_room(self._blocks.bytes_of(end - begin, windowed=True)):
                origin = self._blocks.begin_of(begin)
                part = self._blocks.empty(end - origin).layers
                self._blocks.copy_windowed((rows.layers, 0), (part, origin), begin, end)
                self._keep(plan.request_id, begin, end, part)
        return _Copy(plan, rows, taken, first, size)

    def _store_all(self) -> None:
        """Store copies one after another: those of one request build on each other. Other ranks send theirs to the first."""
        while (copy := self._copies.get()) is not None:
            result, begun = "failed", time.monotonic()
            try:
                if self._sender is None:
                    assert isinstance(copy, _Copy)
                    result = self._store(copy)
                elif isinstance(copy, Part):
                    self._sender.send(copy, None)
                else:
                    self._sender.send(self._part(copy), self._rows_of(copy))
            except (KvasirError, OSError) as error:
                self._notices.say("save", "a save failed: %s", error)
            except Exception:
                logger.exception("a save failed")
            if self._sender is None:
                self.metrics.count(f"saves:{result}")
                self.metrics.took("save_seconds", time.monotonic() - begun)
            if isinstance(copy, _Copy):
                with self._lock:
                    self._queued_bytes -= copy.bytes
            del copy

    def _part(self, copy: _Copy) -> Part:
        """Return the header of a rank's part of a save."""
        # From this request's load, or from another one's whose blocks vLLM reused.
        loss = self._lossy.beneath(copy.plan.prompt)
        return Part(copy.plan.number, copy.plan.first, len(copy.plan.prompt.tokens), copy.windowed_first, loss)

    def _rows_of(self, copy: _Copy) -> Rows:
        """Return the rows of a copy, extracted from its blocks: here, where no step waits for it."""
        assert self._blocks is not None
        self._blocks.to_rows(copy.taken, copy.rows, self._blocks.begin_of(copy.plan.first))
        copy.taken = []
        return copy.rows.layers

    def _store(self, copy: _Copy) -> str:
        """Return the outcome of a save, as in `COUNTERS`."""
        assert self._service is not None
        prompt, chunk_tokens = copy.plan.prompt, self._settings.chunk_tokens
        part, rows = self._part(copy), self._rows_of(copy)
        if self._gatherer is not None:
            gathered = self._gatherer.gather(part, rows)
            if gathered is None:
                return "dropped"
            part, rows = gathered
        session = self._service.session(prompt, _SAVE_LOOKUP_S)
        if session.matched // chunk_tokens * chunk_tokens < part.first:
            # Rows before the first one were not copied.
            return "orphaned"
        if part.windowed_first > part.first and session.matched < part.end and not self._complete(session, part, rows):
            return "orphaned"
        if part.loss is not None:
            session.reused(part.loss)
        saved = session.save(rows)
        self.metrics.count("save_bytes", saved.bytes)
        outcomes = {chunk.outcome for chunk in saved.chunks}
        if "too_lossy" in outcomes:
            return "lossy"
        with self._lock:
            self._report.stored.add(copy.plan.number)
        return "stored" if "stored" in outcomes else "present"

    def _complete(self, session: Session, part: Part, rows: Rows) -> bool:
        """Load rows that vLLM has dropped, for a partially stored chunk that is stored again as a whole."""
        assert self._ranks is not None and self._blocks is not None
        if session.matched < part.windowed_first:
            return False
        stored = self._ranks.empty(rows, session.matched)
        loaded = session.load(stored, present=part.first)
        if loaded.prefix_tokens < part.windowed_first:
            return False
        self._blocks.copy_windowed((stored, 0), (rows, 0), part.first, part.windowed_first)
        return True

    def finished(self, ended: set[str], now: float) -> KVConnectorTransferResults:
        """Return requests whose blocks were copied, and requests whose loads have ended. Gives up late loads.

        Drops the copied rows of finished requests.
        """
        for request_id in ended:
            self._forget(request_id)
        with self._lock:
            for load in [load for load in self._loads.values() if load.due_at < now]:
                del self._loads[load.plan.request_id]
                self._count_load("late", now - load.begun_at)
                self._notices.say("late", "the load of request %s is late; vLLM computes it", load.plan.request_id)
                self._over(load.plan, 0)
            received, self._received = self._received, set()
            failed, self._failed = self._failed, set()
        sent, self._sent = self._sent, set()
        return KVConnectorTransferResults(sent, received, failed)

    def take_failed_blocks(self) -> set[int]:
        """Return blocks that loads did not write."""
        with self._lock:
            failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> WorkerReport | None:
        """Return the report for the scheduler."""
        with self._lock:
            report, self._report = self._report, WorkerReport()
        return report if report.failed or report.stored or report.unusable else None

    def close(self) -> None:
        """Send copied rows for a limited time, and stop."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._saver.is_alive():
            self._copies.put(None)
            self._saver.join(_CLOSE_S)
            try:
                while True:
                    self._copies.get_nowait()
            except Empty:
                pass
        if self._gatherer is not None:
            self._gatherer.close()
        if self._service is not None:
            self._service.close()
