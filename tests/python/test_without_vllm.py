"""Parts of vLLM's connector that need no engine: plain objects stand in for what they import of its packages."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from queue import Queue
from types import ModuleType, SimpleNamespace

import pytest
from stand_ins import TOY, Cls, Config

import kvasir

PACKAGE = Path(kvasir.__file__).parent


def import_vllm(import_over, name: str, others: dict[str, dict] | None = None) -> ModuleType:
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    stand_ins = {
        # Without its `__init__`, which imports all of vLLM.
        "kvasir.vllm": {"__path__": [str(PACKAGE / "vllm")]},
        base: {"KVConnectorMetadata": Cls, "KVConnectorWorkerMetadata": Cls},
        "vllm.logger": {"init_logger": logging.getLogger},
    }
    return import_over(f"kvasir.vllm.{name}", stand_ins | (others or {}))


# vLLM's downloads what is no path.
PATHS = {"vllm.lora.utils": {"get_adapter_absolute_path": lambda path: path}}


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
    adapters, found = import_vllm(import_over, "_identity", PATHS).Adapters(), []
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


COMMIT = "a" * 40


def make_vllm_config(model="org/toy", hf_config=None, cache_dtype="auto", load_format="auto", **others):
    own = {"model": str(model), "hf_config": hf_config, "dtype": "torch.bfloat16", "max_model_len": 512}
    own |= {"hf_overrides": {}, "hf_config_path": None, "revision": None, "quantization": None}
    of_model, load = SimpleNamespace(**(own | others)), SimpleNamespace(load_format=load_format)
    return SimpleNamespace(model_config=of_model, cache_config=SimpleNamespace(cache_dtype=cache_dtype), load_config=load)


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TOY))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_what_vllm_overrides_in_a_folders_configuration_changes_the_identity(import_over, tmp_path):
    module = import_vllm(import_over, "_identity")
    settings = SimpleNamespace(weights=None, revision=None)
    hub, own = make_folder(tmp_path / "models--org--toy" / "snapshots" / COMMIT), make_folder(tmp_path / "toy")
    for folder, weights in [(hub, "org/toy"), (own, "toy")]:

        def spec(theta, folder=folder, eps=1e-6, **changes):
            config = Config(**TOY | {"rope_theta": theta, "rms_norm_eps": eps})
            return module.model_spec(settings, make_vllm_config(folder, config, **changes))

        plain = spec(10_000.0)
        found = [
            spec(20_000.0, hf_overrides={"rope_theta": 20_000.0}),
            spec(30_000.0, hf_overrides=lambda config: config),
            spec(40_000.0, hf_config_path="org/other"),
            # The spec leaves it out.
            spec(20_000.0, eps=1e-5, hf_overrides={"rope_theta": 20_000.0, "rms_norm_eps": 1e-5}),
        ]
        assert len({plain, *found}) == 5
        identities = [json.loads(each.to_json()) for each in (plain, *found)]
        assert {each["weights"] for each in identities} == {weights}
        [revision] = {each["revision"].split(":config:")[0] for each in identities}
        assert revision == COMMIT if folder == hub else revision.startswith("files:")
        assert spec(20_000.0, hf_overrides={"rope_theta": 20_000.0}) == found[0]
        # What vLLM makes of the file itself does not matter.
        assert spec(50_000.0) == plain


def test_a_configuration_from_elsewhere_does_not_identify_the_weights(import_over):
    module = import_vllm(import_over, "_identity")
    config = Config(**TOY, _commit_hash=COMMIT)

    def spec(revision=None, **changes):
        settings = SimpleNamespace(weights=None, revision=revision)
        return module.model_spec(settings, make_vllm_config("org/toy", config, **changes))

    assert json.loads(spec().to_json())["revision"] == COMMIT
    given = json.loads(spec("mine", hf_config_path="org/other").to_json())["revision"]
    assert given.startswith("mine:config:")
    with pytest.raises(kvasir.InputError, match="org/other does not name the commit"):
        spec(hf_config_path="org/other")


def test_weights_that_vllm_rounds_or_makes_up_have_another_identity(import_over):
    module = import_vllm(import_over, "_identity")

    def revision(given=None, of_files=None, **changes) -> str:
        config = Config(**TOY, _commit_hash=COMMIT, **of_files or {})
        spec = module.model_spec(SimpleNamespace(weights=None, revision=given), make_vllm_config("org/toy", config, **changes))
        return json.loads(spec.to_json())["revision"]

    online = [{"quantization": "online", "quantization_config": {"linear": kind}} for kind in ("fp8", "mxfp8")]
    found = [revision(**changes) for changes in ({}, {"quantization": "fp8"}, *online)]
    assert found[0] == COMMIT and len(set(found)) == 4 and found[3] == revision(**online[1])
    # What the files themselves say is in their commit.
    assert revision(quantization="awq", of_files={"quantization_config": {"quant_method": "awq"}}) == COMMIT
    with pytest.raises(kvasir.InputError, match="the weights are random"):
        revision(load_format="dummy")
    assert revision("mine", load_format="dummy") == "mine"


def test_a_longer_context_does_not_change_a_dynamic_rope(import_over):
    module = import_vllm(import_over, "_identity")

    def spec(length, **rope):
        config = Config(**TOY | {"max_position_embeddings": 512, "rope_scaling": rope}, _commit_hash=COMMIT)
        settings = SimpleNamespace(weights=None, revision=None)
        return module.model_spec(settings, make_vllm_config("org/toy", config, max_model_len=length))

    for kind in ("type", "rope_type"):
        dynamic = {kind: "dynamic", "factor": 4.0}
        assert spec(2048, **dynamic) == spec(512, **dynamic)


def test_each_of_vllms_engines_in_a_process_has_its_service(import_over, monkeypatch):
    module = import_vllm(import_over, "_service")

    def connect(*_):
        raise kvasir.InputError("enough is known", "test", "")

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "model_spec", lambda *_: None)

    def service(**changes):
        return module.service_of(module.Settings.of({"url": "http://x"}), make_vllm_config(**changes))

    first = service()
    assert service() is first
    changes = [
        {"model": "org/other"},
        {"dtype": "torch.float16"},
        {"cache_dtype": "fp8"},
        {"max_model_len": 1_024},
        {"hf_overrides": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}},
        {"hf_overrides": print},
        {"hf_config_path": "org/other"},
        {"revision": "b"},
        {"quantization": "fp8"},
    ]
    services = [service(**change) for change in changes]
    assert len({first, *services}) == 10 and [service(**change) for change in changes] == services
    # An engine's end does not end the service of one that is made after it.
    first.close()
    again = service()
    assert again is not first and not again.is_closed and service() is again


def import_scheduler(import_over, **contents) -> ModuleType:
    """Imports it over `contents`, and stand-ins for what needs torch or a service."""

    class Service(Cls):
        is_connected = True

        def look_up(self, *given):
            return SimpleNamespace(found=None)

        def close(self) -> None:
            pass

    layout = {"NULL_BLOCK": 0, "BlockTables": tuple, "check_groups": lambda *_: None, "window_of": lambda _: None}
    stand_ins = {
        "vllm.v1.kv_cache_interface": {"SlidingWindowSpec": Cls},
        "kvasir.vllm._events": {"StoredEvents": Cls},
        "kvasir.vllm._layout": layout,
        "kvasir.vllm._metrics": {"Collector": Cls},
        "kvasir.vllm._requests": {"RequestLog": Service},
        "kvasir.vllm._service": {"Service": Service, "service_of": Service},
    }
    for stand_in in stand_ins.values():
        stand_in |= {name: content for name, content in contents.items() if name in stand_in}
    return import_vllm(import_over, "_scheduler", stand_ins)


def make_scheduler(module: ModuleType):
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id="engine"))
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=16))
    return module.Scheduler(SimpleNamespace(lookup_deadline_s=0.5), config, SimpleNamespace(kv_cache_groups=[group]))


def make_request(name: str, **others) -> SimpleNamespace:
    none = dict.fromkeys(["prompt_embeds", "lora_request", "cache_salt", "kv_transfer_params"])
    lists = {"prompt_token_ids": [1] * 32, "mm_features": [], "skip_reading_prefix_cache": False}
    return SimpleNamespace(request_id=name, **(none | lists | others))


@pytest.mark.parametrize(
    ("params", "due_at"),
    [
        ("soon", None),
        (3, None),
        ([0.5], None),
        ({"kvasir_ttft_s": "soon"}, None),
        ({"kvasir_ttft_s": float("nan")}, None),
        # Too large for a float.
        ({"kvasir_ttft_s": 10**400}, None),
        ({"kvasir_ttft_s": 0.5}, 100.5),
        ({}, None),
        (None, None),
    ],
)
def test_no_parameter_of_a_request_ends_vllm(import_over, params, due_at):
    scheduler = make_scheduler(import_scheduler(import_over))
    scheduler.begin(make_request("a", kv_transfer_params=params), 100.0)
    assert scheduler._tracked["a"].due_at == due_at and scheduler._tracked["a"].lookup is not None
    scheduler.close()


def test_a_request_that_cannot_be_identified_runs_without_kvasir(import_over, caplog):
    scheduler = make_scheduler(import_scheduler(import_over))
    # Half a character, which JSON can have and UTF-8 cannot.
    bad = [make_request("a", cache_salt="\ud800"), make_request("b", mm_features=[object()])]
    for request in bad:
        scheduler.begin(request, 0.0)
        assert scheduler.loadable(request, 0, 0.0) == (0, False)
    scheduler.begin(make_request("c", cache_salt="ours"), 0.0)
    assert list(scheduler._tracked) == ["c"]
    # With its traceback, and once a minute: clients cause it.
    [said] = [record for record in caplog.records if "unexpected error" in record.message]
    assert said.exc_info is not None
    scheduler.close()


SURPRISES = [
    FileNotFoundError("config.json"),
    PermissionError("/models"),
    OSError("AF_UNIX path too long"),
    ImportError("cannot import name '_get_attn_isa'"),
    AttributeError("no attribute 'block_size'"),
    kvasir.KvasirError("others can enter the folder", "unsafe_folder"),
    kvasir.InputError("not supported", "unknown_layout"),
]


@pytest.mark.parametrize("surprise", SURPRISES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["check_groups", "service_of", "RequestLog"])
def test_vllm_runs_without_a_scheduler_that_cannot_start(import_over, caplog, surprise, place):
    def fail(*_):
        raise surprise

    scheduler = make_scheduler(import_scheduler(import_over, **{place: fail}))
    [said] = [record for record in caplog.records if "vLLM runs without Kvasir" in record.message]
    assert ("unexpected" in said.message) == (not isinstance(surprise, kvasir.KvasirError))
    request = make_request("a")
    scheduler.begin(request, 0.0)
    assert scheduler.loadable(request, 0, 0.0) == (0, False)
    assert scheduler.finished(request, ()) is False
    scheduler.close()


@pytest.mark.parametrize("surprise", SURPRISES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["Blocks", "service_of", "Gatherer"])
def test_vllm_runs_without_a_worker_that_cannot_start(import_over, caplog, surprise, place):
    def fail(*_):
        raise surprise

    module = import_worker(import_over)
    ranks = SimpleNamespace(is_first=True, size=2)
    service = SimpleNamespace(heads=[], close=lambda: None)
    contents = {"Blocks": lambda *_: SimpleNamespace(layers=0), "service_of": lambda *_: service}
    contents |= {"Ranks": SimpleNamespace(of=lambda *_: ranks), place: fail}
    for name, content in contents.items():
        setattr(module, name, content)
    worker = module.Worker(SimpleNamespace(save_queue_mb=1), None, None)
    worker.register({})
    assert worker._report.unusable
    [said] = [record for record in caplog.records if "vLLM runs without Kvasir" in record.message]
    assert ("unexpected" in said.message) == (not isinstance(surprise, kvasir.KvasirError))
    worker.close()


def test_a_rank_of_another_engine_does_not_give_its_rows(import_over, monkeypatch):
    np = pytest.importorskip("numpy")
    stand_ins = {
        "kvasir.vllm._layout": {"Array": object, "Rows": object},
        "vllm.distributed": {"get_tensor_model_parallel_rank": lambda: 0},
    }
    module = import_vllm(import_over, "_ranks", stand_ins)
    monkeypatch.setattr(module, "_PART_S", 5.0)
    first, second = (module.Ranks(rank, 2, [2], f"test-{os.getpid()}") for rank in range(2))

    def rows(value, tokens):
        return [tuple(np.full((1, tokens, 4), value, np.uint16) for _ in range(2))]

    gatherer, sender = module.Gatherer(first), module.Sender(second)
    # Numbered as the first rank's own: of fewer, of more and of other tokens, and without any rows.
    for begin, end, has_rows in [(0, 16, True), (0, 64, True), (16, 32, True), (0, 16, False)]:
        sender.send(module.Part(1, begin, end, begin, None), rows(7, end) if has_rows else None)
    own = module.Part(1, 0, 32, 0, None)
    sender.send(own, rows(2, 32))
    gathered = gatherer.gather(own, rows(1, 32))
    gatherer.close()
    assert gathered is not None
    said, [(keys, values)] = gathered
    assert said == own
    assert all((plane == [[[1]], [[2]]]).all() for plane in (keys, values))


def test_vllm_saves_in_steps_that_compute_nothing(import_over):
    base, done, ended = "vllm.distributed.kv_transfer.kv_connector.v1.base", [], []
    plan = type("StepPlan", (), {"saves": [SimpleNamespace(request_id="a")]})()

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

        def finished(self, requests, _) -> None:
            done.append("finished")
            ended.append(requests)

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

    save, finish = connector.wait_for_save, lambda: connector.get_transfer_results({"a", "b"})
    assert step(without, finish) == ["save", "finished"]
    # As vLLM is to be, and as it is where it calls this outside its context.
    assert step(without, save, finish) == ["save", "finished"]
    assert step(with_forward, save, finish) == ["save", "finished"]
    # A draft model still writes to the blocks, and what was copied for a request's last save is kept until then.
    assert step(with_forward, finish, save) == ["finished", "save"]
    assert ended == [{"a", "b"}] * 3 + [{"b"}]


def import_worker(import_over) -> ModuleType:
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
    return import_over("kvasir.vllm._worker", stand_ins)


def test_loads_that_waited_until_they_were_late_are_not_begun(import_over):
    worker = import_worker(import_over).Worker(SimpleNamespace(save_queue_mb=1), None, None)
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


def test_loads_of_vllm_may_fall_to_the_soft_quality(import_over):
    asked = []

    class Session:
        matched = 16

        def load(self, rows, **options):
            asked.append(options)
            return SimpleNamespace(bytes=0, losses=[], prefix_tokens=0)

    blocks = SimpleNamespace(empty=lambda _: SimpleNamespace(layers=[]), begin_of=lambda token: token, can_load_in_part=True)
    plan = SimpleNamespace(session=Session(), prompt=None, start=0, end=16)
    module = import_worker(import_over)
    for soft in ("small", None):
        worker = module.Worker(SimpleNamespace(save_queue_mb=1, soft_quality=soft), None, None)
        worker._service, worker._blocks, worker._ranks = object(), blocks, SimpleNamespace(part=None)
        worker._lossy = SimpleNamespace(note=lambda *_: None)
        assert worker._fetched(plan, time.monotonic() + 30) == (None, 0)
    assert [options["soft_quality"] for options in asked] == ["small", None]
    assert all(0 < options["deadline"] <= 30 for options in asked)


def test_a_soft_quality_that_is_not_below_the_quality_stops_the_start(import_over):
    settings = import_vllm(import_over, "_settings").Settings
    for given in ({"soft_quality": "balanced"}, {"quality": "balanced", "soft_quality": "small"}, {}):
        read = settings.of({"url": "http://x", **given})
        assert read.soft_quality == given.get("soft_quality")
    for given in (
        {"soft_quality": "transparent"},
        {"soft_quality": "exact"},
        {"soft_quality": "tiny"},
        {"quality": "small", "soft_quality": "balanced"},
    ):
        with pytest.raises(kvasir.InputError, match="soft_quality is"):
            settings.of({"url": "http://x", **given})
