"""Parts of SGLang's back end that need no engine: plain objects stand in for what they import of its packages."""

from __future__ import annotations

from concurrent.futures import Future
from types import ModuleType, SimpleNamespace

import pytest
from stand_ins import Cls, Tensor


def import_sglang(import_over, configured="bfloat16") -> ModuleType:
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


def make_cache(module: ModuleType, **of_pool):
    """A back end with one pool, whose names of pages are their identities."""
    cache = object.__new__(module.KvasirHiCache)
    of_rank = dict.fromkeys(["pp_rank", "attn_cp_rank", "dcp_rank", "tp_rank"], 0)
    sizes = dict.fromkeys(["pp_size", "attn_cp_size", "dcp_size", "tp_size"], 1)
    cache._config = SimpleNamespace(model_name="m", is_mla_model=False, is_storage_writer=True, **of_rank, **sizes)
    cache._settings = SimpleNamespace(revision="", quality=None)
    cache.registered_pools = {"kv": SimpleNamespace(layout="page_first", page_size=64, **of_pool)}
    cache._pages = SimpleNamespace(names=lambda identity, rank, keys: identity)
    return cache


def test_sglangs_types_of_one_byte_are_told_apart(import_over, caplog):
    def fields(configured, dtype="torch.uint8", **of_pool):
        cache = make_cache(import_sglang(import_over, configured), dtype=dtype, **of_pool)
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


# Attributes of SGLang's pools of latents, of states, and of the one that DeepSeek V4 counts its pages with: none has heads.
LATENTS = {"dtype": "torch.bfloat16", "layer_num": 2, "kv_lora_rank": 24, "qk_rope_head_dim": 8}
STATES = {"dtype": "torch.bfloat16", "num_mamba_layers": 2, "temporal_dtype": "torch.float32"}
COUNTED = {"dtype": "torch.uint8", "layer_num": 0}


@pytest.mark.parametrize(
    ("of_pool", "meta", "pages"),
    [
        (LATENTS, ([1, 2], [5, 5]), [[(1, 5)], [(2, 5)]]),
        (STATES, ([1, 2, 3, 4], [5, 6, 5, 6]), [[(1, 5), (2, 6)], [(3, 5), (4, 6)]]),
        (COUNTED, None, [[], []]),
    ],
)
def test_pages_of_sglangs_pools_without_heads_are_stored(import_over, of_pool, meta, pages):
    cache = make_cache(import_sglang(import_over), **of_pool, get_page_buffer_meta=lambda _: meta)
    stored = []

    def store(keys, given, layout):
        stored.append(given)
        done: Future = Future()
        done.set_result(["stored"] * 2)
        return done

    cache._pages.store = store
    indices = SimpleNamespace(numel=lambda: 2 * 64)
    assert cache.batch_set_v1(["a", "b"], indices) == [True, True] and stored == [pages]


def test_states_of_other_types_of_sglangs_are_told_apart(import_over):
    """They may have as many bytes."""
    module = import_sglang(import_over)
    types = ("torch.bfloat16", "torch.float16")
    names = [make_cache(module, **STATES | {"temporal_dtype": dtype})._names_of("kv", []) for dtype in types]
    assert names[0] != names[1]
