"""What vLLM's metrics and its log say of the connector: counts and times of lookups, loads and saves.

Scheduler and workers each collect a `Stats`, which vLLM takes at every step, adds up, and gives to `PromMetrics` where it serves
``/metrics``. Each interval its log has a line of them.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats


class _Counted(NamedTuple):
    """A counter: what it counts, and its label where it has one."""

    text: str
    label: str | None = None


COUNTERS = {
    "lookups": _Counted("Lookups of prompts: hit, miss, late (not answered by the deadline), failed.", "result"),
    "loads": _Counted("Loads: whole, partial, failed, late (not over by the deadline).", "result"),
    "load_tokens": _Counted("Tokens that were loaded and are in vLLM's blocks."),
    "load_bytes": _Counted("Bytes that loads brought over the network."),
    "saves": _Counted(
        "Saves: stored, present (stored already), lossy (too far from exact), dropped (the queue was full), "
        "orphaned (what they build on is not stored), failed.",
        "result",
    ),
    "save_bytes": _Counted("Bytes that saves sent."),
}
HISTOGRAMS = {
    "lookup_seconds": "How long lookups took.",
    "load_seconds": "From the step that planned a load to its end.",
    "save_seconds": "How long saves took, without their time in the queue.",
}
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# Times of one kind that are kept between two steps.
_TIMES_MAX = 1_000


class Stats(KVConnectorStats):
    """Counts by ``name`` or ``name:result``, and lists of seconds. Plain values: vLLM sends them between processes."""

    data: dict[str, Any]

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter of `COUNTERS`, named with its result where it has one."""
        self.data[name] = self.data.get(name, 0) + amount

    def took(self, name: str, seconds: float) -> None:
        """Take note of a time of `HISTOGRAMS`."""
        times = self.data.setdefault(name, [])
        if len(times) < _TIMES_MAX:
            times.append(seconds)

    def reset(self) -> None:
        """Begin anew."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> Stats:
        """Add what another process, or another moment, has counted."""
        for name, value in other.data.items():
            if isinstance(value, list):
                for seconds in value:
                    self.took(name, seconds)
            else:
                self.count(name, value)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Give counts and median times, for the log."""
        return {
            name: round(sorted(value)[len(value) // 2], 4) if isinstance(value, list) else value
            for name, value in sorted(self.data.items())
        }

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data


class Collector:
    """The stats since vLLM took them last, for threads."""

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
        """Give what was collected, and begin anew."""
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
