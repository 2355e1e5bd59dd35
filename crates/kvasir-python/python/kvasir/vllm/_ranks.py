"""Tensor-parallel ranks: each loads and holds some heads of a cache, and the first rank stores all of them.

So engines with any number of ranks read the same objects.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
from vllm.distributed import get_tensor_model_parallel_rank

from .._reports import Loss
from ..errors import InputError
from ._layout import Array, Rows
from ._requests import private_folder

# Longest wait of the first rank for the rows of another rank, which copies them at the same step.
_PART_S = 10.0
_CONNECT_S = 60.0


@dataclass(frozen=True)
class Ranks:
    """A rank, and the other ranks of its engine. All run on one host.

    Attributes
    ----------
    heads : list of int
        Total KV heads of all ranks, by layer.
    """

    rank: int
    size: int
    heads: list[int]
    engine: str

    @classmethod
    def of(cls, vllm_config: Any, heads: list[int]) -> Ranks:
        """Determine the rank of this process.

        Raises
        ------
        InputError
            ``unknown_layout`` if layers have different numbers of heads.
        """
        size = vllm_config.parallel_config.tensor_parallel_size
        if size > 1 and len(set(heads)) != 1:
            # A load's part of a cache is described by one range of heads.
            what = f"layers have {sorted(set(heads))} KV heads, on {size} ranks"
            raise InputError(what, "unknown_layout", "vLLM continues without Kvasir")
        rank = get_tensor_model_parallel_rank() if size > 1 else 0
        return cls(rank, size, heads, vllm_config.kv_transfer_config.engine_id)

    @property
    def is_first(self) -> bool:
        """Whether it stores the rows of all ranks."""
        return self.rank == 0

    @property
    def part(self) -> tuple[int, int] | None:
        """The part of a cache that it loads; None: all of it."""
        return (self.rank, self.size) if self.size > 1 else None

    def heads_of(self, layer: int, rank: int) -> range:
        """Return the heads that a rank holds. If there are more ranks than heads, neighbouring ranks hold the same one."""
        count = self.heads[layer]
        start = rank * count // self.size
        return range(start, max((rank + 1) * count // self.size, start + 1))

    def empty(self, rows: Rows, tokens: int) -> Rows:
        """Allocate memory for this many tokens in the heads of all ranks, of the type of a rank's rows."""

        def plane(layer: int, of: Array) -> Array:
            return np.empty((self.heads[layer], tokens, of.shape[-1]), of.dtype)

        return [(plane(layer, keys), plane(layer, values)) for layer, (keys, values) in enumerate(rows)]

    @property
    def address(self) -> str:
        """Return the path of the first rank's socket, in a folder that no other user can enter."""
        # Paths of sockets must be short.
        return str(private_folder() / hashlib.sha256(self.engine.encode()).hexdigest()[:32])


@dataclass(frozen=True)
class Part:
    """A rank's header before its rows: tokens ``first`` to ``end`` of a save, and the loss of the rows beneath.

    In layers with a window, the rows begin at ``windowed_first``.
    """

    number: int
    first: int
    end: int
    windowed_first: int
    loss: Loss | None

    def to_json(self, *, has_rows: bool) -> bytes:
        """Return the serialised header, including whether rows follow."""
        return json.dumps({"part": self.__dict__, "has_rows": has_rows}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> tuple[Part, bool]:
        """Parse a serialised header."""
        found = json.loads(text)
        loss = found["part"].pop("loss")
        return cls(**found["part"], loss=None if loss is None else Loss(*loss)), found["has_rows"]


class Sender:
    """The connection of another rank to the first one."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._connection: Connection[Any, Any] | None = None

    def send(self, part: Part, rows: Rows | None) -> None:
        """Send the rows of a save, or that there are none, and wait until the first rank has received them.

        Raises
        ------
        OSError
            If the first rank is not available.
        """
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.send_bytes(part.to_json(has_rows=rows is not None))
            for pair in rows or []:
                for plane in pair:
                    for head in plane:
                        self._connection.send_bytes(_bytes_of(head[part.first : part.end]))
        except OSError:
            self._connection = None
            raise

    def _connect(self) -> Connection[Any, Any]:
        until = time.monotonic() + _CONNECT_S
        while True:
            try:
                connection = Client(self._ranks.address, "AF_UNIX")
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                connection.send_bytes(str(self._ranks.rank).encode())
                return connection


class Gatherer:
    """The first rank's receiver."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        address = Path(ranks.address)
        address.unlink(missing_ok=True)
        self._listener = Listener(str(address), "AF_UNIX")
        self._connected = threading.Condition()
        self._connections: dict[int, Connection[Any, Any]] = {}
        # Headers from a rank for a save that the first rank has not reached.
        self._early: dict[int, tuple[Part, bool]] = {}
        threading.Thread(target=self._accept, name="kvasir-ranks", daemon=True).start()

    def gather(self, own: Part, rows: Rows) -> tuple[Part, Rows] | None:
        """Return the rows of all ranks and the largest loss; None if one has not copied them."""
        whole, said = self._ranks.empty(rows, own.end), own
        of_own = (head for pair in rows for plane in pair for head in plane)
        for head, of in zip(self._heads(whole, 0), of_own, strict=True):
            head[own.first : own.end] = of[own.first : own.end]
        for rank in range(1, self._ranks.size):
            part = self._receive(rank, own, whole)
            if part is None:
                return None
            losses = [loss for loss in (said.loss, part.loss) if loss is not None]
            loss = losses[0].worst(losses[-1]) if losses else None
            said = Part(own.number, own.first, own.end, max(said.windowed_first, part.windowed_first), loss)
        return said, whole

    def close(self) -> None:
        """Stop receiving."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            try:
                rank = int(connection.recv_bytes())
            except (OSError, EOFError):
                continue
            with self._connected:
                self._connections[rank] = connection
                self._early.pop(rank, None)
                self._connected.notify_all()

    def _receive(self, rank: int, own: Part, whole: Rows) -> Part | None:
        """Add the part of a rank to the rows of all. Parts of saves that are not the first rank's are dropped."""
        with self._connected:
            self._connected.wait_for(lambda: rank in self._connections, _PART_S)
            connection = self._connections.get(rank)
        try:
            while connection is not None:
                early = self._early.pop(rank, None)
                if early is None and not connection.poll(_PART_S):
                    return None
                part, has_rows = early or Part.from_json(connection.recv_bytes())
                if part.number > own.number:
                    self._early[rank] = part, has_rows
                    return None
                # Another engine with the same id counts its saves from 1 too.
                is_of_own = (part.number, part.first, part.end) == (own.number, own.first, own.end)
                for head in self._heads(whole, rank) if has_rows else ():
                    if is_of_own:
                        connection.recv_bytes_into(_bytes_of(head[part.first : part.end]))
                    else:
                        connection.recv_bytes()
                if is_of_own:
                    return part if has_rows else None
        except (OSError, EOFError):
            with self._connected:
                if self._connections.get(rank) is connection:
                    del self._connections[rank]
        return None

    def _heads(self, whole: Rows, rank: int) -> Iterator[Array]:
        """Return the rows of a rank's heads, in sending order."""
        for layer, pair in enumerate(whole):
            heads = self._ranks.heads_of(layer, rank)
            for plane in pair:
                yield from plane[heads.start : heads.stop]


def _bytes_of(rows: Array) -> memoryview:
    """A view of contiguous rows ``[tokens, head_dim]``."""
    return rows.data.cast("B")
