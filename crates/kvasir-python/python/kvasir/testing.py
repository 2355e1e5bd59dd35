"""A private service, for tests and notebooks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue

from .errors import KvasirError

__all__ = ["Server", "binary", "server"]

_START_S = 60.0
_END_S = 20.0
_LOG_LINES = 50


def binary() -> str:
    """Return the path of the ``kvasir`` command: that of this installation, otherwise the one in ``PATH``.

    Examples
    --------
    >>> os.path.basename(kvasir.testing.binary())
    'kvasir'
    """
    beside = os.path.join(sysconfig.get_path("scripts"), "kvasir")
    found = beside if os.access(beside, os.X_OK) else shutil.which("kvasir")
    if found is None:
        remedy = "install the wheel, or build the command with `cargo build -p kvasir-cli` and add it to PATH"
        raise KvasirError("the command kvasir is not installed", "no_command", remedy)
    return found


class Server:
    """A running service.

    Attributes
    ----------
    url : str
        Its address.
    """

    def __init__(self, folder: str, flags: tuple[str, ...]) -> None:
        own = ["--listen", "127.0.0.1:0", "--log.format", "json", "--log.filter", "info"]
        own += ["--store.url", f"file://{folder}/store", "--cache.directory", f"{folder}/cache"]
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._process = subprocess.Popen([binary(), "serve", *own, *flags], stderr=subprocess.PIPE, text=True)
        addresses: Queue[str | None] = Queue()
        # Read to the end: the service would block on a full log pipe.
        threading.Thread(target=self._read, args=(addresses,), daemon=True).start()
        try:
            address = addresses.get(timeout=_START_S)
        except Empty:
            address = None
        if address is None:
            self.stop()
            log = "\n".join(self._log)
            raise KvasirError(f"the service did not start:\n{log}", "not_started", "see its log")
        self.url = f"http://{address}"

    def _read(self, addresses: Queue[str | None]) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line.rstrip())
            if '"listening"' in line:
                addresses.put(str(json.loads(line)["fields"]["address"]))
        addresses.put(None)

    def stop(self) -> None:
        """Stop the service; a second call is no error.

        Examples
        --------
        >>> with kvasir.testing.server() as s:
        ...     s.stop()
        """
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def server(*flags: str) -> Iterator[Server]:
    """Start a service on a free port over a temporary folder; stop it at exit.

    Parameters
    ----------
    *flags : str
        Settings as for ``kvasir serve``.

    Raises
    ------
    KvasirError
        ``no_command``, or ``not_started`` with the log.

    Examples
    --------
    >>> with kvasir.testing.server() as s:
    ...     s.url.startswith("http://127.0.0.1:")
    True
    """
    with tempfile.TemporaryDirectory(prefix="kvasir-") as folder:
        running = Server(folder, flags)
        try:
            yield running
        finally:
            running.stop()
