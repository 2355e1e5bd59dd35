"""Kvasir for vLLM: prefixes that were computed before, also by other engines, are loaded instead of recomputed.

``` sh
vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvasirConnector", "kv_connector_module_path": "kvasir.vllm",
    "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"url": "http://kvasir:7480"}}'
```

vLLM creates the connector in the scheduler, which looks prompts up and plans (`_scheduler`), and in each worker, which moves
keys and values between vLLM's blocks and the service (`_worker`). The scheduler sends a `StepPlan` to the workers at each step.
"""

from __future__ import annotations

import time
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from ..errors import KvasirError
from ._metrics import PromMetrics, Stats
from ._plan import StepPlan, WorkerReport
from ._scheduler import Scheduler
from ._settings import Settings
from ._worker import Worker

__all__ = ["KvasirConnector"]

_SINCE = (0, 30)
if tuple(int(part) for part in vllm.__version__.split(".")[:2] if part.isdigit()) < _SINCE:
    raise KvasirError(f"vLLM {vllm.__version__} is not supported", "wrong_version", "install vllm>=0.30")


class KvasirConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads and saves the caches of prompts, for ``--kv-transfer-config``.

    No step waits for the service: lookups run in the background, loads are asynchronous, saves are copied and sent in the
    background. A slow or unavailable service delays a request by at most its deadline.

    Raises
    ------
    InputError
        ``invalid_setting`` for an unknown key of ``kv_connector_extra_config``, or an invalid value.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        settings = Settings.of(self._kv_transfer_config.kv_connector_extra_config)
        self._scheduler = self._worker = None
        self._unsaved: StepPlan | None = None
        # When the forward of a step began that was not reported yet.
        self._forward_at: float | None = None
        self._is_without_forward = False
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(settings, vllm_config, kv_cache_config)
        else:
            self._worker = Worker(settings, vllm_config, kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """A dropped save is only a later miss, and no request waits for saves."""
        return False

    # In the scheduler.

    def on_new_request(self, request: Any) -> None:
        """Look a prompt up in the background."""
        self._planner.begin(request, time.monotonic())

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return the tokens that can be loaded after those that vLLM has; None while the lookup runs."""
        return self._planner.loadable(request, num_computed_tokens, time.monotonic())

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan a load into the blocks of a request."""
        if num_external_tokens > 0:
            self._planner.allocated(request, blocks.get_block_ids(), num_external_tokens, time.monotonic())

    def build_connector_meta(self, scheduler_output: Any) -> StepPlan:
        """Return the loads and saves of a step."""
        return self._planner.plan(scheduler_output, time.monotonic())

    def update_connector_output(self, connector_output: Any) -> None:
        """Process the workers' reports."""
        if isinstance(connector_output.kv_connector_worker_meta, WorkerReport):
            self._planner.reported(connector_output.kv_connector_worker_meta)

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """Save the generated tokens; their blocks are kept until they are copied."""
        return self._planner.finished(request, block_ids), None

    def take_events(self) -> list[Any]:
        """Return the events since the last call."""
        return self._planner.events.take()

    # In a worker.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Register the blocks, and check that their layout is supported."""
        self._mover.register(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Note when a step's forward begins: vLLM calls this immediately before it."""
        super().bind_connector_metadata(connector_metadata)
        self._forward_at = time.monotonic()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start the loads of a step in the background."""
        plan = self._get_connector_metadata()
        assert isinstance(plan, StepPlan)
        self._mover.load(plan)
        self._unsaved = plan
        # vLLM runs no forward; or it calls this outside its context, and then `wait_for_save` before it asks for results.
        self._is_without_forward = forward_context.attn_metadata is None

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: a request is scheduled once all its layers are loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: blocks are copied at the end of a step."""

    def wait_for_save(self) -> None:
        """Copy the blocks that the step's plan saves, once."""
        self._report_forward()
        plan, self._unsaved = self._unsaved, None
        if plan is not None:
            self._mover.save(plan)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return requests whose blocks were copied, and requests whose loads have ended."""
        self._report_forward()
        if self._is_without_forward:
            # vLLM does not call `wait_for_save` then (vllm#57775). With a forward it may call it later, after drafting.
            self.wait_for_save()
        if self._unsaved is not None:
            # The last save of a request needs the rows that were copied for it.
            finished_req_ids = finished_req_ids - {save.request_id for save in self._unsaved.saves}
        return self._mover.finished(finished_req_ids, time.monotonic())

    def _report_forward(self) -> None:
        """Report how long the step's forward took, at the first call after it. On a CPU it has ended when it returns."""
        begun_at, self._forward_at = self._forward_at, None
        if begun_at is not None and self._unsaved is not None:
            self._mover.observe(self._unsaved, time.monotonic() - begun_at)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return blocks that a load did not write."""
        return self._mover.take_failed_blocks()

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """Return the worker's report for the scheduler."""
        return self._mover.take_report()

    # In both, and in the process that serves metrics.

    def get_kv_connector_stats(self) -> Stats | None:
        """Return the counts since the last call."""
        side = self._scheduler or self._worker
        return None if side is None else side.metrics.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        """Return stats from their serialised form."""
        return Stats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> PromMetrics:
        """Register the metrics."""
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Stop the threads, after sending copied blocks for a limited time."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    @property
    def _planner(self) -> Scheduler:
        assert self._scheduler is not None, "vLLM called a method of the scheduler in a worker"
        return self._scheduler

    @property
    def _mover(self) -> Worker:
        assert self._worker is not None, "vLLM called a method of a worker in the scheduler"
        return self._worker
