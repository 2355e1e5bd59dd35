"""Rows of layers with a window, copied before vLLM drops their blocks, until the chunk that they belong to is computed."""

from __future__ import annotations

from ._layout import Blocks, Rows


class CopiedRows:
    """The rows of consecutive tokens of one running request, in layers with a window."""

    def __init__(self) -> None:
        self.first = self.end = 0
        self.bytes = 0
        self._parts: list[tuple[int, int, Rows]] = []

    def add(self, blocks: Blocks, first: int, end: int, rows: Rows) -> None:
        """Take ownership of the rows of tokens ``first`` to ``end``, which begin with a whole block.

        A gap before them drops the earlier rows.
        """
        if first != self.end:
            self.first, self.bytes, self._parts = first, 0, []
        self.end = end
        self.bytes += blocks.bytes_of(end - first, windowed=True)
        self._parts.append((first, end, rows))

    def give(self, blocks: Blocks, rows: Rows, first: int) -> None:
        """Write the rows after token ``first`` into rows from token 0 on."""
        for begin, end, part in self._parts:
            if first < end:
                blocks.copy_windowed((part, blocks.begin_of(begin)), (rows, 0), max(begin, first), end)
