"""Parts of vLLM's tier that need no engine: plain objects stand in for what they import of its packages."""

from __future__ import annotations

import logging
import math
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace

import pytest
from stand_ins import Cls

import kvasir


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
        f"{offload}.config": {"OffloadingModelConfig": Cls},
        f"{offload}.file_mapper": {"FileMapper": FileMapper},
        f"{offload}.tiering.async_lookup": {"AsyncLookupManager": Cls},
        f"{offload}.tiering.backpressure": {"BackpressureDetector": Cls},
        f"{offload}.tiering.base": {"JobResult": Cls, "SecondaryTierManager": Manager, "TransferJob": Cls},
    }
    module = import_over("kvasir.vllm_tier", stand_ins)
    monkeypatch.setattr(module, "PageStore", lambda *_: SimpleNamespace(names=lambda identity, rank, keys: identity.prefix()))
    return module


def make_tier(module: ModuleType, tp=1, agnostic=True, canonical=False, replicated=False, layout="LBNHC"):
    parallel = SimpleNamespace(rank=0, tp_size=tp, is_parallelism_agnostic=agnostic)
    layouts = {"canonical_layout": canonical, "replicated_layout": replicated, "kv_cache_layout": layout}
    spec = SimpleNamespace(config=SimpleNamespace(parallel=parallel, **layouts), blocks_per_chunk=1)
    return module.KvasirTier(spec, memoryview(bytearray(64)), "KvasirTier", url="http://x")


def test_chunks_of_the_tier_are_shared_where_their_bytes_are_the_same(import_over, monkeypatch):
    module = import_tier(import_over, monkeypatch)

    def name(tp, **others) -> str:
        return make_tier(module, tp, **others)._names_of([])

    assert name(1) == name(1) != name(2)
    assert name(1, canonical=True) == name(2, canonical=True) != name(2, agnostic=False, canonical=True)
    # Latent attention's, which each rank has.
    assert name(2, agnostic=False, replicated=True) == name(4, agnostic=False, replicated=True)
    assert len({name(1, layout=layout) for layout in ("LBNHC", "LBHNC", None)}) == 3


def test_a_lookup_of_the_tier_says_when_its_request_first_asked(import_over, monkeypatch):
    module, asked_at = import_tier(import_over, monkeypatch), []
    module.LookupResult, module.get_offload_group_idx = SimpleNamespace(RETRY="retry"), lambda key: 0
    tier, now = make_tier(module), iter((1.0, 2.0, 3.0))
    module.time = SimpleNamespace(monotonic=lambda: next(now))

    def find(rows, gaps, at):
        asked_at.append(at)
        done: Future = Future()
        done.set_result([[False]])
        return done

    tier._pages.find = find
    tier._lookups = SimpleNamespace(lookup=lambda *_: None, cleanup=lambda _: None)
    requests = [SimpleNamespace(req_id=name, get_offload_key_position=lambda key: 1) for name in "ab"]
    # vLLM asks in each step until there is an answer.
    for request in (*requests, requests[0]):
        assert tier.lookup(b"key", request) == "retry"
    tier.on_request_finished(requests[1])
    assert [tier._find([b"key"], request) for request in requests] == [[False]] * 2
    # Nobody waits for that of a request that is over.
    assert asked_at == [1.0, -math.inf] and list(tier._asked) == ["a"]


def test_chunks_that_are_packed_have_a_layout_of_their_size(import_over, monkeypatch):
    layout_of = import_tier(import_over, monkeypatch)._layout_of
    for dtype, item in (("bfloat16", 2), ("float16", 2), ("float32", 4)):
        for size in (4 << 10, 5003 << 12, 64 << 20, 255 << 20):
            shape = layout_of(SimpleNamespace(name="m", dtype=dtype), size).shape
            assert 2 * math.prod(shape) * item == size and shape[1] <= 1024 and shape[3] <= 65_536
    # It has no bytes of other significance.
    assert layout_of(SimpleNamespace(name="m", dtype="fp8_e4m3"), 64 << 20) is None
    with pytest.raises(kvasir.InputError, match="fewer blocks_per_chunk"):
        layout_of(SimpleNamespace(name="m", dtype="bfloat16"), 512 << 20)
