"""LMCache's S3 connector against an S3 server that answers at kvasir-load.localhost, with raw bytes as its naive serde has them.

python lmcache_s3.py PORT PID KEY SECRET BYTES VALUES CONNECTIONS SECONDS ROUNDS WRITES

PID is the server's process, which is charged. Every value that is read is compared. Prints, as the last line, one JSON document:
{"get": [...], "put": [...]}, an entry a round.
"""

import asyncio, json, os, sys, time

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector.s3_connector import S3Connector

port, pid, key_id, secret = sys.argv[1:5]
size, values, connections = map(int, sys.argv[5:8])
seconds = float(sys.argv[8])
rounds, writes = map(int, sys.argv[9:11])
LAYERS, TOKENS, HEADS = 10, 100, 10
DIM = size // (LAYERS * 2 * TOKENS * HEADS * 2)
metadata = LMCacheMetadata("kvasir-load", 1, 1, 0, 0, torch.bfloat16, (LAYERS, 2, TOKENS, HEADS, DIM), chunk_size=TOKENS)
config = LMCacheEngineConfig.from_defaults(chunk_size=TOKENS, extra_config={"save_chunk_meta": False})


def memory(tensor):
    about = MemoryObjMetadata(tensor.shape, tensor.dtype, 0, tensor.numel() * 2, 1, fmt=MemoryFormat.KV_2LTD)
    return TensorMemoryObj(tensor.flatten().view(torch.uint8), about, None)


class Local:
    """What the connector wants of LMCache's memory: a place for what it reads."""

    config, metadata = config, metadata

    def allocate(self, shapes, dtypes, fmt):
        return memory(torch.empty(shapes[0], dtype=dtypes[0]))


def cpu():
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident():
    return next(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS")) / 1024


def key(number):
    return CacheEngineKey("kvasir-load", 1, 0, number, torch.bfloat16)


async def measure(one, enough):
    """Requests 0, 1, ... over so many callers, each for the next when it has one."""
    begun, used, times, next_one = time.monotonic(), cpu(), [], iter(range(1 << 60))

    async def caller():
        for number in next_one:
            if enough(number, time.monotonic() - begun):
                return
            start = time.monotonic()
            await one(number)
            times.append(time.monotonic() - start)

    await asyncio.gather(*(caller() for _ in range(connections)))
    took, gigabytes = time.monotonic() - begun, len(times) * size / 1e9
    times.sort()
    at = lambda share: times[min(int(len(times) * share), len(times) - 1)] * 1e3
    return {"gb_per_s": gigabytes / took, "p50_ms": at(0.5), "p99_ms": at(0.99), "cpu_s_per_gb": (cpu() - used) / gigabytes,
            "resident_mib": resident(), "requests": len(times)}


async def main():
    loop = asyncio.get_running_loop()
    endpoint = f"s3://kvasir-load.localhost:{port}"
    connector = S3Connector(endpoint, loop, Local(), 2, False, "us-east-1", False, True, key_id, secret)
    made = [torch.randint(0, 256, (size,), dtype=torch.uint8).view(torch.bfloat16).reshape(metadata.get_shapes()[0]) for _ in range(values)]

    async def put(number, tensor):
        await connector.put(key(number), memory(tensor))
        assert connector.object_size_cache.get(key(number).to_string()) == size, "it was not stored"

    async def get(number):
        got = await connector.get(key(number % values))
        assert got is not None and torch.equal(got.raw_data.flatten(), made[number % values].flatten().view(torch.uint8)), "wrong bytes"

    for number, tensor in enumerate(made):
        await put(number, tensor)
    results = {"get": [], "put": []}
    for turn in range(rounds + 1):
        read = await measure(get, lambda _, elapsed: elapsed >= seconds)
        first = values + turn * writes
        written = await measure(lambda number: put(first + number, made[number % values]), lambda number, _: number >= writes)
        # The first round warms up.
        if turn:
            results["get"].append(read)
            results["put"].append(written)
    print(json.dumps(results), flush=True)
    # Its threads never end.
    os._exit(0)


asyncio.run(main())
