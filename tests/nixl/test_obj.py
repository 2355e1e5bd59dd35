"""NIXL's OBJ plugin over Kvasir's S3 front, and vLLM's tier ``obj`` over the plugin."""

from __future__ import annotations

import ctypes
import itertools
import random
import time

import pytest
from nixl._api import nixl_agent, nixl_agent_config
from scheduler import BLOCK_BYTES, BLOCKS_PER_CHUNK, Scheduler, make_config, make_keys
from stores import free_port
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

import kvasir

BUCKET = "pages"
SIZE = 4 << 20


class Front:
    """A service, and what NIXL needs to know of its front."""

    def __init__(self, url: str, port: int) -> None:
        self.store = kvasir.connect(url, namespace=BUCKET)
        self.params = {"bucket": BUCKET, "endpoint_override": f"http://127.0.0.1:{port}", "scheme": "http", "region": "us-east-1"}
        # What a service without credentials accepts.
        self.params |= {"access_key": "anyone", "secret_key": "anyone"}


@pytest.fixture(scope="module")
def front():
    port = free_port()
    with kvasir.testing.server("--s3.listen", f"127.0.0.1:{port}") as server:
        yield Front(server.url, port)


class Agent:
    """An agent that moves memory to objects and back."""

    def __init__(self, front: Front, **params: str) -> None:
        self._agent = nixl_agent("engine", nixl_agent_config(backends=[]))
        self._agent.create_backend("OBJ", front.params | params)
        self._devices = itertools.count(1)

    def has(self, keys: list[str]) -> list[bool]:
        return [found is not None for found in self._agent.query_memory([(0, 1, 0, key) for key in keys], "OBJ", "OBJ")]

    def move(self, operation: str, memory: bytearray, keys: list[str], offset: int = 0) -> bool:
        """Move equal parts of the memory, one for each key; says whether all of it succeeded."""
        agent, size = self._agent, len(memory) // len(keys)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        devices = [next(self._devices) for _ in keys]
        registered = [
            agent.register_memory([(address, len(memory), 0, "")], "DRAM"),
            agent.register_memory([(0, offset + size, device, key) for device, key in zip(devices, keys, strict=True)], "OBJ"),
        ]
        own = agent.get_xfer_descs([(address + place * size, size, 0) for place in range(len(keys))], "DRAM")
        there = agent.get_xfer_descs([(offset, size, device) for device in devices], "OBJ")
        transfer = agent.initialize_xfer(operation, own, there, "engine")
        until = time.monotonic() + 60
        try:
            state = agent.transfer(transfer)
            while state == "PROC":
                assert time.monotonic() < until, "the transfer does not end"
                time.sleep(0.002)
                state = agent.check_xfer_state(transfer)
        except Exception as error:
            # Its bindings have an exception for each status.
            assert type(error).__name__.startswith("nixl"), error
            state = "ERR"
        agent.release_xfer_handle(transfer)
        for descriptors in registered:
            agent.deregister_memory(descriptors)
        return state == "DONE"


def test_objects_come_back_whole_and_in_ranges(front):
    keys = [f"model/{place:02}" for place in range(6)]
    values = bytearray(random.Random(1).randbytes(len(keys) * SIZE))
    agent = Agent(front)
    assert agent.has(keys) == [False] * 6
    assert agent.move("WRITE", values, keys)
    assert agent.has([*keys, "model/none"]) == [True] * 6 + [False]
    assert b"".join(front.store.read_objects(keys)) == values
    # Another agent, as another engine has it.
    other, into = Agent(front), bytearray(len(values))
    assert other.move("READ", into, keys) and into == values
    part = bytearray(1000)
    assert other.move("READ", part, keys[2:3], offset=12_345) and part == values[2 * SIZE + 12_345 :][:1000]


def test_a_key_keeps_its_first_bytes(front):
    agent, key = Agent(front), ["model/immutable"]
    first, other = (bytearray(random.Random(seed).randbytes(SIZE)) for seed in (2, 3))
    assert agent.move("WRITE", first, key)
    assert agent.move("WRITE", first, key)
    assert not agent.move("WRITE", other, key)
    into = bytearray(SIZE)
    assert agent.move("READ", into, key) and into == first


def test_a_read_of_nothing_and_a_wrong_secret_fail(front):
    assert not Agent(front).move("READ", bytearray(SIZE), ["model/absent"])
    assert not Agent(front, secret_key="wrong").move("WRITE", bytearray(SIZE), ["model/refused"])
    assert front.store.find_objects(["model/refused"]) == []


class ObjScheduler(Scheduler):
    """vLLM's manager with its own tier."""

    def __init__(self, front: Front, **model) -> None:
        self.spec = TieringOffloadingSpec(make_config([{"type": "obj", "store_config": front.params, **model}], chunks=8))
        self.manager = self.spec.get_manager()
        [self.tier] = self.manager.secondary_tiers
        self.view = self.manager.primary_tier.get_kv_memoryview()
        self._requests = 0


@pytest.mark.parametrize("prefix", ["", "team/kv"])
def test_vllms_tier_promotes_what_another_engine_has_cascaded(front, prefix):
    dice = random.Random(5)
    keys, values = make_keys(5), [dice.randbytes(BLOCK_BYTES * BLOCKS_PER_CHUNK) for _ in range(5)]
    first = ObjScheduler(front, prefix=prefix)
    context = first.offload(keys[:4], values[:4])
    first.settle()
    first.finish(context)
    other = ObjScheduler(front, prefix=prefix)
    assert other.look_up(keys) == [True] * 4 + [False]
    assert other.load(keys[:4]) == values[:4]
    first.close()
    other.close()
