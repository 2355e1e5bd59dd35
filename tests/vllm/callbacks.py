"""Times of the connector's methods in vLLM's scheduler, as a table."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

from circumstances import describe_run, write
from engine import Engine, make_tokens

import kvasir

METHODS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "take_events",
)
AT_ONCE = 8
PROMPTS = 40


def timed(method: Callable[..., Any], times: list[int]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        begun = time.perf_counter_ns()
        try:
            return method(*args, **named)
        finally:
            times.append(time.perf_counter_ns() - begun)

    return call


def quantile(times: list[int], share: float) -> float:
    """In microseconds."""
    return sorted(times)[min(int(len(times) * share), len(times) - 1)] / 1e3


def main(requests: int, out: str) -> None:
    dice = random.Random(1)
    prompts = [make_tokens(dice.randrange(300, 900), seed=seed) for seed in range(PROMPTS)]
    times: dict[str, list[int]] = {name: [] for name in METHODS}
    steps: list[int] = []
    with kvasir.testing.server() as service:
        engine = Engine(service.url)
        engine.wait_until_connected()
        connector = engine.scheduler.connector
        for name in METHODS:
            setattr(connector, name, timed(getattr(connector, name), times[name]))
        begun, running = 0, set()
        while begun < requests or running:
            while begun < requests and len(running) < AT_ONCE:
                running.add(engine.begin(dice.choice(prompts), max_tokens=24))
                begun += 1
                # Every prompt is loaded again, and vLLM's own cache does not stand before ours.
                if begun % PROMPTS == 0:
                    while running:
                        running -= engine.step().keys()
                    engine.forget()
            since = time.perf_counter_ns()
            running -= engine.step().keys()
            steps.append(time.perf_counter_ns() - since)
    found = describe_run(f"tests/vllm/bench callbacks {requests}") | {
        "share_of_steps": round(sum(map(sum, times.values())) / sum(steps), 5)
    }
    found["methods"] = {
        name: {"calls": len(of), "us_p50": round(quantile(of, 0.5), 1), "us_p99": round(quantile(of, 0.99), 1)}
        for name, of in times.items()
    }
    for name, of in times.items():
        print(f"{name:28} {len(of):6} calls, p50 {quantile(of, 0.5):7.1f} us, p99 {quantile(of, 0.99):7.1f} us")
    step = f"{len(steps):6}, p50 {quantile(steps, 0.5):11.1f} us"
    print(f"{'a step':28} {step}; the connector's share of all steps {found['share_of_steps']:.2%}")
    write(out, found)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
