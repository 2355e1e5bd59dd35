"""Rate-limited log lines about failing requests: at most one per minute of each kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_EVERY_S = 60.0


class Notices:
    """Logs messages, and counts the suppressed ones."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}

    def say(self, kind: str, message: str, *args: object) -> None:
        """Log a message, unless one of the same kind was logged less than a minute ago."""
        now = time.monotonic()
        with self._lock:
            since, held = self._kinds.get(kind, (-_EVERY_S, 0))
            if now < since + _EVERY_S:
                self._kinds[kind] = since, held + 1
                return
            self._kinds[kind] = now, 0
        more = f" (and {held} more since the previous line)" if held else ""
        self._log(message + more, *args)
