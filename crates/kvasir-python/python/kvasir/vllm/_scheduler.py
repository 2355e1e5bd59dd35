"""The connector in vLLM's scheduler: looks prompts up aside, and plans what workers load and save."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from ..errors import InputError, KvasirError
from ._events import StoredEvents
from ._identity import is_known_by_tokens, prompt_of
from ._layout import NULL_BLOCK, BlockTables, check_groups, window_of
from ._metrics import Collector
from ._notices import Notices
from ._plan import CopyPlan, LoadPlan, Prompt, SavePlan, StepPlan, WorkerReport
from ._service import Service, service_of
from ._settings import Settings

logger = init_logger(__name__)

_LOOKUPS_AT_ONCE = 8
# Tokens by which a tail of a context must have grown to be stored again, as in the client.
_TAIL_GROWTH = 256
# In `kv_transfer_params` of a request: seconds from its arrival to its first token.
_TTFT = "kvasir_ttft_s"


class _Found(NamedTuple):
    """Leading tokens that are stored, None where the service does not say; and how long the lookup took."""

    tokens: int | None
    seconds: float


@dataclass
class _Tracked:
    """A request, from its arrival to its end."""

    request: Any
    prompt: Prompt
    asked_at: float
    lookup: Future[_Found] | None
    # When its first token is due, where it says so.
    due_at: float | None
    # Leading tokens that are stored, or given to a worker to be.
    saved: int = 0
    # Leading tokens whose rows in layers with a window need not be copied any more.
    copied: int = 0
    # Where the load that was offered last begins.
    start: int = 0
    is_counted: bool = False
    has_failed: bool = False


class Scheduler:
    """Plans, and waits for nothing."""

    def __init__(self, settings: Settings, vllm_config: Any, kv_cache_config: Any) -> None:
        self._settings = settings
        self._service: Service | None = None
        self._tracked: dict[str, _Tracked] = {}
        self._step = StepPlan()
        self._saves = 0
        self.events = StoredEvents(vllm_config)
        self.metrics = Collector()
        self._notices = Notices(logger.warning)
        self._lookups = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, "kvasir-lookup")
        try:
            check_groups(vllm_config, kv_cache_config)
            self._block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
            self._window = window_of(kv_cache_config)
            self._is_windowed = [isinstance(group.kv_cache_spec, SlidingWindowSpec) for group in kv_cache_config.kv_cache_groups]
            self._service = service_of(settings, vllm_config)
        except InputError as error:
            logger.error("vLLM runs without Kvasir: %s", error)

    def begin(self, request: Any, now: float) -> None:
        """Look a new request up."""
        if self._service is None or not is_known_by_tokens(request):
            return
        try:
            prompt = prompt_of(request, request.all_token_ids)
        except (InputError, OSError) as error:
            self._notices.say("prompt", "request %s runs without Kvasir: %s", request.request_id, error)
            return
        service, timeout = self._service, self._settings.lookup_deadline_s
        asks = service.is_connected and not request.skip_reading_prefix_cache
        lookup = self._lookups.submit(_look_up, service, prompt, timeout) if asks else None
        self._tracked[request.request_id] = _Tracked(request, prompt, now, lookup, self._due_at(request, now))

    def _due_at(self, request: Any, now: float) -> float | None:
        """When the first token of a request that has just come is due."""
        budget = (request.kv_transfer_params or {}).get(_TTFT)
        if budget is None:
            return None
        if isinstance(budget, bool) or not isinstance(budget, int | float) or budget <= 0:
            self._notices.say("budget", "kv_transfer_params: %s is %r; give seconds, more than 0", _TTFT, budget)
            return None
        return now + float(budget)

    def loadable(self, request: Any, computed: int, now: float) -> tuple[int | None, bool]:
        """Tokens that can be loaded behind the first ones that vLLM has, in whole blocks, and whether asynchronously."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.lookup is None or tracked.has_failed:
            return 0, False
        if not tracked.lookup.done():
            if now < tracked.asked_at + self._settings.lookup_deadline_s:
                return None, False
            tracked.lookup = None
            self.metrics.count("lookups:late")
            return 0, False
        found = tracked.lookup.result()
        matched = found.tokens or 0
        if not tracked.is_counted:
            tracked.is_counted = True
            self.metrics.count("lookups:failed" if found.tokens is None else "lookups:hit" if matched else "lookups:miss")
            self.metrics.took("lookup_seconds", found.seconds)
        tracked.saved = max(tracked.saved, matched)
        # vLLM computes the last token, for its logits.
        end = min(matched, request.num_tokens - 1) // self._block_tokens * self._block_tokens
        tracked.start = computed
        return (end - computed, True) if end > computed else (0, False)

    def allocated(self, request: Any, blocks: BlockTables, count: int, now: float) -> None:
        """Plan the load of ``count`` tokens that was offered, into blocks that were allocated."""
        tracked = self._tracked[request.request_id]
        start, end = tracked.start, tracked.start + count
        ids = tuple(of_group[start // self._block_tokens : end // self._block_tokens] for of_group in blocks)
        # The token behind, too: the last token of a prompt is not loaded.
        prompt = replace(tracked.prompt, tokens=tracked.prompt.tokens[: end + 1])
        budget = self._settings.load_deadline_s
        if tracked.due_at is not None:
            budget = min(budget, max(tracked.due_at - now, 0.0))
        self._step.loads.append(LoadPlan(request.request_id, prompt, start, end, ids, budget))

    def plan(self, output: Any) -> StepPlan:
        """Give what was planned since the last step, and what this step computes to be saved."""
        for request_id, count in output.num_scheduled_tokens.items():
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            request = tracked.request
            # Tokens of drafts are not among those of the request until they are accepted.
            computed = min(request.num_computed_tokens + count, request.num_tokens)
            is_prompt_done = tracked.saved < request.num_prompt_tokens <= computed
            chunk = self._settings.chunk_tokens
            end = request.num_prompt_tokens if is_prompt_done else computed // chunk * chunk
            if end > tracked.saved:
                blocks = output.kv_connector_block_state.get_block_ids(request_id)
                self._save(tracked, end, blocks, releases=False)
            # The next step begins by giving up what lies behind the window of the token that it computes.
            elif self._window is not None and computed - self._window >= max(tracked.copied, self._first(tracked)):
                self._copy(tracked, computed, output.kv_connector_block_state.get_block_ids(request_id))
        step, self._step = self._step, StepPlan()
        return step

    def finished(self, request: Any, blocks: BlockTables) -> bool:
        """Plan the save of what a finished request has generated. Gives whether its blocks must stay until it is copied."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None or request.status.name not in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"):
            return False
        # The last token was sampled, and never computed.
        end = min(request.num_computed_tokens, request.num_tokens - 1)
        has_part_of_last = tracked.saved % self._settings.chunk_tokens > 0
        if end - tracked.saved < (_TAIL_GROWTH if has_part_of_last else self._block_tokens):
            return False
        self._save(tracked, end, blocks, releases=True)
        return True

    def _first(self, tracked: _Tracked) -> int:
        """Where the next save of a request begins: a chunk that was stored in part is stored again as a whole."""
        return tracked.saved // self._settings.chunk_tokens * self._settings.chunk_tokens

    def _save(self, tracked: _Tracked, end: int, blocks: BlockTables, *, releases: bool) -> None:
        request, first = tracked.request, self._first(tracked)
        windowed_first = self._uncopied(tracked, blocks)
        starts = [windowed_first if is_windowed else first for is_windowed in self._is_windowed]
        prompt = replace(tracked.prompt, tokens=list(request.all_token_ids[:end]))
        ids = self._of_tokens(blocks, starts, end)
        self._saves += 1
        self._step.saves.append(SavePlan(self._saves, request.request_id, prompt, first, windowed_first, ids, releases))
        self.events.begin(self._saves, request, first, end, self._block_tokens)
        tracked.saved = tracked.copied = end

    def _copy(self, tracked: _Tracked, end: int, blocks: BlockTables) -> None:
        first = self._uncopied(tracked, blocks)
        starts = [first if is_windowed else end for is_windowed in self._is_windowed]
        ids = self._of_tokens(blocks, starts, end)
        self._step.copies.append(CopyPlan(tracked.request.request_id, first, end, ids))
        tracked.copied = end

    def _of_tokens(self, blocks: BlockTables, starts: list[int], end: int) -> BlockTables:
        """Blocks that hold the tokens from each group's start to ``end``."""
        size = self._block_tokens
        pairs = zip(blocks, starts, strict=True)
        return tuple(ids[start // size : -(-end // size)] if start < end else [] for ids, start in pairs)

    def _uncopied(self, tracked: _Tracked, blocks: BlockTables) -> int:
        """The first token to be copied of layers with a window: behind what is copied, where vLLM still has what follows."""
        first = max(tracked.copied, self._first(tracked))
        windowed = [ids for ids, is_windowed in zip(blocks, self._is_windowed, strict=True) if is_windowed]
        block = first // self._block_tokens
        while any(ids[block : block + 1] == [NULL_BLOCK] for ids in windowed):
            block += 1
            first = block * self._block_tokens
        return first

    def reported(self, report: WorkerReport) -> None:
        """Take note of what the workers report."""
        for request_id in report.failed:
            if tracked := self._tracked.get(request_id):
                tracked.has_failed = True
        if report.stored:
            self.events.stored(report.stored)
        if report.unusable is not None:
            self._service = None
            for tracked in self._tracked.values():
                tracked.lookup = None

    def close(self) -> None:
        """End the threads."""
        self._lookups.shutdown(wait=False, cancel_futures=True)
        if self._service is not None:
            self._service.close()


def _look_up(service: Service, prompt: Prompt, timeout: float) -> _Found:
    begun = time.monotonic()
    tokens = None
    try:
        session = service.session(prompt, timeout)
        if session.error is None:
            tokens = session.matched
        else:
            logger.debug("a lookup failed: %s", session.error)
    except KvasirError as error:
        logger.debug("a lookup failed: %s", error)
    return _Found(tokens, time.monotonic() - begun)
