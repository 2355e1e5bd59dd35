"""Progress of long operations: reported to the caller, or drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Tell = Callable[[str, float], object]
"""Receives a message and the progress, 0 to 1."""


@contextmanager
def told(progress: Any) -> Iterator[Tell | None]:
    """Return the function to call for a caller's ``progress=``: a callable, a tqdm, True, or None. A bar ends full."""
    if progress is None or progress is False:
        yield None
    elif progress is True:
        with _drawn() as tell:
            yield tell
            tell("done", 1.0)
    elif hasattr(progress, "update") and hasattr(progress, "n"):
        tell = _moved(progress)
        yield tell
        tell("done", 1.0)
    else:
        yield progress


def _moved(bar: Any) -> Tell:
    """Update a tqdm."""

    def tell(what: str, part: float) -> None:
        bar.set_description(what, refresh=False)
        bar.update(part * (bar.total or 1) - bar.n)

    return tell


@contextmanager
def _drawn() -> Iterator[Tell]:
    """Draw a bar if rich is installed; otherwise write a line for each tenth."""
    try:
        from rich.progress import Progress
    except ImportError:
        yield _lines()
        return
    with Progress() as bars:
        task = bars.add_task("", total=1.0)
        yield lambda what, part: bars.update(task, description=what, completed=part)


def _lines() -> Tell:
    last = ("", -1)

    def tell(what: str, part: float) -> None:
        nonlocal last
        now = what, int(10 * part)
        if now != last:
            last = now
            print(f"{what}: {100 * part:.0f} %", file=sys.stderr)

    return tell
