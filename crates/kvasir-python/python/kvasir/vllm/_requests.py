"""Records of finished requests, for ``kvasir context explain --request``: lines of JSON in a private folder of this user."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any

from vllm.logger import init_logger

from ..errors import KvasirError

logger = init_logger(__name__)

# An engine has two files of at most this size: when the newer one is full, it replaces the older one. A line has about 400 bytes.
_FILE_BYTES_MAX = 4 << 20
# Files of earlier engines that are kept.
_FILES_KEPT = 8
_EVERY_S = 1.0
# Lines queued for writing; beyond this the oldest are dropped.
_WAITING_MAX = 10_000


def private_folder() -> Path:
    """Return a folder that no other user can enter, for files that engines on this host share and keep.

    Raises
    ------
    KvasirError
        ``unsafe_folder`` if it exists and others can enter it.
    """
    folder = Path(tempfile.gettempdir()) / f"kvasir-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        remedy = "remove it, or set TMPDIR to a folder of this user"
        raise KvasirError(f"{folder} is not a folder that only this user can enter", "unsafe_folder", remedy)
    return folder


class RequestLog:
    """Writes in the background. If it cannot write, it logs that once and records nothing."""

    def __init__(self, engine: str) -> None:
        self._lines: deque[str] = deque(maxlen=_WAITING_MAX)
        self._closed = threading.Event()
        self._name = f"requests-{hashlib.sha256(engine.encode()).hexdigest()[:16]}"
        self._writer = threading.Thread(target=self._write_all, name="kvasir-requests", daemon=True)
        self._writer.start()

    def add(self, record: dict[str, Any]) -> None:
        """Record a finished request."""
        if self._writer.is_alive():
            self._lines.append(json.dumps(record) + "\n")

    def close(self) -> None:
        """Write the queued lines, and stop."""
        self._closed.set()
        self._writer.join(_EVERY_S)

    def _write_all(self) -> None:
        try:
            file = private_folder() / f"{self._name}.jsonl"
            others = sorted(file.parent.glob("requests-*"), key=_written_at)
            for other in others[:-_FILES_KEPT]:
                other.unlink(missing_ok=True)
            while True:
                is_last = self._closed.wait(_EVERY_S)
                lines = [self._lines.popleft() for _ in range(len(self._lines))]
                if lines:
                    with file.open("a") as out:
                        out.writelines(lines)
                        size = out.tell()
                    if size > _FILE_BYTES_MAX:
                        file.replace(file.with_suffix(".old"))
                if is_last:
                    return
        except (KvasirError, OSError) as error:
            logger.warning("requests are not recorded for `kvasir context explain --request`: %s", error)


def _written_at(file: Path) -> float:
    """Return when a file was written; 0 if another engine has removed it."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
