"""Time to the first token, and hits, in chats of several turns over links of several speeds: without a store, with Kvasir, with
LMCache, and with the bytes of the raw cache over the same link, which is the least that a store without a codec takes.

Each turn finds nothing in vLLM's own cache, as in an engine that another turn's request did not go to. Prints a table, and writes
all that was measured as JSON.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from circumstances import ROOT, describe_run, write
from stores import Link, MeasuredEngine, RawBytes, lmcache, redis_behind_link
from transformers import PreTrainedTokenizerFast

import kvasir

MODEL = ROOT / "crates" / "kvasir-engine" / "assets" / "kvasir-tiny"
LINKS = {"loopback": None, "1 Gb/s": 1e9, "100 Mb/s": 1e8}
SYSTEMS = ("computed", "raw bytes", "LMCache", "Kvasir")
# Tokens of the longest prompt.
CHAT = 1008
# Name of a request, tokens of its prompt, tokens of the prompt before. A turn adds a chunk of either store; 16 tokens are in none.
REQUESTS = (
    ("turn 1", 272, 0),
    ("turn 2", 528, 272),
    ("turn 3", 784, 528),
    ("turn 4", CHAT, 784),
    ("turn 3 again", 784, 784),
)
BLOCK = 32
# From an answer to the next prompt: what was computed is stored meanwhile.
THINKING_S = 1.0
# Chats of which LMCache loads less than this do not count against it, and those of which Kvasir does not count for it: where the
# link is slower than computing, what is not loaded comes sooner.
LEAST_LOADED = 0.9
REFUSERS = {
    "OffloadingConnector": {"cpu_bytes_to_use": 1 << 30},
    "OffloadingConnector, TieringOffloadingSpec": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 1 << 30,
        "secondary_tiers": [{"type": "fs", "root_dir": "/nonexistent"}],
    },
    "SimpleCPUOffloadConnector": {"cpu_bytes_to_use": 1 << 30},
}


@dataclass
class Sample:
    """One request: `share` is how much was loaded of what could be, `sent` the bytes that came over the link."""

    round: int
    link: str
    request: str
    system: str
    seconds: float
    share: float | None
    sent: int
    token: int


def loadable(length: int, before: int) -> int:
    """Tokens that a store can have of a prompt: whole blocks, and not the last token."""
    return min(before, length - 1) // BLOCK * BLOCK


def make_spec() -> kvasir.ModelSpec:
    return kvasir.ModelSpec.from_config(MODEL, weights="kvasir-tiny", revision="test", kv_dtype="torch.bfloat16", context=1024)


def make_chats() -> list[list[int]]:
    """Windows of the project's own documents, in random order. A turn's prompt is the head of one."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))
    pages = [ROOT / name for name in ("ARCHITECTURE.md", "DECISIONS.md", "CHANGELOG.md", "EXTENDING.md", "README.md")]
    tokens = [token for page in pages for token in tokenizer(page.read_text()).input_ids]
    windows = [tokens[at : at + CHAT] for at in range(0, len(tokens) - CHAT, CHAT)]
    random.Random(1).shuffle(windows)
    return windows


def train(windows: list[list[int]], path: Path) -> str:
    """Train a profile on other windows than those that are measured."""
    from engine import compute_caches

    kvasir.Profile.train(compute_caches(windows), model=make_spec(), recipe="basis", finest_nmse=3e-5).save(path)
    return str(path)


class Bench:
    """The systems, each with its engine and its link."""

    def __init__(self, engines: dict[str, MeasuredEngine], links: dict[str, Link]) -> None:
        self._engines, self._links = engines, links
        self._bytes_per_token = make_spec().bytes_per_token

    def run_chat(self, system: str, chat: list[int], number: int, link: str) -> list[Sample]:
        engine, shaped = self._engines[system], self._links.get(system)
        if shaped:
            shaped.rate = LINKS[link]
        samples = []
        for request, length, before in REQUESTS:
            count, sent = loadable(length, before), shaped.answered if shaped else 0
            order = {"tokens": chat[:length]}
            if system == "raw bytes":
                if not count:
                    continue
                order |= {"own": chat[:before], "url": shaped.url, "size": count * self._bytes_per_token}
            found = engine.ask(**order)
            share = found["cached"] / count if count and system != "computed" else None
            sent = shaped.answered - sent if shaped else 0
            samples.append(Sample(number, link, request, system, found["seconds"], share, sent, found["tokens"][0]))
            if system in ("LMCache", "Kvasir"):
                time.sleep(THINKING_S)
        return samples


def quartiles(values: list[float], digits: int) -> list[float]:
    """First quartile, median, third."""
    return [round(value, digits) for value in statistics.quantiles(values, n=4)]


def row_of(samples: list[Sample], expected: dict[tuple[int, str, str], int]) -> dict[str, object]:
    """What one system did with one kind of request over one link."""
    first = samples[0]
    shares = [found.share for found in samples if found.share is not None]
    return {
        "link": first.link,
        "request": first.request,
        "system": first.system,
        "ttft_ms": quartiles([1e3 * found.seconds for found in samples], 1),
        "hits": round(statistics.mean(shares), 3) if shares else None,
        "link_bytes": round(statistics.mean(found.sent for found in samples)),
        "first_token_as_computed": sum(expected[found.round, found.link, found.request] == found.token for found in samples),
        "all_ms": [round(1e3 * found.seconds, 1) for found in samples],
    }


