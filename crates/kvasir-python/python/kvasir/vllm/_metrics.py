"""The connector's part of vLLM's metrics and log: counts and times of lookups, loads and saves.

Scheduler and workers each collect a `Stats`. vLLM takes it at every step, sums it up, and passes it to `PromMetrics` where it
serves ``/metrics``. It also logs a line of them at each interval.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats


class _Counted(NamedTuple):
    """A counter: its description, and its label if it has one."""

    text: str
    label: str | None = None


COUNTERS = {
    "lookups": _Counted(
        "Lookups of prompts: hit, miss, below_quality (stored below the quality to load), late (no response by the deadline), "
        "failed.",
        "result",
    ),
    "loads": _Counted("Loads: whole, partial, failed, late (not complete by the deadline).", "result"),
    "load_tokens": _Counted("Tokens loaded into vLLM's blocks."),
    "load_bytes": _Counted("Bytes received by loads."),
    "saves": _Counted(
        "Saves: stored, present (already stored), lossy (error too large), dropped (the queue was full), "
        "orphaned (their prefix is not stored), failed.",
        "result",
    ),
    "save_bytes": _Counted("Bytes sent by saves."),
}
HISTOGRAMS = {
    "lookup_seconds": "Duration of lookups.",
    "load_seconds": "Duration of loads, from the step that planned them.",
    "save_seconds": "Duration of saves, without their time in the queue.",
}
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# Maximum number of times of one kind between two steps.
_TIMES_MAX = 1_000


class Stats(KVConnectorStats):
    """Counts by ``name`` or ``name:result``, and lists of seconds. Plain values: vLLM sends them between processes."""

    data: dict[str, Any]

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter of `COUNTERS`, named with its result if it has one."""
        self.data[name] = self.data.get(name, 0) + amount

    def took(self, name: str, seconds: float) -> None:
        """Record a time of `HISTOGRAMS`."""
        times = self.data.setdefault(name, [])
        if len(times) < _TIMES_MAX:
            times.append(seconds)

    def reset(self) -> None:
        """Reset."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> Stats:
        """Add the counts of another process or interval."""
        for name, value in other.data.items():
            if isinstance(value, list):
                for seconds in value:
                    self.took(name, seconds)
            else:
                self.count(name, value)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return counts and median times, for the log."""
        return {
            name: round(sorted(value)[len(value) // 2], 4) if isinstance(value, list) else value
            for name, value in sorted(self.data.items())
        }

    def is_empty(self) -> bool:
        """Whether it is empty."""
        return not self.data


class Collector:
    """Thread-safe stats since vLLM last took them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = Stats()

    def count(self, name: str, amount: float = 1) -> None:
        """As `Stats.count`."""
        with self._lock:
            self._stats.count(name, amount)

    def took(self, name: str, seconds: float) -> None:
        """As `Stats.took`."""
        with self._lock:
            self._stats.took(name, seconds)

    def take(self) -> Stats | None:
        """Return the collected stats, and reset."""
        with self._lock:
            stats, self._stats = self._stats, Stats()
        return None if stats.is_empty() else stats


class PromMetrics(KVConnectorPromMetrics):
    """The same for Prometheus, as ``vllm:kvasir_…``."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics: dict[str, Any] = {}
        for name, (text, label) in COUNTERS.items():
            labels = labelnames + ([label] if label else [])
            self._metrics[name] = self._counter_cls(name=f"vllm:kvasir_{name}", documentation=text, labelnames=labels)
        for name, text in HISTOGRAMS.items():
            self._metrics[name] = self._histogram_cls(
                name=f"vllm:kvasir_{name}", documentation=text, labelnames=labelnames, buckets=_BUCKETS
            )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add the stats of a step."""
        engine = self.per_engine_labelvalues[engine_idx]
        for key, value in transfer_stats_data.items():
            name, _, result = key.partition(":")
            metric = self._metrics[name].labels(*engine, *([result] if result else []))
            if isinstance(value, list):
                for seconds in value:
                    metric.observe(seconds)
            else:
                metric.inc(value)
