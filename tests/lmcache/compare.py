"""Kvasir, Redis, files and S3 as LMCache's second level: bytes and seconds of the same batches, in pairs of one run.

The service of Kvasir keeps files on the same disk as LMCache's adapter for files, and answers when they are on it. LMCache's files
do not wait for the disk, and Redis keeps nothing on it; nor does a second service, in memory. LMCache's adapter for S3 asks MinIO,
on the same disk, and the S3 front of Kvasir's first service. Over loopback, the CPU of both ends is measured; over links, the bytes
of the answers. Prints a table, and writes all that was measured.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from batches import layouts, load, look_up, make_adapter, make_keys, make_objects, store
from circumstances import describe_run, write
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2AdapterConfig
from lmcache.v1.distributed.l2_adapters.resp_l2_adapter import RESPL2AdapterConfig
from lmcache.v1.distributed.l2_adapters.s3_l2_adapter import S3L2AdapterConfig
from stores import Link, free_port, running

import kvasir

ROUNDS = 12
# Objects of a batch: 256 KiB each, as 256 tokens of a small model's layers, and 4 MiB.
BATCHES = {"32 of 256 KiB": (32, 1), "8 of 4 MiB": (8, 16)}
SHAPED = 1e9
# A late answer of Kvasir's is a miss, and would end the run; the others have no deadlines.
PATIENT = {"lookup_deadline_s": 30, "load_deadline_s": 60}
# Access and secret keys; a service without credentials accepts any.
MINIO, FRONT = ("test-key", "test-secret"), ("anyone", "anyone")


class System:
    """An adapter, the process of its server, and the link between, where there is one. A link takes from its process's CPU.

    `reader` looks up and loads where it is not the adapter itself: LMCache's for S3 answers lookups of what it has stored without
    its server.
    """

    def __init__(
        self,
        adapter: L2AdapterInterface,
        server: int | None = None,
        link: Link | None = None,
        reader: L2AdapterInterface | None = None,
    ) -> None:
        self.adapter, self.server, self.link, self.reader = adapter, server, link, reader or adapter

    def run(self, keys: list, times: int, seed: int) -> dict[str, dict[str, float]]:
        """Store random bytes, look them up, load them, and compare."""
        objects, into = make_objects(len(keys), seed=seed, times=times), make_objects(len(keys), times=times)
        found: dict[str, dict[str, float]] = {}
        for name, work in (
            ("store", lambda: store(self.adapter, keys, objects).is_successful()),
            ("lookup", lambda: look_up(self.reader, keys, layouts(times=times)) == "1" * len(keys)),
            ("load", lambda: load(self.reader, keys, into) == "1" * len(keys)),
        ):
            before, begun = self._spent(), time.perf_counter()
            assert work(), f"{type(self.adapter).__name__}: {name}"
            seconds = time.perf_counter() - begun
            spent = {key: value - before[key] for key, value in self._spent().items()}
            # A link shapes answers alone.
            if name != "store" or not self.link:
                found[name] = {"seconds": seconds} | spent
        assert all(bytes(a.byte_array) == bytes(b.byte_array) for a, b in zip(objects, into, strict=True))
        return found

    def _spent(self) -> dict[str, float]:
        if self.link:
            return {"answered": self.link.answered}
        # Linux's clock of another process's CPU.
        return {"cpu": time.process_time(), "server_cpu": time.clock_gettime(~self.server << 3 | 2) if self.server else 0.0}


def quartiles(values: list[float], digits: int) -> list[float]:
    return [round(value, digits) for value in statistics.quantiles(values, n=4)]


def main(redis: str, minio: str, minio_pid: str, out: str) -> None:
    dice, samples = random.Random(3), []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        front = free_port()
        front_link, minio_link = link_to(front), link_to(minio)
        domains = ",".join(f"s3.localhost:{each}" for each in (front, port_of(front_link)))
        front_settings = ("--s3.listen", f"127.0.0.1:{front}", "--s3.domains", domains)
        service = stack.enter_context(kvasir.testing.server(*front_settings))
        in_memory = stack.enter_context(kvasir.testing.server("--store.url", "memory:///", "--hot.disk", "0B"))
        port = free_port()
        running_redis = running([redis, "--port", str(port), "--save", "", "--appendonly", "no"], f"127.0.0.1:{port}")
        pid = stack.enter_context(running_redis)
        kvasir_link, redis_link = link_to(service.url.rpartition(":")[2]), link_to(port)
        systems = {
            ("loopback", "Kvasir"): System(make_adapter(service.url, **PATIENT), service._process.pid),
            ("loopback", "Kvasir, in memory"): System(make_adapter(in_memory.url, **PATIENT), in_memory._process.pid),
            ("loopback", "Redis"): System(redis_at(port), pid),
            ("loopback", "files"): System(create_l2_adapter(FSL2AdapterConfig(folder))),
            ("loopback", "S3, MinIO"): s3(minio, *MINIO, server=int(minio_pid)),
            ("loopback", "S3, Kvasir"): s3(front, *FRONT, server=service._process.pid),
            ("1 Gb/s", "Kvasir"): System(make_adapter(kvasir_link.url, **PATIENT), link=kvasir_link),
            ("1 Gb/s", "Redis"): System(redis_at(port_of(redis_link)), link=redis_link),
            ("1 Gb/s", "S3, MinIO"): s3(port_of(minio_link), *MINIO, link=minio_link),
            ("1 Gb/s", "S3, Kvasir"): s3(port_of(front_link), *FRONT, link=front_link),
        }
        first = 0
        for number in range(-1, ROUNDS):
            cells = [(batch, *which) for batch in BATCHES for which in systems]
            dice.shuffle(cells)
            for batch, link, system in cells:
                count, times = BATCHES[batch]
                keys = make_keys(count, first=first)
                first += count
                for name, cell in systems[link, system].run(keys, times, seed=first).items():
                    of = {"round": number, "link": link, "batch": batch, "system": system, "operation": name}
                    samples.append(of | {key: round(value, 6) for key, value in cell.items()})
        for system in systems.values():
            for adapter in {system.adapter, system.reader}:
                adapter.close()
    # The first round connects, and warms what there is to warm.
    samples = [sample for sample in samples if sample["round"] >= 0]
    version = subprocess.run([redis, "--version"], capture_output=True, text=True, check=True).stdout.split("v=")[1].split()[0]
    found: dict[str, Any] = describe_run("tests/lmcache/run --compare", redis=version, lmcache="0.5.6")
    found |= {"rounds": ROUNDS, "interval": "first quartile, median, third", "rows": rows_of(samples)}
    for row in found["rows"]:
        quotient = f"  Kvasir / this {row['kvasir_by_this'][1]:.2f}" if "kvasir_by_this" in row else ""
        low, median, high = row["ms"]
        text = f"{median:8.1f} ms ({low:.1f}-{high:.1f})"
        if "cpu_ms" in row:
            text += f"  CPU {row['cpu_ms']:6.1f} + {row['server_cpu_ms']:6.1f} ms"
        else:
            text += f"  answers {row['answered_bytes'] / 2**20:9.4f} MiB"
        print(f"{row['link']:9} {row['batch']:14} {row['operation']:7} {row['system']:17} {text}{quotient}")
    write(out, found)


def link_to(port: int | str) -> Link:
    link = Link(f"http://127.0.0.1:{port}")
    link.rate = SHAPED
    return link


def port_of(link: Link) -> int:
    return int(link.url.rpartition(":")[2])


def redis_at(port: int) -> L2AdapterInterface:
    return create_l2_adapter(RESPL2AdapterConfig("127.0.0.1", port))


def s3(port: int | str, key: str, secret: str, server: int | None = None, link: Link | None = None) -> System:
    """LMCache's own adapter over the S3 server at a port; `run` has given the bucket's host a name."""
    config = {"s3_endpoint": f"s3://kvasir-test.s3.localhost:{port}", "s3_region": "us-east-1"}
    config |= {"disable_tls": True, "s3_prefer_http2": False, "aws_access_key_id": key, "aws_secret_access_key": secret}
    # As many threads as there are cores, instead of 64.
    config |= {"s3_num_io_threads": 2}
    adapter, reader = (create_l2_adapter(S3L2AdapterConfig.from_dict(config)) for _ in range(2))
    return System(adapter, server, link, reader)


def rows_of(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cells: dict[tuple[str, str, str, str], dict[int, dict[str, Any]]] = {}
    for sample in samples:
        key = (sample["link"], sample["batch"], sample["operation"], sample["system"])
        cells.setdefault(key, {})[sample["round"]] = sample
    rows = []
    for (link, batch, operation, system), of_rounds in sorted(cells.items()):
        row: dict[str, Any] = {"link": link, "batch": batch, "operation": operation, "system": system}
        row["ms"] = quartiles([1e3 * cell["seconds"] for cell in of_rounds.values()], 2)
        for name, scale in (("cpu", 1e3), ("server_cpu", 1e3), ("answered", 1)):
            if name in next(iter(of_rounds.values())):
                unit = "bytes" if name == "answered" else "ms"
                row[f"{name}_{unit}"] = round(scale * statistics.median(cell[name] for cell in of_rounds.values()), 2)
        if system != "Kvasir":
            own = cells[link, batch, operation, "Kvasir"]
            row["kvasir_by_this"] = quartiles([own[number]["seconds"] / cell["seconds"] for number, cell in of_rounds.items()], 2)
        row["all_ms"] = [round(1e3 * cell["seconds"], 2) for cell in of_rounds.values()]
        rows.append(row)
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
