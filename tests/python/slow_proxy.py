"""A TCP proxy that can delay the service's responses."""

from __future__ import annotations

import socket
import threading


class SlowProxy:
    """Forwards connections to a service; `hold_after` bytes of an answer pass before `release` is called."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.hold_after: int | None = None
        self._open = threading.Event()
        self.held = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def release(self) -> None:
        self._open.set()

    def _accept(self) -> None:
        while True:
            here, _ = self._listener.accept()
            try:
                there = socket.create_connection(self._target)
            except OSError:  # the service has ended, its clients may go on
                here.close()
                continue
            threading.Thread(target=self._pump, args=(here, there, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(there, here, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        passed = 0
        try:
            while data := source.recv(16 << 10):
                passed += len(data)
                if is_answer and self.hold_after is not None and passed > self.hold_after:
                    self.held.set()
                    self._open.wait(60)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()
