"""Time to the first token of prompts that are stored, over links of several speeds, as a table: computed, loaded from Kvasir, and
the bytes of the raw cache over the same link, which is the least that a store without a codec takes.
"""

from __future__ import annotations

import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from engine import MODEL, Engine, compute_caches, make_spec, wait_until_stored
from proxy import FaultProxy
from transformers import PreTrainedTokenizerFast

import kvasir

ROOT = Path(__file__).resolve().parents[2]
LINKS = {"loopback": None, "1 Gb/s": 1e9, "100 Mb/s": 1e8}
PROMPT_TOKENS = 960
PROMPTS = 12


def make_texts() -> list[list[int]]:
    """Windows of the project's own documents, in random order."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "DECISIONS.md", ROOT / "CHANGELOG.md"]
    tokens = [token for page in pages for token in tokenizer(page.read_text()).input_ids]
    windows = [tokens[at : at + PROMPT_TOKENS] for at in range(0, len(tokens) - PROMPT_TOKENS, PROMPT_TOKENS)]
    random.Random(1).shuffle(windows)
    return windows


def train(windows: list[list[int]], path: Path) -> str:
    """Train a profile on other windows than those that are measured."""
    kvasir.Profile.train(compute_caches(windows), model=make_spec(), recipe="basis", finest_nmse=3e-5).save(path)
    return str(path)


class RawBytes:
    """Sends as many bytes as it is asked for."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client:
                client.sendall(bytes(int.from_bytes(client.recv(8), "little")))

    @staticmethod
    def seconds(url: str, size: int) -> float:
        """Fetch bytes into memory."""
        host, port = url.removeprefix("http://").split(":")
        begun, into = time.perf_counter(), memoryview(bytearray(size))
        with socket.create_connection((host, int(port))) as server:
            server.sendall(size.to_bytes(8, "little"))
            while into:
                into = into[server.recv_into(into) :]
        return time.perf_counter() - begun


def describe(times: list[float]) -> str:
    """Median, and the interval that holds the middle half, in milliseconds."""
    low, median, high = statistics.quantiles(times, n=4)
    return f"{1e3 * median:6.1f} ({1e3 * low:.1f}-{1e3 * high:.1f})"


def main(which: str, rounds: int) -> None:
    windows = make_texts()
    prompts, others = windows[:PROMPTS], windows[PROMPTS : PROMPTS + 24]
    raw_bytes = PROMPT_TOKENS * make_spec().bytes_per_token
    with kvasir.testing.server() as service, tempfile.TemporaryDirectory() as folder:
        extra = {"profile": train(others, Path(folder) / "trained.kvp")} if which == "trained" else {}
        store, raw = kvasir.connect(service.url), RawBytes()
        link, raw_link = FaultProxy(service.url), FaultProxy(raw.url)
        engine = Engine(link.url, extra=extra, disable_log_stats=False)
        engine.wait_until_connected()
        for prompt in prompts:
            engine.run(prompt, max_tokens=1)
        engine.settle()
        wait_until_stored(store, PROMPTS)
        print(f"{which} profile, {PROMPTS} prompts of {PROMPT_TOKENS} tokens, {raw_bytes / 1e6:.2f} MB raw each, {rounds} rounds")
        times: dict[tuple[str, str], list[float]] = {}
        cached, loaded = [], engine.metrics().get("load_bytes", 0)
        for _ in range(rounds):
            for prompt in prompts:
                for name, rate in LINKS.items():
                    link.rate = raw_link.rate = rate
                    engine.forget()
                    warm = engine.run(prompt, max_tokens=1)
                    cached.append(warm.cached / PROMPT_TOKENS)
                    times.setdefault((name, "Kvasir"), []).append(warm.seconds)
                    computed = engine.run(prompt, max_tokens=1, fresh=True)
                    times.setdefault((name, "computed"), []).append(computed.seconds)
                    times.setdefault((name, "raw bytes"), []).append(raw.seconds(raw_link.url, raw_bytes))
        found = engine.metrics()
        loaded = found["load_bytes"] - loaded
        counts = {name: int(value) for name, value in found.items() if name.startswith(("lookups:", "loads:", "saves:"))}
    share = loaded / len(cached) / raw_bytes
    print(f"tokens from Kvasir: {statistics.mean(cached):.1%}; bytes a load: {share:.2f} of the raw ones; {counts}")
    print(f"{'ms':10} {'computed':>22} {'raw bytes':>22} {'Kvasir':>22}   Kvasir / raw, pair by pair")
    for name in LINKS:
        kinds = [times[name, kind] for kind in ("computed", "raw bytes", "Kvasir")]
        ratio = statistics.median(own / bare for own, bare in zip(kinds[2], kinds[1], strict=True))
        print(f"{name:10} " + " ".join(f"{describe(kind):>22}" for kind in kinds) + f"   {ratio:.2f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
