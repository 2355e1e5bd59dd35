"""Parts of SGLang's back end that need no engine: plain objects stand in for what they import of its packages."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

from stand_ins import Cls, Tensor


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
        cache._pages = SimpleNamespace(names=lambda identity, rank, keys: identity)
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
