"""Parts of the engines' back ends that need no engine: plain objects stand in for what they import of its packages."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from queue import Queue
from types import ModuleType, SimpleNamespace

import pytest

import kvasir

PACKAGE = Path(kvasir.__file__).parent


@pytest.fixture
def import_over(monkeypatch):
    """Imports a module of the package; `stand_ins` have the contents of the engine's modules, by their names."""
    before = set(sys.modules)

    def load(name: str, stand_ins: dict[str, dict]) -> ModuleType:
        for theirs, contents in stand_ins.items():
            made = ModuleType(theirs)
            made.__dict__.update(contents)
            monkeypatch.setitem(sys.modules, theirs, made)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if name.startswith("kvasir."):
            del sys.modules[name]


class Cls:
    """Any class of an engine's: a base that does nothing."""

    def __init__(self, *_) -> None:
        pass


class Tensor(list):
    """torch's."""


def test_transformers_leaves_alone_what_token_ids_do_not_tell_apart(import_over):
    stand_ins = {"torch": {"Tensor": Tensor}, "transformers": {"__version__": "5.0.0", "DynamicCache": Cls}}
    module = import_over("kvasir.transformers", stand_ins)
    done = []

    class Cache(module.KvasirCache):
        def __init__(self) -> None:
            pass

        def load(self, *given):
            done.append(("load", *given))
            return "cache"

        def store(self, *given):
            done.append(("store", *given))

    class Model:
        generation_config = SimpleNamespace(num_beams=1)

        def generate(self, ids, **options):
            done.append((ids, options))
            return "output"

    model, one, two, mask = Model(), Tensor([[1, 2]]), Tensor([[1, 2], [3, 4]]), Tensor([[1, 1]])
    left_alone = [
        (one, {"pixel_values": Tensor()}),
        (one, {"attention_mask": mask, "image_grid_thw": Tensor()}),
        (one, {"inputs_embeds": Tensor()}),
        (one, {"images": [Tensor()]}),
        (one, {"vision": {"patches": (Tensor(),)}}),
        (one, {"position_ids": Tensor()}),
        (two, {}),
    ]
    with Cache().reuse(model):
        for ids, options in left_alone:
            done.clear()
            assert model.generate(input_ids=ids, **options) == "output" and done == [(ids, options)], options
        for ids, options in [(one, {"max_new_tokens": 1}), (one, {"attention_mask": mask}), (two, {"attention_mask": mask})]:
            done.clear()
            assert model.generate(ids, **options) == "output"
            hidden = options.get("attention_mask")
            used = {"past_key_values": "cache", **options}
            assert done == [("load", ids, hidden), (ids, used), ("store", "output", "cache", hidden)], options


def import_vllm(import_over, name: str) -> ModuleType:
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    stand_ins = {
        # Without its `__init__`, which imports all of vLLM.
        "kvasir.vllm": {"__path__": [str(PACKAGE / "vllm")]},
        base: {"KVConnectorMetadata": Cls, "KVConnectorWorkerMetadata": Cls},
        "vllm.logger": {"init_logger": logging.getLogger},
    }
    return import_over(f"kvasir.vllm.{name}", stand_ins)


def test_a_lossy_prefix_that_is_in_use_is_not_forgotten(import_over, monkeypatch):
    lossy = import_vllm(import_over, "_lossy")
    monkeypatch.setattr(lossy, "_PREFIXES_MAX", 2)
    loss = kvasir.Loss(0.1, 3, 1)
    used, unused, newer = (lossy.Prompt([first] * 32) for first in range(3))
    known = lossy.LossyPrefixes()
    for prompt in (used, unused):
        known.note(prompt, [(range(16), loss)])
    assert known.beneath(used) == loss
    known.note(newer, [(range(16), loss)])
    assert [known.beneath(prompt) for prompt in (used, unused, newer)] == [loss, None, loss]


