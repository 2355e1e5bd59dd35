"""A vLLM engine with kvasir-tiny, and the functions that tests use."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest

import kvasir

MODEL = Path(__file__).resolve().parents[2] / "crates" / "kvasir-engine" / "assets" / "kvasir-tiny"
WEIGHTS = "kvasir-tiny"
VOCABULARY = 500
BLOCK = 32
CHUNK = 256
# Nats between two tokens that rounding may exchange.
TIE = 0.1


def make_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)


def make_spec(folder: Path = MODEL, kv_dtype: torch.dtype = torch.bfloat16) -> kvasir.ModelSpec:
    """What the connector makes of a model."""
    return kvasir.ModelSpec.from_config(folder, weights=WEIGHTS, revision="test", kv_dtype=str(kv_dtype), context=1024)


def compute_caches(texts: Iterable[list[int]], folder: Path = MODEL, kv_dtype: torch.dtype = torch.bfloat16) -> list[tuple]:
    """Let transformers compute caches, each with its tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    contexts = []
    for tokens in texts:
        # One that does not know of windows keeps all rows.
        cache = DynamicCache()
        with torch.no_grad():
            model(torch.tensor([tokens]), past_key_values=cache)
        rows = [(layer.keys[0].to(kv_dtype).contiguous(), layer.values[0].to(kv_dtype).contiguous()) for layer in cache.layers]
        contexts.append((tokens, rows))
    return contexts


def make_exact_profile(path: Path, folder: Path = MODEL, kv_dtype: torch.dtype = torch.bfloat16) -> str:
    """Train a profile that loses nothing."""
    contexts = compute_caches((make_tokens(512, seed) for seed in range(3)), folder, kv_dtype)
    kvasir.Profile.train(contexts, model=make_spec(folder, kv_dtype), recipe="exact-only").save(path)
    return str(path)


@dataclass
class Answer:
    """Tokens that were generated, how many of the prompt's were not computed, and why it ended; by how much each token was the
    best, and the logarithms of probabilities that were asked for.
    """

    tokens: list[int]
    cached: int
    reason: str
    seconds: float
    margins: list[float]
    distributions: list[dict[int, float]]

    def is_as(self, expected: Answer) -> bool:
        """Whether the tokens are the expected ones, up to a place where two are as good.

        vLLM computes in batches, whose numbers differ by what bfloat16 rounds.
        """
        pairs = zip(self.tokens, expected.tokens, expected.margins, strict=True)
        first = next((margin for own, other, margin in pairs if own != other), None)
        return first is None or first < TIE


