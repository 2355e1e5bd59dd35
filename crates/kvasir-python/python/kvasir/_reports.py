"""What loads and saves did."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class LoadedChunk(NamedTuple):
    """One chunk of a load: its tokens, the level it was decoded at (None: to be computed), its predicted KL, and its bytes."""

    tokens: range
    level: int | None
    kl: float
    bytes: int


class Loaded(NamedTuple):
    """What a load left in the tensors.

    Attributes
    ----------
    kv : KV
        The tensors.
    loaded_tokens : int
        Tokens that are in place.
    missing : list of range
        Every token of the session that is not, in order: compute these. The last token is always missing unless a level was asked
        for, because no cache holds its logits.
    kl : float
        Worst predicted KL of what is in place, in nats a token.
    seconds : float
        How long the load took.
    bytes : int
        Bytes that arrived.
    gave_up : bool
        Whether the load was given up because computing was predicted to be sooner.
    chunks : list of LoadedChunk
        What became of each chunk.
    failures : list of str
        What failed on the way.
    """

    kv: Any
    loaded_tokens: int
    missing: list[range]
    kl: float
    seconds: float
    bytes: int
    gave_up: bool
    chunks: list[LoadedChunk]
    failures: list[str]

    @property
    def prefix_tokens(self) -> int:
        """Leading tokens that are in place."""
        return self.missing[0].start if self.missing else self.loaded_tokens

    @classmethod
    def _of(cls, kv: Any, text: str) -> Loaded:
        report = json.loads(text)
        report["missing"] = [range(*pair) for pair in report["missing"]]
        report["chunks"] = [LoadedChunk(**{**chunk, "tokens": range(*chunk["tokens"])}) for chunk in report["chunks"]]
        return cls(kv=kv, **report)


class SavedChunk(NamedTuple):
    """One chunk of a save: its tokens, its identity, and ``stored``, ``already_there`` or ``too_lossy``; bytes that were sent."""

    tokens: range
    seq_hash: str
    outcome: str
    bytes: int


class Saved(NamedTuple):
    """What a save did.

    Attributes
    ----------
    chunks : list of SavedChunk
        What became of each chunk.
    bytes : int
        Bytes that were sent.
    seconds : float
        How long it took.
    refused : str or None
        Why nothing was saved: too short a context, a full queue.
    """

    chunks: list[SavedChunk]
    bytes: int
    seconds: float
    refused: str | None

    @classmethod
    def _of(cls, text: str) -> Saved:
        report = {"chunks": [], "bytes": 0, "seconds": 0.0, **json.loads(text)}
        report["chunks"] = [SavedChunk(**{**chunk, "tokens": range(*chunk["tokens"])}) for chunk in report["chunks"]]
        return cls(**report)
