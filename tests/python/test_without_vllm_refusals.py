"""What vLLM's connector refuses, and what it says then; plain objects stand in for what it imports of its packages."""

from __future__ import annotations

import logging
import time
from types import ModuleType, SimpleNamespace

import pytest
from stand_ins import Cls
from test_without_vllm import PATHS, import_scheduler, import_vllm, import_worker, make_request, make_scheduler

import kvasir


def import_identity(import_over, **paths) -> ModuleType:
    """`paths` are those of adapters by their names in the Hub."""
    return import_vllm(import_over, "_identity", {"vllm.lora.utils": {"get_adapter_absolute_path": lambda path: paths[path]}})


def identify(adapters, **lora) -> str:
    until, adapter = time.monotonic() + 30, SimpleNamespace(**{"lora_name": "helper", "lora_int_id": 1} | lora)
    while (identity := adapters.identity(adapter)) is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    return identity


def test_an_adapter_of_the_hub_is_identified_by_its_files(import_over, tmp_path):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    own = {"hub": str(tmp_path), str(tmp_path): str(tmp_path)}
    adapters = import_identity(import_over, **own).Adapters()
    assert identify(adapters, lora_path="hub") == identify(adapters, lora_path=str(tmp_path))
    adapters.close()


def test_an_adapter_in_place_of_another_one_is_not_identified_by_its_files(import_over, tmp_path):
    """It has the number of that one, and may have its path."""
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    module = import_vllm(import_over, "_identity", PATHS)
    adapters = module.Adapters()
    assert identify(adapters, lora_path=str(tmp_path), load_inplace=False)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"other weights")
    request = make_request("a", lora_request=SimpleNamespace(lora_name="helper", lora_int_id=1, lora_path=str(tmp_path)))
    request.lora_request.load_inplace = True
    with pytest.raises(kvasir.InputError, match="helper was loaded in place of another one"):
        module.prompt_of(request, adapters)
    adapters.close()


@pytest.mark.parametrize(("others", "is_known"), [({}, True), ({"resumable": False}, True), ({"resumable": True}, False)])
def test_a_prompt_that_comes_in_parts_is_not_known_by_its_tokens(import_over, others, is_known):
    """vLLM adds later parts, and their images, to the request."""
    assert import_vllm(import_over, "_identity").is_known_by_tokens(make_request("a", **others)) == is_known


def import_layout(import_over) -> ModuleType:
    names = ["ChunkedLocalAttentionSpec", "FullAttentionSpec", "MambaSpec", "MLAAttentionSpec", "SlidingWindowSpec"]
    interface = {name: type(name, (), {"block_size": 32, "kv_quant_mode": None}) for name in names}
    interface["KVQuantMode"] = SimpleNamespace(NONE=None, FP8_PER_TENSOR="fp8")
    return import_vllm(import_over, "_layout", {"torch": {}, "vllm.v1.kv_cache_interface": interface})


def test_models_that_vllm_cannot_start_after_a_prefix_are_refused(import_over):
    """The mean over a prompt is one of these: vLLM's engine ends where a part of the prompt was loaded."""
    pytest.importorskip("numpy")
    module = import_layout(import_over)
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=module.FullAttentionSpec())])

    def check(**model) -> None:
        config = SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=1), model_config=SimpleNamespace(**model))
        module.check_groups(config, cache)

    check()
    check(is_prefix_caching_supported=True)
    with pytest.raises(kvasir.InputError, match="prompts as a whole"):
        check(is_prefix_caching_supported=False)


def test_a_cache_with_the_layers_of_a_draft_model_is_refused(import_over, caplog):
    module = import_worker(import_over)
    module.Blocks = lambda *_: SimpleNamespace(layers=3)
    module.service_of = lambda *_: SimpleNamespace(heads=[2, 2], close=lambda: None)
    module.Ranks = SimpleNamespace(of=lambda *_: SimpleNamespace(is_first=True, size=1))
    worker = module.Worker(SimpleNamespace(save_queue_mb=1), None, None)
    worker.register({})
    assert worker._report.unusable == "the cache has 3 layers, and the model 2" and not worker._saver.is_alive()
    [said] = [record.message for record in caplog.records if "vLLM runs without Kvasir" in record.message]
    assert "draft model" in said and "unexpected" not in said
    worker.close()


def test_what_is_stored_below_the_quality_is_no_plain_miss(import_over, caplog):
    """Nobody stores it better: each request computes it, until someone reads this line."""
    counted = []

    class Collector(Cls):
        def count(self, name) -> None:
            counted.append(name)

        def took(self, *_) -> None:
            pass

    class Service(Cls):
        is_connected = True

        def look_up(self, *_):
            return SimpleNamespace(found=(0, 0.01, None, 608))

        def close(self) -> None:
            pass

    scheduler = make_scheduler(import_scheduler(import_over, Collector=Collector, service_of=Service))
    scheduler._settings.quality = "exact"
    request = make_request("a", num_tokens=32)
    scheduler.begin(request, 0.0)
    assert scheduler.loadable(request, 0, 0.0) == scheduler.loadable(request, 0, 0.0) == (0, False)
    assert counted == ["lookups:below_quality"] and scheduler._tracked["a"].reason == "below_quality"
    [said] = [record.message for record in caplog.records]
    assert "608 tokens of request a are stored below quality exact" in said and "namespace" in said
    scheduler.close()


FAILURES = [FileNotFoundError(2, "no such file", "none.kvp"), PermissionError(13, "denied", "none.kvp")]


@pytest.mark.parametrize("error", [*FAILURES, kvasir.ForkError("forked, none.kvp was not read", "forked")])
def test_what_ends_the_attempts_to_connect_is_logged(import_over, monkeypatch, caplog, error):
    """The thread that finds it has nobody else to tell."""
    module = import_vllm(import_over, "_service")
    caplog.set_level(logging.ERROR)

    def model(*_, **__):
        raise error

    monkeypatch.setattr(module, "connect", lambda *_: SimpleNamespace(model=model))
    monkeypatch.setattr(module, "model_spec", lambda *_: None)
    service = module.Service(module.Settings.of({"url": "http://x", "profile": "none.kvp"}), None)
    until = time.monotonic() + 30
    while not caplog.records:
        assert time.monotonic() < until
        time.sleep(0.01)
    [said] = [record.message for record in caplog.records]
    assert said.startswith("vLLM runs without Kvasir") and "none.kvp" in said and not service.is_connected


def test_engines_that_start_together_record_their_requests(import_over, monkeypatch, tmp_path, caplog):
    """Each removes old records, also those that another one has just removed."""
    module = import_vllm(import_over, "_requests")
    monkeypatch.setattr(module, "private_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "_EVERY_S", 0.01)
    for number in range(module._FILES_KEPT):
        (tmp_path / f"requests-{number}.jsonl").write_text("{}")
    # One that is listed, and then is not there.
    (tmp_path / "requests-gone.jsonl").symlink_to(tmp_path / "none")
    log = module.RequestLog("engine")
    log.add({"request": "a"})
    log.close()
    log._writer.join(30)
    assert (tmp_path / f"{log._name}.jsonl").read_text() == '{"request": "a"}\n' and not caplog.records
    assert not (tmp_path / "requests-gone.jsonl").is_symlink()