class Engine:
    """vLLM in this process."""

    def __init__(
        self,
        url: str,
        *,
        model: Path = MODEL,
        policy: str = "recompute",
        block: int = BLOCK,
        extra: dict | None = None,
        **options: Any,
    ) -> None:
        settings = {"url": url, "chunk_tokens": CHUNK, "weights": WEIGHTS, "revision": "test", **(extra or {})}
        transfer = KVTransferConfig(
            kv_connector="KvasirConnector",
            kv_connector_module_path="kvasir.vllm",
            kv_role="kv_both",
            kv_load_failure_policy=policy,
            kv_connector_extra_config=settings,
        )
        # Prompts are computed in parts: more tokens than a step takes.
        options = {"max_model_len": 1024, "max_num_batched_tokens": 256, "dtype": "bfloat16"} | options
        options = {"distributed_executor_backend": "uni", **options}
        self.llm = LLM(
            model=str(model),
            enforce_eager=True,
            block_size=block,
            kv_transfer_config=transfer,
            **options,
        )
        self._core = self.llm.llm_engine
        self._next = 0

    @property
    def scheduler(self) -> Any:
        return self._core.engine_core.engine_core.scheduler

    @property
    def worker(self) -> Any:
        """The connector's part in vLLM's worker."""
        return get_kv_transfer_group()._worker

    def lost_blocks(self) -> int:
        """Blocks that are not free when nothing runs, vLLM's own null block left out."""
        self.forget()
        pool = self.scheduler.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()

    def begin(self, tokens: list[int], salt: str | None = None, lora: LoRARequest | None = None, **sampling: Any) -> str:
        """Add a request; `fresh` reads no cache of whatever kind, `ttft_s` is its budget for the connector."""
        self._next += 1
        request_id = f"r{self._next}"
        fresh, priority = sampling.pop("fresh", False), sampling.pop("priority", 0)
        if "ttft_s" in sampling:
            sampling["extra_args"] = {"kv_transfer_params": {"kvasir_ttft_s": sampling.pop("ttft_s")}}
        params = SamplingParams(temperature=0, skip_reading_prefix_cache=fresh, **{"max_tokens": 8, **sampling})
        prompt = TokensPrompt(prompt_token_ids=tokens, **({} if salt is None else {"cache_salt": salt}))
        self._core.add_request(request_id, prompt, params, lora_request=lora, priority=priority)
        return request_id

    def step(self) -> dict[str, Answer]:
        """Do one step; gives requests that are over."""
        over = {}
        for output in self._core.step():
            if output.finished:
                best = output.outputs[0]
                distributions = [{token: found.logprob for token, found in of_token.items()} for of_token in best.logprobs or []]
                margins = [margin_of(logprobs) for logprobs in distributions]
                cached = output.num_cached_tokens or 0
                over[output.request_id] = Answer(list(best.token_ids), cached, best.finish_reason, 0.0, margins, distributions)
        return over

    def abort(self, request_ids: Iterable[str]) -> None:
        self._core.abort_request(list(request_ids))

    def run(self, tokens: list[int], **sampling: Any) -> Answer:
        """One request, to its end."""
        request_id, begun = self.begin(tokens, **sampling), time.monotonic()
        while True:
            for over, answer in self.step().items():
                if over == request_id:
                    answer.seconds = time.monotonic() - begun
                    return answer
            time.sleep(0.001)

    def metrics(self) -> dict[str, float]:
        """Counters of the connector, and how many times were observed, by name and result."""
        found = {}
        for metric in self.llm.get_metrics():
            if metric.name.startswith("vllm:kvasir_"):
                result = metric.labels.get("result")
                name = metric.name.removeprefix("vllm:kvasir_") + (f":{result}" if result else "")
                found[name] = metric.count if hasattr(metric, "count") else metric.value
        return found

    def wait_until_connected(self) -> None:
        """Wait until lookups have somebody to ask; before, all is a miss."""
        until = time.monotonic() + 30
        while not self.scheduler.connector._scheduler._service.is_connected:
            assert time.monotonic() < until
            time.sleep(0.01)

    def looked_up(self, request_id: str) -> int | None:
        """Wait for the lookup of a request that no step was done for; gives what is stored."""
        until = time.monotonic() + 30
        [tracked] = [found for name, found in self.scheduler.connector._scheduler._tracked.items() if name.startswith(request_id)]
        while tracked.lookup.found is None:
            assert time.monotonic() < until
            time.sleep(0.001)
        return tracked.lookup.found[0]

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


def margin_of(logprobs: dict[int, float]) -> float:
    """Nats between the best token and the next."""
    best, second, *_ = sorted(logprobs.values(), reverse=True)
    return best - second


class OtherEngine:
    """An engine in a process of its own: vLLM has one connector a process."""

    def __init__(self, url: str, environment: dict[str, str] | None = None, **options: Any) -> None:
        order = json.dumps({"url": url, **options})
        self._process = subprocess.Popen(
            [sys.executable, __file__, order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )

    def begin(self, tokens: list[int]) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(tokens) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Answer:
        """Wait for the answer to the next request that was sent."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Libraries print there, too.
            if line.startswith("{"):
                return Answer(**json.loads(line))
        raise AssertionError("the other engine has ended")

    def run(self, tokens: list[int]) -> Answer:
        """One request, to its end."""
        self.begin(tokens)
        return self.answer()

    def __enter__(self) -> OtherEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def wait_until_stored(store: kvasir.Store, least: int = 1) -> None:
    """Wait until as many objects are stored, and no more come."""
    before, since = -1, time.monotonic()
    until = since + 30
    while time.monotonic() < until:
        now = store.usage()["objects"]
        if now != before:
            before, since = now, time.monotonic()
        if now >= least and time.monotonic() > since + 1.5:
            return
        time.sleep(0.1)
    raise AssertionError(f"{before} objects are stored, {least} were expected")


if __name__ == "__main__":
    engine = Engine(**json.loads(sys.argv[1]))
    engine.wait_until_connected()
    for line in sys.stdin:
        engine.forget()
        print(json.dumps(dataclasses.asdict(engine.run(json.loads(line)))), flush=True)
