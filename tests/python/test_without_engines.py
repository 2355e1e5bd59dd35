"""Parts of the engines' back ends that need no engine: plain objects stand in for what they import of its packages."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
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

    def __init__(self, *_, **__) -> None:
        pass


class Tensor(list):
    """torch's."""


def import_transformers(import_over) -> ModuleType:
    stand_ins = {"torch": {"Tensor": Tensor}, "transformers": {"__version__": "5.0.0", "DynamicCache": Cls}}
    return import_over("kvasir.transformers", stand_ins)


def test_transformers_leaves_alone_what_has_other_rows_or_none(import_over):
    module = import_transformers(import_over)
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
        # As the Hub's of models with sliding windows.
        generation_config = SimpleNamespace(num_beams=1, use_cache=True, cache_implementation="hybrid")

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
        (one, {"use_cache": False}),
        (one, {"generation_config": SimpleNamespace(use_cache=False)}),
        (one, {"cache_implementation": "static"}),
        (one, {"cache": "own"}),
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
        # What a configuration of a call leaves open is the model's.
        Model.generation_config.num_beams = 2
        done.clear()
        assert model.generate(one, generation_config=SimpleNamespace(num_beams=None)) == "output" and len(done) == 1


def test_a_block_that_reuses_leaves_the_model_as_it_was(import_over):
    module = import_transformers(import_over)

    class Model:
        def generate(self) -> str:
            return "class"

    caches, model = [object.__new__(module.KvasirCache) for _ in range(2)], Model()
    with caches[0].reuse(model):
        outer = model.generate
        with caches[1].reuse(model):
            assert model.generate is not outer
        assert model.generate is outer
    assert model.generate() == "class" and not model.__dict__
    model.generate = own = lambda: "own"
    with caches[0].reuse(model):
        pass
    assert model.generate is own


def test_models_whose_cache_is_another_or_elsewhere_are_refused(import_over):
    module = import_transformers(import_over)

    def cache(adapter=None, **others):
        model = SimpleNamespace(config=Config(**TOY), dtype="torch.bfloat16", device="cpu", **others)
        store = SimpleNamespace(model=lambda *_, **__: None)
        return module.KvasirCache(store, model, weights="org/toy", revision="1", adapter=adapter)

    lora = {"peft_config": {"default": object()}}
    with pytest.raises(kvasir.InputError, match="the model has a LoRA"):
        cache(**lora)
    with pytest.raises(kvasir.InputError, match="on several devices"):
        cache(hf_device_map={"model.layers.0": 0, "model.layers.1": 1})
    for others in (lora | {"adapter": "helper@1"}, {"peft_config": {}}, {"hf_device_map": {"model": 0, "lm_head": 0}}, {}):
        cache(**others)


def import_vllm(import_over, name: str, others: dict[str, dict] | None = None) -> ModuleType:
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    stand_ins = {
        # Without its `__init__`, which imports all of vLLM.
        "kvasir.vllm": {"__path__": [str(PACKAGE / "vllm")]},
        base: {"KVConnectorMetadata": Cls, "KVConnectorWorkerMetadata": Cls},
        "vllm.logger": {"init_logger": logging.getLogger},
    }
    return import_over(f"kvasir.vllm.{name}", stand_ins | (others or {}))


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


class Config(SimpleNamespace):
    """A configuration of transformers."""

    def to_dict(self):
        return dict(self.__dict__)


TOY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TOY |= {"num_key_value_heads": 2, "torch_dtype": "bfloat16", "max_position_embeddings": 512, "rope_theta": 10_000.0}
COMMIT = "a" * 40


def make_vllm_config(model="org/toy", hf_config=None, cache_dtype="auto", **others):
    own = {"model": str(model), "hf_config": hf_config, "dtype": "torch.bfloat16", "max_model_len": 512}
    own |= {"hf_overrides": {}, "hf_config_path": None, "revision": None}
    of_model = SimpleNamespace(**(own | others))
    return SimpleNamespace(model_config=of_model, cache_config=SimpleNamespace(cache_dtype=cache_dtype))


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
    ]
    services = [service(**change) for change in changes]
    assert len({first, *services}) == 9 and [service(**change) for change in changes] == services
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
    contents = {"service_of": lambda *_: service, "Ranks": SimpleNamespace(of=lambda *_: ranks), place: fail}
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


