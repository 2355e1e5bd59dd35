"""The parts of the comparison in `ttft.py`: an engine in a separate process, and the stores behind links."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy import FaultProxy


class Link(FaultProxy):
    """A link whose answers share `rate` bits per second, and are counted. It does not hold small pieces back until earlier ones are
    acknowledged, because services and clients do not either.
    """

    answered = 0

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super()._pump(source, sink, is_answer)

    def _answer(self, sink: socket.socket, data: bytes) -> None:
        with self._link:
            self.answered += len(data)
        super()._answer(sink, data)


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


class MeasuredEngine:
    """`measured.py` in a process of its own, with `packages` before those that are installed."""

    def __init__(self, packages: str = "", **order: Any) -> None:
        path = os.pathsep.join(filter(None, [os.environ["PYTHONPATH"], packages]))
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("measured.py")), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        self.refused = self._read().get("refused")

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Libraries print there, too.
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the engine has ended")

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send a request, and wait for what was measured."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def __enter__(self) -> MeasuredEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], ready: str, environment: dict[str, str] | None = None) -> Iterator[int]:
    """Run a server until the end of the block, and give its process; `ready` is a URL that it answers, or where it listens."""
    process = subprocess.Popen(command, env=os.environ | (environment or {}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 90
        while True:
            with contextlib.suppress(OSError):
                if ready.startswith("http"):
                    urllib.request.urlopen(ready, timeout=5).close()
                else:
                    host, port = ready.split(":")
                    socket.create_connection((host, int(port))).close()
                break
            assert time.monotonic() < until and process.poll() is None, command
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def redis_behind_link(redis: str) -> Iterator[tuple[dict[str, Any], Link]]:
    """Redis behind a link, and LMCache's configuration of it."""
    stored = free_port()
    with running([redis, "--port", str(stored), "--save", "", "--appendonly", "no"], f"127.0.0.1:{stored}"):
        link = Link(f"http://127.0.0.1:{stored}")
        yield {"type": "resp", "host": "127.0.0.1", "port": int(link.url.rpartition(":")[2])}, link


@contextlib.contextmanager
def lmcache(packages: str, adapter: dict[str, Any]) -> Iterator[MeasuredEngine]:
    """An engine with LMCache in its multi-process mode: a server of its own beside it, and `adapter` as the second level.

    The server keeps nothing that the second level has, so that each load comes from there; it shares memory with the engine, which
    is the quickest of its ways on a CPU.
    """
    port, http = free_port(), free_port()
    command = [sys.executable, f"{packages}/bin/lmcache", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--http-port", str(http), "--supported-transfer-mode", "engine_driven", "--shm-name", f"ttft-{port}"]
    command += ["--l1-size-gb", "1", "--l1-init-size-gb", "1", "--eviction-policy", "LRU"]
    command += ["--l2-store-policy", "skip_l1", "--l2-adapter", json.dumps(adapter)]
    path = os.pathsep.join([os.environ["PYTHONPATH"], packages])
    with running(command, f"http://127.0.0.1:{http}/healthcheck", {"PYTHONPATH": path}):
        transfer = {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
            "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port},
        }
        with MeasuredEngine(packages, transfer=transfer) as engine:
            assert engine.refused is None, engine.refused
            yield engine
