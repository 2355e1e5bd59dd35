"""What vLLM's connector learns of prefills; plain objects stand in for what it imports of vLLM's packages."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest
from stand_ins import Cls
from test_without_vllm import import_scheduler, import_vllm, import_worker, make_request, make_scheduler


def import_connector(import_over, plan, observed: list) -> ModuleType:
    """The connector over vLLM's base class, whose metadata is `plan`, and a worker that notes what it is told."""

    class Base(Cls):
        def __init__(self, **_) -> None:
            self._kv_transfer_config = SimpleNamespace(kv_connector_extra_config={})

        def bind_connector_metadata(self, connector_metadata) -> None:
            self.bound = connector_metadata

        def _get_connector_metadata(self):
            return self.bound

    class Worker(Cls):
        def load(self, _) -> None:
            pass

        def save(self, _) -> None:
            pass

        def finished(self, *_) -> None:
            pass

        def observe(self, plan, seconds) -> None:
            observed.append((plan, seconds))

    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    stand_ins = {
        "vllm": {"__version__": "0.32.0"},
        base: dict.fromkeys(["KVConnectorTransferResults", "SupportsHMA"], type("Other", (), {}))
        | {"KVConnectorBase_V1": Base, "KVConnectorRole": SimpleNamespace(SCHEDULER=0)},
        "kvasir.vllm._metrics": {"PromMetrics": Cls, "Stats": Cls},
        "kvasir.vllm._plan": {"StepPlan": type(plan), "WorkerReport": Cls},
        "kvasir.vllm._scheduler": {"Scheduler": Cls},
        "kvasir.vllm._settings": {"Settings": SimpleNamespace(of=lambda _: None)},
        "kvasir.vllm._worker": {"Worker": Worker},
    }
    return import_over("kvasir.vllm", stand_ins)


@pytest.mark.parametrize("is_load_first", [False, True], ids=["loads after the forward", "loads before it"])
def test_a_forward_is_timed_from_its_begin_to_the_first_call_after_it_and_once(import_over, monkeypatch, is_load_first):
    observed, clock = [], [0.0]
    plan = type("StepPlan", (), {"saves": []})()
    module = import_connector(import_over, plan, observed)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    connector, context = module.KvasirConnector(None, 1, None), SimpleNamespace(attn_metadata={})

    def step(*calls) -> list:
        """Between the steps passes a minute, a forward takes two seconds, and each call after it one."""
        observed.clear()
        clock[0] += 60.0
        connector.bind_connector_metadata(plan)
        if is_load_first:
            connector.start_load_kv(context)
        clock[0] += 2.0
        if not is_load_first:
            connector.start_load_kv(context)
        for call in calls:
            call()
            clock[0] += 1.0
        return list(observed)

    save, finish = connector.wait_for_save, lambda: connector.get_transfer_results(set())
    assert step(save, finish) == [(plan, 2.0)]
    # Drafting comes before the save.
    assert step(finish, save) == [(plan, 2.0)]


def test_only_the_steps_that_compute_a_part_of_one_prompt_and_nothing_else_are_prefills(import_over):
    scheduler = make_scheduler(import_scheduler(import_over))
    scheduler._settings.chunk_tokens = 1536
    for name in ("a", "b"):
        counts = {"num_tokens": 1000, "num_prompt_tokens": 1000, "num_computed_tokens": 0}
        scheduler.begin(make_request(name, prompt_token_ids=[1] * 1000, **counts), 0.0)
        # Nothing of it needs to be saved.
        scheduler._tracked[name].saved = 1000

    def prefill(computed=0, **scheduled) -> tuple[int, int] | None:
        scheduler._tracked["a"].request.num_computed_tokens = computed
        return scheduler.plan(SimpleNamespace(num_scheduled_tokens=scheduled), 0.0).prefill

    assert prefill(a=256) == (0, 256)
    assert prefill(256, a=744) == (256, 1000)
    assert prefill(a=256, b=256) is None, "two prompts"
    assert prefill(a=256, b=1) is None, "a prompt beside a generated token"
    assert prefill(1000, a=1) is None, "a generated token"
    assert prefill(990, a=10) is None, "what is left after a load"
    assert prefill(990, a=30) is None, "a preempted request: its answer is computed with the end of its prompt"
    assert prefill(c=256) is None, "a request that is not known by its tokens"
    assert prefill() is None
    scheduler.close()


def test_a_worker_reports_prefills_once_it_is_connected(import_over):
    told, services = [], import_vllm(import_over, "_service")
    service = services.Service.__new__(services.Service)
    service._model = None
    worker = import_worker(import_over).Worker(SimpleNamespace(save_queue_mb=1), None, None)
    prefill, other = SimpleNamespace(prefill=(256, 512)), SimpleNamespace(prefill=None)
    worker.observe(prefill, 0.5)
    worker._service = service
    worker.observe(prefill, 0.5)
    assert told == []
    service._model = SimpleNamespace(observe_prefill=lambda *given: told.append(given))
    worker.observe(prefill, 0.5)
    worker.observe(other, 0.5)
    assert told == [(range(256, 512), 0.5)]
