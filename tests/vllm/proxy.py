"""A TCP proxy in front of a service, with the faults of networks."""

from __future__ import annotations

import random
import socket
import threading
import time

MODES = ("sound", "away", "silent", "slow", "reset", "corrupt", "unavailable", "unauthorized", "trickle")
REFUSALS = {
    mode: f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
    for mode, status in [("unavailable", "503 Service Unavailable"), ("unauthorized", "401 Unauthorized")]
}

# What a link's queue holds: it goes on while this process's thread waits for its turn, so that one connection alone fills it.
_QUEUE_S = 0.005


class FaultProxy:
    """Forwards connections to `target`; `mode` is what befalls them.

    ``away`` refuses, ``silent`` takes and never answers, ``slow`` answers 0.3 s late, ``trickle`` gives 4 KiB in 20 ms, ``reset``
    breaks off at a random byte, ``corrupt`` changes a byte in a hundred thousand, ``unavailable`` answers 503, and ``unauthorized``
    401, as where a token has expired. Answers share `rate` bits per second, where it is set.
    """

    def __init__(self, url: str, seed: int = 0) -> None:
        self.target = url
        self._dice = random.Random(seed)
        self.mode = "sound"
        self.rate: float | None = None
        self._link = threading.Lock()
        self._free_at = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            here, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(here,), daemon=True).start()

    def _serve(self, here: socket.socket) -> None:
        try:
            if self.mode == "away":
                here.close()
                return
            host, port = self.target.removeprefix("http://").split(":")
            there = socket.create_connection((host, int(port)))
        except OSError:
            here.close()
            return
        threading.Thread(target=self._pump, args=(there, here, True), daemon=True).start()
        self._pump(here, there, False)

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(64 << 10):
                if is_answer:
                    self._answer(sink, data)
                elif self.mode != "silent":
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (sink, source):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                end.close()

    def _answer(self, sink: socket.socket, data: bytes) -> None:
        mode = self.mode
        if mode == "silent":
            return
        if mode in REFUSALS:
            sink.sendall(REFUSALS[mode])
            raise ConnectionError
        if mode == "away":
            raise ConnectionError
        if mode == "slow":
            time.sleep(0.3)
        if mode == "reset":
            sink.sendall(data[: self._dice.randrange(len(data) + 1)])
            raise ConnectionError
        if mode == "corrupt":
            changed = bytearray(data)
            for _ in range(1 + len(data) // 100_000):
                changed[self._dice.randrange(len(changed))] ^= 1 << self._dice.randrange(8)
            data = bytes(changed)
        if mode == "trickle":
            for at in range(0, len(data), 4 << 10):
                sink.sendall(data[at : at + (4 << 10)])
                time.sleep(0.02)
            return
        if self.rate is not None:
            self._pace(len(data))
        sink.sendall(data)

    def _pace(self, size: int) -> None:
        """Wait until the link has taken so many bytes, behind what it takes already."""
        with self._link:
            self._free_at = max(self._free_at, time.monotonic() - _QUEUE_S) + 8 * size / self.rate
            until = self._free_at
        time.sleep(max(until - time.monotonic(), 0))
