"""The connector in vLLM's scheduler: looks prompts up in the background, and plans the workers' loads and saves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from .._kvasir import Lookup
from .._notices import Notices
from ..errors import KvasirError
from ._events import StoredEvents
from ._identity import Adapters, is_known_by_tokens, prompt_of
from ._layout import NULL_BLOCK, BlockTables, check_groups, window_of
from ._metrics import Collector
from ._plan import CopyPlan, LoadPlan, Prompt, SavePlan, StepPlan, WorkerReport
from ._requests import RequestLog
from ._service import Service, service_of
from ._settings import Settings

logger = init_logger(__name__)

# Tokens by which the tail of a context must grow before it is stored again, as in the client.
_TAIL_GROWTH = 256
# End states of requests whose text is saved. vLLM's front end aborts requests that a stop string ends.
_SAVED_ENDS = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED")
# Why tokens of a request were loaded or not, as shown by `kvasir context explain --request`.
_REASONS = {
    "not_connected": "there was no connection to the service when it arrived; see the log",
    "not_read": "it opted out of the cache (skip_reading_prefix_cache)",
    "waiting": "it ended before its lookup completed",
    "lookup_late": "its lookup did not complete within lookup_deadline_s, so vLLM computed it",
    "lookup_failed": "its lookup failed, so vLLM computed it",
    "miss": "no prefix of it was stored; `kvasir context explain --kv` with its tokens shows why",
    "below_quality": "it was stored below the connector's quality, so vLLM computed it, and it is not stored again",
    "in_vllm": "vLLM already had all of its stored whole blocks",
    "load_failed": "its load failed, was late or was interrupted, so vLLM computed the rest",
    "loaded": "its load was planned, and no worker reported a failure",
}
# In `kv_transfer_params` of a request: seconds from its arrival to its first token.
_TTFT = "kvasir_ttft_s"
# Years, which a float can hold.
_TTFT_MAX = 1e9


@dataclass
class _Tracked:
    """A request, from its arrival to its end."""

    request: Any
    came_at: float
    # None while the files of its adapter are read.
    prompt: Prompt | None = None
    lookup: Lookup | None = None
    # When its first token is due, if the request states it.
    due_at: float | None = None
    # Leading tokens that are stored, or that a worker will store.
    saved: int = 0
    # Leading tokens whose rows in layers with a window need no further copy.
    copied: int = 0
    # Start of the most recently offered load.
    start: int = 0
    is_counted: bool = False
    # Nothing more is loaded for it.
    is_computed: bool = False
    # One of `_REASONS`, and the service's message.
    reason: str = "waiting"
    error: str | None = None
    # Leading tokens that vLLM had and that were stored at the lookup; and the tokens of the last planned load.
    in_vllm: int = 0
    stored: int | None = None
    planned: int = 0


class Scheduler:
    """Plans without waiting."""

    def __init__(self, settings: Settings, vllm_config: Any, kv_cache_config: Any) -> None:
        self._settings = settings
        self._service: Service | None = None
        self._tracked: dict[str, _Tracked] = {}
        self._step = StepPlan()
        self._saves = 0
        self.events = StoredEvents(vllm_config)
        self.metrics = Collector()
        self._notices = Notices(logger.warning)
        self._surprises = Notices(logger.exception)
        self._adapters = Adapters()
        self._requests: RequestLog | None = None
        try:
            check_groups(vllm_config, kv_cache_config)
            self._block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
            self._window = window_of(kv_cache_config)
            self._is_windowed = [isinstance(group.kv_cache_spec, SlidingWindowSpec) for group in kv_cache_config.kv_cache_groups]
            self._service = service_of(settings, vllm_config)
            self._requests = RequestLog(vllm_config.kv_transfer_config.engine_id)
        except KvasirError as error:
            self._service = None
            logger.error("vLLM runs without Kvasir: %s", error)
        except Exception:
            # What no one foresaw, such as another version of vLLM's private functions, must not end vLLM.
            self._service = None
            logger.exception("vLLM runs without Kvasir: unexpected error, please report it")

    def begin(self, request: Any, now: float) -> None:
        """Look a new request up."""
        if self._service is None or not is_known_by_tokens(request):
            return
        tracked = self._tracked[request.request_id] = _Tracked(request, now, due_at=self._due_at(request, now))
        if not self._service.is_connected or request.skip_reading_prefix_cache:
            tracked.is_computed = True
            tracked.reason = "not_read" if self._service.is_connected else "not_connected"
        self._identify(tracked, now)

    def _identify(self, tracked: _Tracked, now: float) -> Prompt | None:
        """Return the identity of a request's cache; None while the files of its adapter are being read. Its lookup starts then."""
        if tracked.prompt is not None or self._service is None:
            return tracked.prompt
        request = tracked.request
        try:
            tracked.prompt = prompt_of(request, self._adapters)
            if tracked.prompt is not None and not tracked.is_computed:
                left = tracked.came_at + self._settings.lookup_deadline_s - now
                tracked.lookup = self._service.look_up(tracked.prompt, max(left, 0.001))
        except (KvasirError, OSError) as error:
            self._notices.say("prompt", "request %s runs without Kvasir: %s", request.request_id, error)
            del self._tracked[request.request_id]
        except Exception:
            # Clients choose what is in a request, and an exception here ends vLLM's engine.
            what = "request %s runs without Kvasir: unexpected error, please report it"
            self._surprises.say("prompt", what, request.request_id)
            del self._tracked[request.request_id]
        return tracked.prompt

    def _due_at(self, request: Any, now: float) -> float | None:
        """Return when the first token of a new request is due."""
        params = request.kv_transfer_params
        # vLLM takes them from `vllm_xargs` too, where clients may give any type.
        budget = params.get(_TTFT) if isinstance(params, Mapping) else None
        if budget is None:
            return None
        if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < _TTFT_MAX:
            self._notices.say("budget", "kv_transfer_params: %s is %r; give a number of seconds above 0", _TTFT, budget)
            return None
        return now + float(budget)

    def loadable(self, request: Any, computed: int, now: float) -> tuple[int | None, bool]:
        """Return the tokens that can be loaded after those that vLLM has, in whole blocks, and whether asynchronously."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.is_computed:
            return 0, False
        self._identify(tracked, now)
        found = tracked.lookup and tracked.lookup.found
        if found is None:
            if now < tracked.came_at + self._settings.lookup_deadline_s:
                return None, False
            tracked.is_computed = True
            tracked.reason = "lookup_late"
            self.metrics.count("lookups:late")
            return 0, False
        stored, seconds, error, below = found
        matched = stored or 0
        if not tracked.is_counted:
            tracked.is_counted = True
            miss = "below_quality" if below else "miss"
            self.metrics.count("lookups:failed" if stored is None else "lookups:hit" if matched else f"lookups:{miss}")
            self.metrics.took("lookup_seconds", seconds)
            tracked.in_vllm, tracked.stored, tracked.error = computed, stored, error
            tracked.reason = "lookup_failed" if stored is None else "in_vllm" if matched else miss
            if below:
                what = "%d tokens of request %s are stored below quality %s, and computed each time: use another namespace"
                self._notices.say("quality", what, below, request.request_id, self._settings.quality)
            if error is not None:
                self._notices.say("lookup", "the lookup of request %s failed: %s", request.request_id, error)
        tracked.saved = max(tracked.saved, matched)
        # vLLM computes the last token, for its logits.
        end = min(matched, request.num_tokens - 1) // self._block_tokens * self._block_tokens
        tracked.start = computed
        return (end - computed, True) if end > computed else (0, False)

    def allocated(self, request: Any, blocks: BlockTables, count: int, now: float) -> None:
        """Plan the load of ``count`` tokens that was offered, into blocks that were allocated."""
        tracked = self._tracked[request.request_id]
        assert tracked.prompt is not None and tracked.lookup is not None and self._service is not None
        start, end = tracked.start, tracked.start + count
        tracked.reason, tracked.planned = "loaded", count
        ids = tuple(of_group[start // self._block_tokens : end // self._block_tokens] for of_group in blocks)
        # Including the next token: the last token of a prompt is not loaded.
        prompt = replace(tracked.prompt, tokens=tracked.prompt.tokens[: end + 1])
        budget = self._settings.load_deadline_s
        if tracked.due_at is not None:
            budget = min(budget, max(tracked.due_at - now, 0.0))
        session = self._service.session_of(tracked.lookup, tracked.prompt)
        self._step.loads.append(LoadPlan(request.request_id, prompt, start, end, ids, budget, session))

    def plan(self, output: Any, now: float) -> StepPlan:
        """Return the loads planned since the last step, and the saves of tokens that this step computes."""
        for request_id, count in output.num_scheduled_tokens.items():
            tracked = self._tracked.get(request_id)
            if tracked is None or self._identify(tracked, now) is None:
                continue
            request = tracked.request
            # Draft tokens do not belong to the request until they are accepted.
            computed = min(request.num_computed_tokens + count, request.num_tokens)
            is_prompt_done = tracked.saved < request.num_prompt_tokens <= computed
            chunk = self._settings.chunk_tokens
            end = request.num_prompt_tokens if is_prompt_done else computed // chunk * chunk
            if end > tracked.saved:
                blocks = output.kv_connector_block_state.get_block_ids(request_id)
                self._save(tracked, end, blocks, releases=False)
            # The next step starts by dropping blocks outside the window of the token that it computes.
            if self._window is not None and computed - self._window >= max(tracked.copied, self._first(tracked)):
                self._copy(tracked, computed, output.kv_connector_block_state.get_block_ids(request_id))
        self._step.prefill = self._prefill(output.num_scheduled_tokens)
        step, self._step = self._step, StepPlan()
        return step

    def _prefill(self, scheduled: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the tokens of a step that computes a part of one prompt and nothing else; its time is that of a prefill.

        Other prompts and generated tokens in a step take a part of its time that nothing tells apart. What is left of a prompt
        after a load of all its whole blocks takes the time of a decode.
        """
        if len(scheduled) != 1:
            return None
        [(request_id, count)] = scheduled.items()
        tracked = self._tracked.get(request_id)
        if tracked is None or count < self._block_tokens:
            return None
        first = tracked.request.num_computed_tokens
        return (first, first + count) if first + count <= tracked.request.num_prompt_tokens else None

    def finished(self, request: Any, blocks: BlockTables) -> bool:
        """Plan the save of a finished request's generated tokens. Return whether its blocks must be kept until they are copied."""
        tracked = self._tracked.pop(request.request_id, None)
        releases = self._save_end(tracked, request, blocks)
        if tracked is not None and self._requests is not None:
            self._requests.add(_record_of(tracked))
        return releases

    def _save_end(self, tracked: _Tracked | None, request: Any, blocks: BlockTables) -> bool:
        """Plan the save of a finished request's generated tokens. Return whether there is one."""
        if tracked is None or tracked.prompt is None or not request.num_output_tokens or request.status.name not in _SAVED_ENDS:
            return False
        # The last token was sampled but never computed.
        end = min(request.num_computed_tokens, request.num_tokens - 1)
        has_part_of_last = tracked.saved % self._settings.chunk_tokens > 0
        if end - tracked.saved < (_TAIL_GROWTH if has_part_of_last else self._block_tokens):
            return False
        self._save(tracked, end, blocks, releases=True)
        return True

    def _first(self, tracked: _Tracked) -> int:
        """Return where the next save of a request begins: a partially stored chunk is stored again as a whole."""
        return tracked.saved // self._settings.chunk_tokens * self._settings.chunk_tokens

    def _save(self, tracked: _Tracked, end: int, blocks: BlockTables, *, releases: bool) -> None:
        request, first = tracked.request, self._first(tracked)
        assert tracked.prompt is not None
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
        """Return the blocks with the tokens from each group's start to ``end``."""
        size = self._block_tokens
        pairs = zip(blocks, starts, strict=True)
        return tuple(ids[start // size : -(-end // size)] if start < end else [] for ids, start in pairs)

    def _uncopied(self, tracked: _Tracked, blocks: BlockTables) -> int:
        """Return the first token to copy in layers with a window: after the copied ones, as far as vLLM still has the rest."""
        if self._window is None:
            return self._first(tracked)
        first = max(tracked.copied, self._first(tracked))
        windowed = [ids for ids, is_windowed in zip(blocks, self._is_windowed, strict=True) if is_windowed]
        block = first // self._block_tokens
        while any(ids[block : block + 1] == [NULL_BLOCK] for ids in windowed):
            block += 1
            first = block * self._block_tokens
        return first

    def reported(self, report: WorkerReport) -> None:
        """Process the workers' reports."""
        for request_id in report.failed:
            if tracked := self._tracked.get(request_id):
                tracked.is_computed = True
                tracked.reason = "load_failed"
        if report.stored:
            self.events.stored(report.stored)
        if report.unusable is not None:
            self._service = None
            self._tracked.clear()

    def close(self) -> None:
        """Stop the threads."""
        self._adapters.close()
        if self._requests is not None:
            self._requests.close()
        if self._service is not None:
            self._service.close()


def _record_of(tracked: _Tracked) -> dict[str, Any]:
    """Return the record of a request. It has no tokens: its readers may not be allowed to see them."""
    detail = _REASONS[tracked.reason]
    return {
        "request": tracked.request.request_id,
        "ended_at_ms": time.time_ns() // 1_000_000,
        "prompt_tokens": tracked.request.num_prompt_tokens,
        "in_vllm_tokens": tracked.in_vllm,
        "stored_tokens": tracked.stored,
        "planned_tokens": tracked.planned,
        "saved_tokens": tracked.saved,
        "reason": tracked.reason,
        "detail": detail if tracked.error is None else f"{detail}: {tracked.error}",
    }