def import_sglang(import_over, configured) -> ModuleType:
    """`configured` stands in for SGLang's settings of the cache's type."""

    types = {"fp8_e4m3": "torch.float8_e4m3fn", "fp8_e5m2": "torch.float8_e5m2"}

    def configure(**given):
        return None, types[given["server_args_kv_cache_dtype"]]

    theirs = [f"HiCacheStorage{name}" for name in ("", "Config", "ExtraInfo")]
    storage = dict.fromkeys([*theirs, "PoolHitPolicy", "PoolTransfer", "PoolTransferResult"], Cls)
    storage["PoolName"] = SimpleNamespace(KV="kv", MAMBA="mamba")
    stand_ins = {
        "torch": {"Tensor": Tensor, **{name: f"torch.{name}" for name in ("bfloat16", "float16", "float32", "uint8")}},
        "sglang.srt.mem_cache.hicache_storage": storage,
        "sglang.srt.mem_cache.kv_cache_dtype": {"configure_kv_cache_dtype": configure},
        "sglang.srt.runtime_context": {"get_model": lambda: SimpleNamespace(kv_cache_dtype=configured)},
    }
    return import_over("kvasir.sglang", stand_ins)


def test_sglangs_types_of_one_byte_are_told_apart(import_over, caplog):
    def fields(configured, dtype="torch.uint8", **of_pool):
        cache = object.__new__(import_sglang(import_over, configured).KvasirHiCache)
        of_rank = dict.fromkeys(["pp_rank", "attn_cp_rank", "dcp_rank", "tp_rank"], 0)
        sizes = dict.fromkeys(["pp_size", "attn_cp_size", "dcp_size", "tp_size"], 1)
        cache._config = SimpleNamespace(model_name="m", is_mla_model=False, **of_rank, **sizes)
        cache._settings = SimpleNamespace(revision="", quality=None)
        cache.registered_pools = {"kv": SimpleNamespace(dtype=dtype, layout="page_first", page_size=64, **of_pool)}
        cache._pages = SimpleNamespace(names=lambda identity, keys: identity)
        # Of each page the same.
        assert cache._names_of("kv", []) == cache._names_of("kv", [])
        return dict(cache._names_of("kv", []).fields)

    e4m3, e5m2 = fields("fp8_e4m3"), fields("fp8_e5m2")
    assert e4m3["kv_dtype"] == "fp8_e4m3, torch.float8_e4m3fn" and e5m2["kv_dtype"] == "fp8_e5m2, torch.float8_e5m2"
    # Its weights decide, and may do so for a type of another size.
    assert fields("auto")["kv_dtype"] == "auto, torch.float8_e4m3fn"
    pools = [SimpleNamespace(dtype=f"torch.float8_{kind}") for kind in ("e4m3fn", "e5m2")]
    assert [fields("auto", device_pool=pool)["kv_dtype"] for pool in pools] == [pool.dtype for pool in pools]
    # Pools that have the numbers' type need no setting, and no new identity.
    assert fields("auto", "torch.bfloat16") == fields("bfloat16", "torch.bfloat16")
    assert "kv_dtype" not in fields("auto", "torch.bfloat16") and not caplog.records
    # Of another version of SGLang: nothing is shared, and nothing ends.
    assert fields("fp6") != fields("fp6") and "report it" in caplog.text


class Chunk:
    """A part of LMCache's memory."""

    data_ptr, references = 0, 1

    def get_size(self) -> int:
        return 8

    def ref_count_up(self) -> None:
        self.references += 1

    def ref_count_down(self) -> None:
        self.references -= 1


def import_lmcache_remote(import_over) -> ModuleType:
    connector = "lmcache.v1.storage_backend.connector"
    stand_ins = {
        "lmcache.logging": {"init_logger": logging.getLogger},
        "lmcache.utils": {"CacheEngineKey": Cls},
        "lmcache.v1.exceptions": {"IrrecoverableException": Exception},
        "lmcache.v1.memory_management": {"MemoryObj": Cls},
        connector: {"ConnectorAdapter": Cls, "ConnectorContext": Cls},
        f"{connector}.base_connector": {
            "RemoteConnector": type("RemoteConnector", (Cls,), {"full_chunk_size_bytes": 8, "meta_fmt": "2LTD"})
        },
    }
    return import_over("kvasir.lmcache_remote", stand_ins)