def test_an_adapters_scale_is_part_of_its_identity(import_over, tmp_path):
    adapters, found = import_vllm(import_over, "_identity").Adapters(), []
    for number, alpha in enumerate((16, 32, 16)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
        (folder / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": alpha}))
        lora = SimpleNamespace(lora_name="helper", lora_path=str(folder), lora_int_id=number)
        until = time.monotonic() + 30
        while (identity := adapters.identity(lora)) is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        found.append(identity)
    adapters.close()
    # Engines may have the same adapter in different folders.
    assert found[0] == found[2] != found[1] and all(identity.startswith("helper@") for identity in found)


def test_vllm_connects_from_its_zone(import_over, monkeypatch):
    service, asked = import_vllm(import_over, "_service"), Queue()

    def connect(url, token, namespace, zone):
        asked.put(zone)
        raise kvasir.InputError("enough is known", "test", "")

    monkeypatch.setattr(service, "connect", connect)
    monkeypatch.setattr(service, "model_spec", lambda *_: None)
    monkeypatch.setenv("KVASIR_ZONE", "eu-1a")
    for given, zone in [({}, "eu-1a"), ({"zone": "eu-1b"}, "eu-1b")]:
        service.Service(service.Settings.of({"url": "http://x", **given}), None)
        assert asked.get(timeout=30) == zone


class Chunk:
    """A part of LMCache's memory."""

    data_ptr, references = 0, 1

    def get_size(self) -> int:
        return 8

    def ref_count_up(self) -> None:
        self.references += 1

    def ref_count_down(self) -> None:
        self.references -= 1


def test_a_store_that_lmcache_abandons_holds_its_memory(import_over, monkeypatch):
    connector = "lmcache.v1.storage_backend.connector"
    stand_ins = {
        "lmcache.logging": {"init_logger": logging.getLogger},
        "lmcache.utils": {"CacheEngineKey": Cls},
        "lmcache.v1.exceptions": {"IrrecoverableException": Exception},
        "lmcache.v1.memory_management": {"MemoryObj": Cls},
        connector: {"ConnectorAdapter": Cls, "ConnectorContext": Cls},
        f"{connector}.base_connector": {"RemoteConnector": type("RemoteConnector", (Cls,), {"full_chunk_size_bytes": 8})},
    }
    module = import_over("kvasir.lmcache_remote", stand_ins)
    stores: list[Future] = []

    def store(keys, pages):
        stores.append(Future())
        return stores[-1]

    monkeypatch.setattr(module, "PageStore", lambda *_: SimpleNamespace(names=lambda _, hashes, salt: hashes, store=store))
    config = SimpleNamespace(extra_config={"remote_storage_plugin.kvasir.url": "http://x"}, use_layerwise=False)
    metadata = SimpleNamespace(chunk_size=64)
    context = SimpleNamespace(config=config, metadata=metadata, plugin_name="kvasir", local_cpu_backend=None)
    made = module.KvasirAdapter().create_connector(context)
    key = SimpleNamespace(model_name="m", dtype="bf16", world_size=1, worker_id=0, tags=None, chunk_hash_hex="a")

    async def main() -> None:
        waited, abandoned = Chunk(), Chunk()
        putting = [asyncio.create_task(made.batched_put([key], [chunk])) for chunk in (waited, abandoned)]
        await asyncio.sleep(0)
        putting[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting[1]
        # What LMCache held itself.
        abandoned.ref_count_down()
        assert not stores[1].done() and abandoned.references == 1
        for storing in stores:
            storing.set_result(["stored"])
        await putting[0]
        assert (waited.references, abandoned.references) == (1, 0)

    asyncio.run(main())


def test_vllm_saves_in_steps_that_compute_nothing(import_over):
    base, done = "vllm.distributed.kv_transfer.kv_connector.v1.base", []
    plan = type("StepPlan", (), {})()

    class Connector(Cls):
        """vLLM's base class."""

        def __init__(self, **_) -> None:
            self._kv_transfer_config = SimpleNamespace(kv_connector_extra_config={})

        def _get_connector_metadata(self):
            return plan

    class Worker(Cls):
        def load(self, plan) -> None:
            done.append("load")

        def save(self, plan) -> None:
            done.append("save")

        def finished(self, *_) -> None:
            done.append("finished")

    stand_ins = {
        "vllm": {"__version__": "0.32.0"},
        base: dict.fromkeys(["KVConnectorTransferResults", "SupportsHMA"], type("Other", (), {}))
        | {"KVConnectorBase_V1": Connector, "KVConnectorRole": SimpleNamespace(SCHEDULER=0)},
        "kvasir.vllm._metrics": {"PromMetrics": Cls, "Stats": Cls},
        "kvasir.vllm._plan": {"StepPlan": type(plan), "WorkerReport": Cls},
        "kvasir.vllm._scheduler": {"Scheduler": Cls},
        "kvasir.vllm._settings": {"Settings": SimpleNamespace(of=lambda _: None)},
        "kvasir.vllm._worker": {"Worker": Worker},
    }
    connector = import_over("kvasir.vllm", stand_ins).KvasirConnector(None, 1, None)
    with_forward, without = (SimpleNamespace(attn_metadata=metadata) for metadata in ({}, None))

    def step(context, *calls) -> list[str]:
        done.clear()
        connector.start_load_kv(context)
        for call in calls:
            call()
        return done[1:]

    save, finish = connector.wait_for_save, lambda: connector.get_transfer_results(set())
    assert step(without, finish) == ["save", "finished"]
    # As vLLM is to be, and as it is where it calls this outside its context.
    assert step(without, save, finish) == ["save", "finished"]
    assert step(with_forward, save, finish) == ["save", "finished"]
    # A draft model still writes to the blocks.
    assert step(with_forward, finish, save) == ["finished", "save"]


def test_loads_that_waited_until_they_were_late_are_not_begun(import_over):
    plans = ["CopyPlan", "LoadPlan", "Prompt", "SavePlan", "StepPlan"]
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    stand_ins = {
        "kvasir.vllm": {"__path__": [str(PACKAGE / "vllm")]},
        base: {"KVConnectorTransferResults": lambda *given: given},
        "vllm.logger": {"init_logger": logging.getLogger},
        "kvasir.vllm._layout": {"BlockRows": Cls, "Blocks": Cls, "Rows": Cls, "Taken": Cls},
        "kvasir.vllm._metrics": {"Collector": lambda: SimpleNamespace(count=lambda *given: None, took=lambda *given: None)},
        "kvasir.vllm._plan": {**dict.fromkeys(plans, Cls), "WorkerReport": SimpleNamespace},
        "kvasir.vllm._ranks": dict.fromkeys(["Gatherer", "Part", "Ranks", "Sender"], Cls),
        "kvasir.vllm._service": {"Service": Cls, "service_of": None},
        "kvasir.vllm._settings": {"Settings": Cls},
        "kvasir.vllm._windows": {"CopiedRows": Cls},
    }
    worker = import_over("kvasir.vllm._worker", stand_ins).Worker(SimpleNamespace(save_queue_mb=1), None, None)
    begun, free = [], threading.Event()

    def fetched(plan, due_at):
        begun.append(plan.request_id)
        free.wait(30)
        return None, 0

    worker._fetched, worker._over = fetched, lambda plan, count: worker._received.add(plan.request_id)
    plans = [SimpleNamespace(request_id=str(n), budget_s=0.2, start=0, end=16) for n in range(64)]
    worker.load(SimpleNamespace(loads=plans))
    while len(begun) < 16:
        time.sleep(0.01)
    _, received, _ = worker.finished(set(), time.monotonic() + 1)
    assert received == {plan.request_id for plan in plans}
    late = SimpleNamespace(request_id="late", budget_s=60.0, start=0, end=16)
    worker.load(SimpleNamespace(loads=[late]))
    free.set()
    worker._pool.shutdown(wait=True)
    assert len(begun) == 17 and begun[-1] == "late"