def evaluate(samples: list[Sample], rounds: int) -> dict[str, object]:
    """Rows, and quotients of Kvasir's time and the others' for the same prompt in the same round."""
    expected = {(found.round, found.link, found.request): found.token for found in samples if found.system == "computed"}
    seconds = {(found.round, found.link, found.request, found.system): found.seconds for found in samples}
    kinds = [name for name, *_ in REQUESTS]
    keys = [(link, request, system) for link in LINKS for request in kinds for system in SYSTEMS]
    chosen = {key: [found for found in samples if (found.link, found.request, found.system) == key] for key in keys}
    rows = [row_of(of_key, expected) for of_key in chosen.values() if of_key]
    shares: dict[tuple[int, str], dict[str, list[float]]] = {}
    for found in samples:
        if found.share is not None:
            shares.setdefault((found.round, found.link), {}).setdefault(found.system, []).append(found.share)
    loaded = {system: {cell for cell in shares if statistics.mean(shares[cell][system]) >= LEAST_LOADED} for system in SYSTEMS[1:]}
    quotients = []
    for link, other in itertools.product(LINKS, SYSTEMS[:-1]):
        both = loaded["Kvasir"] & loaded[other] if other in loaded else set(shares)
        cells = [(number, link) for number in range(rounds) if (number, link) in both]
        for requests in [[name] for name in kinds] + [[name for name in kinds if name != "turn 1"]]:
            places = [(*cell, name) for cell in cells for name in requests if (*cell, name, other) in seconds]
            pairs = [seconds[*place, "Kvasir"] / seconds[*place, other] for place in places]
            if len(pairs) > 3:
                of = {"link": link, "requests": requests, "other": other, "pairs": len(pairs)}
                quotients.append(of | {"kvasir_by_other": quartiles(pairs, 2)})
    counts = {system: len(cells) for system, cells in loaded.items()}
    return {"rows": rows, "chats": len(shares), "chats_loaded": counts, "quotients": quotients}


def print_table(found: dict) -> None:
    rows = {(row["link"], row["request"], row["system"]): row for row in found["rows"]}
    print(f"{'ms':22} " + " ".join(f"{system:>18}" for system in SYSTEMS) + "   hits of LMCache, of Kvasir")
    for link, request in dict.fromkeys((link, request) for link, request, _ in rows):
        cells = []
        for system in SYSTEMS:
            low, median, high = rows[link, request, system]["ttft_ms"] if (link, request, system) in rows else (0, 0, 0)
            cells.append(f"{f'{median:.0f} ({low:.0f}-{high:.0f})':>18}")
        hits = [rows[link, request, system]["hits"] for system in ("LMCache", "Kvasir")]
        print(f"{link:9} {request:12} {' '.join(cells)}   {hits}")
    print("Kvasir / others, turns 2 to 4 and again:")
    for of in found["quotients"]:
        low, median, high = of["kvasir_by_other"]
        if len(of["requests"]) > 1:
            print(f"{of['link']:9} {of['other']:9} {median:.2f} ({low:.2f}-{high:.2f}), {of['pairs']} pairs")


def versions_of(packages: str, redis: str) -> dict[str, str]:
    [found] = importlib.metadata.distributions(name="lmcache", path=[packages])
    version = subprocess.run([redis, "--version"], capture_output=True, text=True, check=True).stdout
    return {"lmcache": found.version, "redis": version.split("v=")[1].split()[0]}


def main(which: str, rounds: int, packages: str, redis: str, out: str) -> None:
    chats, dice = make_chats(), random.Random(2)
    refusals = {}
    for name, extra in REFUSERS.items():
        transfer = {"kv_connector": name.split(",")[0], "kv_connector_extra_config": extra}
        with MeasuredEngine(transfer=transfer) as engine:
            refusals[name] = engine.refused or "runs, and was not measured"
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(kvasir.testing.server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        extra = {"profile": train([chats.pop() for _ in range(24)], folder / "trained.kvp")} if which == "trained" else {}
        links = {"Kvasir": Link(service.url), "raw bytes": Link(RawBytes().url)}
        plain = stack.enter_context(MeasuredEngine())
        engines = {"computed": plain, "raw bytes": plain}
        engines["Kvasir"] = stack.enter_context(MeasuredEngine(url=links["Kvasir"].url, extra=extra))
        behind, links["LMCache"] = stack.enter_context(redis_behind_link(redis))
        engines["LMCache"] = stack.enter_context(lmcache(packages, behind))
        bench, samples = Bench(engines, links), []
        # The first chat makes the profile, and what else is made once.
        for _ in range(2):
            chat = chats.pop()
            for system in SYSTEMS:
                bench.run_chat(system, chat, 0, "loopback")
            time.sleep(2)
        assert rounds * len(LINKS) <= len(chats), f"there are {len(chats)} chats"
        for number in range(rounds):
            of_links = {link: chats.pop() for link in LINKS}
            cells = [(link, system) for link in LINKS for system in SYSTEMS]
            dice.shuffle(cells)
            for link, system in cells:
                samples += bench.run_chat(system, of_links[link], number, link)
    found = describe_run(f"tests/vllm/bench ttft {which} {rounds}", **versions_of(packages, redis))
    found |= {"profile": which, "rounds": rounds, "interval": "first quartile, median, third", "refused": refusals}
    found |= evaluate(samples, rounds)
    print_table(found)
    print(f"of {found['chats']} chats {LEAST_LOADED:.0%} or more was loaded: {found['chats_loaded']}")
    for name, sentence in refusals.items():
        print(f"{name}: {sentence}")
    write(out, found)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