LMCACHE_KEY = SimpleNamespace(model_name="m", dtype="bf16", world_size=4, worker_id=0, tags=None, chunk_hash_hex="a")


def make_connector(module: ModuleType, memory=None, kv_shape=(32, 2, 64, 2, 128), **pages):
    """`pages` are the methods of its store, whose names of pages are their identities."""
    pages = {"names": lambda identity, hashes, salt: [identity] * len(hashes)} | pages
    module.PageStore = lambda *_: SimpleNamespace(**pages)
    config = SimpleNamespace(extra_config={"remote_storage_plugin.kvasir.url": "http://x"}, use_layerwise=False)
    shapes = {"get_shapes": lambda: ["shape"], "get_dtypes": lambda: ["bf16"]}
    metadata = SimpleNamespace(chunk_size=64, kv_shape=kv_shape, **shapes)
    context = SimpleNamespace(config=config, metadata=metadata, plugin_name="kvasir", local_cpu_backend=memory)
    return module.KvasirAdapter().create_connector(context)


def test_ranks_of_lmcache_that_divide_layers_have_other_names(import_over):
    module = import_lmcache_remote(import_over)
    # Four ranks that divide heads, and two that divide heads with two that divide layers: chunks of equal sizes.
    shapes = [(32, 2, 64, 2, 128), (16, 2, 64, 4, 128), [32, 2, 64, 2, 128]]
    names = [make_connector(module, kv_shape=shape)._names_of([LMCACHE_KEY])[0].prefix() for shape in shapes]
    assert names[0] == names[2] != names[1]


def test_a_load_of_lmcache_does_not_wait_for_memory(import_over):
    free, asked = [Chunk(), Chunk()], []

    def allocate(shapes, dtypes, fmt=None, eviction=True, busy_loop=True):
        assert (shapes, dtypes, fmt) == (["shape"], ["bf16"], "2LTD")
        asked.append(busy_loop)
        return free.pop() if free else None

    def load(keys, pages):
        assert len(keys) == len(pages) == 2
        loaded: Future = Future()
        loaded.set_result([True, False])
        return loaded

    made = make_connector(import_lmcache_remote(import_over), SimpleNamespace(allocate=allocate), load=load)
    last, first = free
    assert asyncio.run(made.batched_get([LMCACHE_KEY] * 4)) == [first, None, None, None]
    assert asked == [False] * 3 and (first.references, last.references) == (1, 0)


def test_a_store_that_lmcache_abandons_holds_its_memory(import_over):
    stores: list[Future] = []

    def store(keys, pages):
        stores.append(Future())
        return stores[-1]

    made, key = make_connector(import_lmcache_remote(import_over), store=store), LMCACHE_KEY

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


class Notifier(threading.Semaphore):
    """LMCache's."""

    notify = threading.Semaphore.release


class EncodedObjects:
    """The extension's objects, which load what was stored with the same layout."""

    def __init__(self, stored: dict, calls: list, layout: tuple | None = None) -> None:
        self.stored, self.calls, self.layout = stored, calls, layout

    def encoded(self, dtype, shape, order, quality, model):
        return EncodedObjects(self.stored, self.calls, shape)

    async def store(self, keys, pages, seconds, is_async):
        self.calls.append(("store", self.layout, len(keys)))
        self.stored.update(dict.fromkeys(keys, self.layout))
        return ["stored"] * len(keys)

    async def load(self, keys, pages, seconds, is_async):
        self.calls.append(("load", self.layout, len(keys)))
        found = [self.stored.get(key, "") for key in keys]
        return ["missing" if layout == "" else "loaded" if layout == self.layout else "other_size" for layout in found]


