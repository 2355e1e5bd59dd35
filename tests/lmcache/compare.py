"""Kvasir, Redis and files as LMCache's second level: bytes and seconds of the same batches, in pairs of one run.

The service of Kvasir keeps files on the same disk as LMCache's adapter for files. Prints a table, and writes all that was measured.
"""

from __future__ import annotations

import contextlib
import random
import resource
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
from stores import Link, free_port, running

import kvasir

ROUNDS = 12
# Objects of a batch: 256 KiB each, as 256 tokens of a small model's layers, and 4 MiB.
BATCHES = {"32 of 256 KiB": (32, 1), "8 of 4 MiB": (8, 16)}
LINKS = {"loopback": None, "1 Gb/s": 1e9}


class System:
    """An adapter, and the link that it talks over."""

    def __init__(self, adapter: L2AdapterInterface, link: Link | None = None) -> None:
        self.adapter, self.link = adapter, link

    def run(self, keys: list, times: int, seed: int) -> dict[str, dict[str, float]]:
        """Store random bytes, look them up, load them, and compare."""
        objects, into = make_objects(len(keys), seed=seed, times=times), make_objects(len(keys), times=times)
        found: dict[str, dict[str, float]] = {}
        for name, work in (
            ("store", lambda: store(self.adapter, keys, objects).is_successful()),
            ("lookup", lambda: look_up(self.adapter, keys, layouts(times=times)) == "1" * len(keys)),
            ("load", lambda: load(self.adapter, keys, into) == "1" * len(keys)),
        ):
            sent = self.link.answered if self.link else 0
            cpu, begun = _cpu(), time.perf_counter()
            assert work(), name
            seconds = time.perf_counter() - begun
            found[name] = {"seconds": seconds, "cpu": _cpu() - cpu, "answered": (self.link.answered - sent) if self.link else 0}
        assert all(bytes(a.byte_array) == bytes(b.byte_array) for a, b in zip(objects, into, strict=True))
        return found


def _cpu() -> float:
    """Seconds of this process's CPU, in which the adapter runs."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def quartiles(values: list[float], digits: int) -> list[float]:
    return [round(value, digits) for value in statistics.quantiles(values, n=4)]


def main(redis: str, out: str) -> None:
    dice, samples = random.Random(3), []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        service = stack.enter_context(kvasir.testing.server())
        port = free_port()
        stack.enter_context(running([redis, "--port", str(port), "--save", "", "--appendonly", "no"], f"127.0.0.1:{port}"))
        links = {"Kvasir": Link(service.url), "Redis": Link(f"http://127.0.0.1:{port}")}
        resp = RESPL2AdapterConfig("127.0.0.1", int(links["Redis"].url.rpartition(":")[2]))
        systems = {
            "Kvasir": System(make_adapter(links["Kvasir"].url), links["Kvasir"]),
            "Redis": System(create_l2_adapter(resp), links["Redis"]),
            "files": System(create_l2_adapter(FSL2AdapterConfig(folder))),
        }
        first = 0
        for number in range(-1, ROUNDS):
            cells = [(link, batch, system) for link in LINKS for batch in BATCHES for system in systems]
            dice.shuffle(cells)
            for link, batch, system in cells:
                if system == "files" and link != "loopback":
                    continue
                for each in links.values():
                    each.rate = LINKS[link]
                count, times = BATCHES[batch]
                keys = make_keys(count, first=first)
                first += count
                for name, cell in systems[system].run(keys, times, seed=first).items():
                    of = {"round": number, "link": link, "batch": batch, "system": system, "operation": name}
                    samples.append(of | {key: round(value, 6) for key, value in cell.items()})
        for system in systems.values():
            system.adapter.close()
    # The first round connects, and warms what there is to warm.
    samples = [sample for sample in samples if sample["round"] >= 0]
    version = subprocess.run([redis, "--version"], capture_output=True, text=True, check=True).stdout.split("v=")[1].split()[0]
    found: dict[str, Any] = describe_run("tests/lmcache/run --compare", redis=version, lmcache="0.5.6")
    found |= {"rounds": ROUNDS, "interval": "first quartile, median, third", "rows": rows_of(samples), "samples": samples}
    for row in found["rows"]:
        quotient = f"  Kvasir / this {row['kvasir_by_this'][1]:.2f}" if "kvasir_by_this" in row else ""
        low, median, high = row["ms"]
        text = f"{median:8.1f} ms ({low:.1f}-{high:.1f})  {row['cpu_ms']:7.1f} ms CPU"
        print(f"{row['link']:9} {row['batch']:14} {row['operation']:7} {row['system']:7} {text}{quotient}")
    write(out, found)


def rows_of(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cells: dict[tuple[str, str, str, str], dict[int, dict[str, Any]]] = {}
    for sample in samples:
        key = (sample["link"], sample["batch"], sample["operation"], sample["system"])
        cells.setdefault(key, {})[sample["round"]] = sample
    rows = []
    for (link, batch, operation, system), of_rounds in sorted(cells.items()):
        row: dict[str, Any] = {"link": link, "batch": batch, "operation": operation, "system": system}
        row["ms"] = quartiles([1e3 * cell["seconds"] for cell in of_rounds.values()], 2)
        row["cpu_ms"] = round(1e3 * statistics.median(cell["cpu"] for cell in of_rounds.values()), 2)
        row["answered_bytes"] = round(statistics.median(cell["answered"] for cell in of_rounds.values()))
        if system != "Kvasir":
            own = cells[link, batch, operation, "Kvasir"]
            row["kvasir_by_this"] = quartiles([own[number]["seconds"] / cell["seconds"] for number, cell in of_rounds.items()], 2)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
