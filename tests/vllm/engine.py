"""An engine of vLLM over kvasir-tiny, and what tests ask of it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.inputs import TokensPrompt

import kvasir

MODEL = Path(__file__).resolve().parents[2] / "crates" / "kvasir-engine" / "assets" / "kvasir-tiny"
VOCABULARY = 500
BLOCK = 32
CHUNK = 256


def make_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)


@dataclass
class Answer:
    """Tokens that were generated, how many of the prompt's were not computed, and why it ended."""

    tokens: list[int]
    cached: int
    reason: str
    seconds: float


class Engine:
    """vLLM in this process."""

    def __init__(self, url: str, *, policy: str = "recompute", block: int = BLOCK, extra: dict | None = None, **options: Any) -> None:
        settings = {"url": url, "chunk_tokens": CHUNK, **(extra or {})}
        transfer = KVTransferConfig(
            kv_connector="KvasirConnector",
            kv_connector_module_path="kvasir.vllm",
            kv_role="kv_both",
            kv_load_failure_policy=policy,
            kv_connector_extra_config=settings,
        )
        # Prompts are computed in parts: more tokens than a step takes.
        options = {"max_model_len": 1024, "max_num_batched_tokens": 256, "dtype": "float32", **options}
        self.llm = LLM(
            model=str(MODEL),
            enforce_eager=True,
            distributed_executor_backend="uni",
            block_size=block,
            kv_transfer_config=transfer,
            **options,
        )
        self._core = self.llm.llm_engine
        self._next = 0

    @property
    def scheduler(self) -> Any:
        return self._core.engine_core.engine_core.scheduler

    def free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def begin(self, tokens: list[int], salt: str | None = None, **sampling: Any) -> str:
        """Add a request; `fresh` reads no cache of whatever kind."""
        self._next += 1
        request_id = f"r{self._next}"
        fresh = sampling.pop("fresh", False)
        params = SamplingParams(temperature=0, skip_reading_prefix_cache=fresh, **{"max_tokens": 8, **sampling})
        prompt = TokensPrompt(prompt_token_ids=tokens, **({} if salt is None else {"cache_salt": salt}))
        self._core.add_request(request_id, prompt, params)
        return request_id

    def step(self) -> dict[str, Answer]:
        """Do one step; gives requests that are over."""
        over = {}
        for output in self._core.step():
            if output.finished:
                best = output.outputs[0]
                over[output.request_id] = Answer(list(best.token_ids), output.num_cached_tokens or 0, best.finish_reason, 0.0)
        return over

    def abort(self, request_ids: Iterable[str]) -> None:
        self._core.abort_request(list(request_ids))

    def run(self, tokens: list[int], salt: str | None = None, **sampling: Any) -> Answer:
        """One request, to its end."""
        request_id, begun = self.begin(tokens, salt, **sampling), time.monotonic()
        while True:
            for over, answer in self.step().items():
                if over == request_id:
                    answer.seconds = time.monotonic() - begun
                    return answer
            time.sleep(0.001)

    def settle(self) -> None:
        """Do steps until vLLM has nothing left to do: blocks of finished requests are free again."""
        until = time.monotonic() + 30
        while self.scheduler.has_requests() and time.monotonic() < until:
            self.step()
            time.sleep(0.001)
        assert not self.scheduler.has_requests()

    def forget(self) -> None:
        """Forget vLLM's own prefix cache."""
        self.settle()
        assert self.llm.reset_prefix_cache()


def wait_until_stored(store: kvasir.Store, least: int = 1) -> None:
    """Wait until as many objects are stored, and no more come."""
    before, since = -1, time.monotonic()
    until = since + 60
    while time.monotonic() < until:
        now = store.usage()["objects"]
        if now != before:
            before, since = now, time.monotonic()
        if now >= least and time.monotonic() > since + 1.5:
            return
        time.sleep(0.1)
    raise AssertionError(f"{before} objects are stored, {least} were expected")