def make_page_store(module: ModuleType, monkeypatch, objects, quality: str | None = "exact"):
    """One that has no service besides `objects`."""

    async def connect(*_):
        raise kvasir.InputError("enough is known", "test", "")

    async def note(*_):
        pass

    monkeypatch.setattr(module._kvasir, "connect", connect)
    monkeypatch.setattr(module.PageStore, "_note", note)
    pages = module.PageStore(module.Settings("http://x", quality=quality), logging.getLogger("test"))
    pages._connecting.result(30)
    pages._objects = objects
    return pages


@pytest.mark.parametrize("quality", ["exact", None])
def test_each_chunk_of_a_batch_of_lmcache_has_its_layout(import_over, monkeypatch, quality):
    l2, of_metrics = "lmcache.v1.distributed", SimpleNamespace(create_observable_counter=lambda *_, **__: None)
    adapters = type("L2AdapterInterface", (Cls,), dict.fromkeys(["_notify_keys_stored", "_notify_keys_accessed"], lambda *_: None))
    stand_ins = {
        "torch": {name: f"torch.{name}" for name in ("bfloat16", "float16", "float32")},
        "lmcache.lmcache_native": {"Bitmap": lambda count: set()},
        "lmcache.logging": {"init_logger": logging.getLogger},
        f"{l2}.api": {"MemoryLayoutDesc": Cls, "ObjectKey": Cls},
        f"{l2}.internal_api": {"L2StoreResult": lambda *given: given},
        f"{l2}.l2_adapters.base": {"L2AdapterInterface": adapters},
        "lmcache.v1.memory_management": {"MemoryObj": Cls},
        "lmcache.v1.platform": {"create_event_notifier": lambda: Notifier(0)},
        "opentelemetry.metrics": {"Observation": Cls, "get_meter": lambda _: of_metrics},
    }
    module = import_over("kvasir.lmcache", stand_ins)
    from kvasir import _pages

    stored, calls = {}, []
    pages = make_page_store(_pages, monkeypatch, EncodedObjects(stored, calls), quality)
    monkeypatch.setattr(module, "PageStore", lambda *_: pages)
    adapter = module.KvasirL2({"url": "http://x", "quality": quality})
    # Of three groups of layers, the last of which cannot be encoded.
    groups, shapes = [0, 1, 0, 2], [(2, 4, 256, 64), (2, 2, 256, 64), (2, 4, 256, 64), (4, 256, 64)]
    of_all = {"model_name": "m", "kv_rank": 1 << 24, "cache_salt": ""}
    keys = [SimpleNamespace(object_group_id=group, chunk_hash=bytes([n]), **of_all) for n, group in enumerate(groups)]
    metas = [SimpleNamespace(shapes=[shape], dtypes=["torch.bfloat16"]) for shape in shapes]
    objects = [SimpleNamespace(metadata=meta, data_ptr=0, get_size=lambda: 8) for meta in metas]

    def load(*which: int) -> set[int]:
        task = adapter.submit_load_task([keys[n] for n in which], [objects[n] for n in which])
        assert adapter._loaded.acquire(timeout=30)
        return {which[place] for place in adapter.query_load_result(task)}

    def bitmap(bits, count: int) -> set[int]:
        return {place for place, bit in enumerate(bits) if bit}

    monkeypatch.setattr(module, "_bitmap", bitmap)
    # What is stored by group is loaded with the others.
    for which in ([0, 2], [1], [3]):
        adapter.submit_store_task([keys[n] for n in which], [objects[n] for n in which])
        assert adapter._stored.acquire(timeout=30)
    assert load(0, 1, 2, 3) == {0, 1, 2, 3}
    most, few = (4, 256, 1, 64), (2, 256, 1, 64)
    if quality is None:
        # As before in one request.
        assert calls[3:] == [("load", None, 4)]
    else:
        assert calls[3:] == [("load", most, 2), ("load", few, 1), ("load", None, 1)]
    # The third chunk.
    del stored[list(stored)[1]]
    assert load(0, 1, 2, 3) == {0, 1, 3}
    adapter.submit_store_task(keys, objects)
    assert adapter._stored.acquire(timeout=30) and all(is_done for is_done, _ in adapter.pop_completed_store_tasks().values())
    assert list(stored.values()) == ([None] * 4 if quality is None else [most, few, None, most])
    pages.close()


def test_a_batch_that_fails_for_one_layout_ends_with_the_others(import_over, monkeypatch):
    from kvasir import _pages

    free, ended = threading.Event(), []

    class Objects(EncodedObjects):
        def encoded(self, dtype, shape, order, quality, model):
            return Objects(self.stored, self.calls, shape)

        async def load(self, keys, *_):
            if self.layout == (1, 1, 1, 1):
                raise RuntimeError("a fault")
            await asyncio.to_thread(free.wait, 30)
            ended.append(self.layout)
            return ["loaded"] * len(keys)

    pages = make_page_store(_pages, monkeypatch, Objects({}, []))
    faulty, sound = (_pages.PageLayout("m", "bfloat16", (size,) * 4, "2LNHD") for size in (1, 2))
    loading = pages.load(["a", "b"], [[(0, 8)]] * 2, [faulty, sound])
    with pytest.raises(TimeoutError):
        loading.result(0.2)
    free.set()
    assert loading.result(30) == [False, False] and ended == [(2, 2, 2, 2)]
    pages.close()


def import_tier(import_over, monkeypatch) -> ModuleType:
    class FileMapper:
        """vLLM's, of 0.32.0."""

        def __init__(self, spec, is_agnostic: bool) -> None:
            parallel = spec.config.parallel
            self.rank = 0 if is_agnostic else parallel.rank
            self.fields = {"model_name": "m", "tp_size": 1 if is_agnostic else parallel.tp_size}

        @classmethod
        def from_offloading_spec(cls, root_dir, spec, blocks_per_file=1, parallel_agnostic=False):
            config = spec.config
            is_agnostic = config.parallel.is_parallelism_agnostic or config.replicated_layout
            return cls(spec, parallel_agnostic and is_agnostic)

        def get_run_config(self) -> dict:
            return dict(self.fields)

    class Manager(Cls):
        def __init__(self, *_) -> None:
            self.block_size_bytes, self.tier_type = 64, "KvasirTier"

    base = ["Locality", "LookupResult", "OffloadingCounterMetadata", "OffloadingEvent", "OffloadingMetricMetadata", "OffloadKey"]
    base += ["ReqContext", "RequestOffloadingContext", "ScheduleEndContext", "get_offload_group_idx"]
    offload = "vllm.v1.kv_offload"
    stand_ins = {
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics": {"OffloadingConnectorStats": Cls},
        "vllm.logger": {"init_logger": logging.getLogger},
        f"{offload}.base": dict.fromkeys(base, Cls) | {"Medium": SimpleNamespace(STORAGE="storage")},
        f"{offload}.file_mapper": {"FileMapper": FileMapper},
        f"{offload}.tiering.async_lookup": {"AsyncLookupManager": Cls},
        f"{offload}.tiering.backpressure": {"BackpressureDetector": Cls},
        f"{offload}.tiering.base": {"JobResult": Cls, "SecondaryTierManager": Manager, "TransferJob": Cls},
    }
    module = import_over("kvasir.vllm_tier", stand_ins)
    monkeypatch.setattr(module, "PageStore", lambda *_: SimpleNamespace(names=lambda identity, _: identity.prefix()))
    return module


def test_chunks_of_the_tier_are_shared_where_their_bytes_are_the_same(import_over, monkeypatch):
    module = import_tier(import_over, monkeypatch)

    def name(tp, agnostic=True, canonical=False, replicated=False, layout="LBNHC") -> str:
        parallel = SimpleNamespace(rank=0, tp_size=tp, is_parallelism_agnostic=agnostic)
        layouts = {"canonical_layout": canonical, "replicated_layout": replicated, "kv_cache_layout": layout}
        config = SimpleNamespace(parallel=parallel, **layouts)
        spec = SimpleNamespace(config=config, blocks_per_chunk=1)
        return module.KvasirTier(spec, memoryview(bytearray(64)), "KvasirTier", url="http://x")._names_of([])

    assert name(1) == name(1) != name(2)
    assert name(1, canonical=True) == name(2, canonical=True) != name(2, agnostic=False, canonical=True)
    # Latent attention's, which each rank has.
    assert name(2, agnostic=False, replicated=True) == name(4, agnostic=False, replicated=True)
    assert len({name(1, layout=layout) for layout in ("LBNHC", "LBHNC", None)}) == 3


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
