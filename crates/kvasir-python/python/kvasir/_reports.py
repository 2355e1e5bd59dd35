"""What loads and saves did."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Loss(NamedTuple):
    """What rows have lost, against rows that were computed of the text alone.

    Attributes
    ----------
    kl : float
        Predicted KL, in nats a token, as far as it is known.
    error : int
        The worst measured error, in steps of an eighth of an octave: 0 for none, 128 for all that ``transparent`` allows, 255 for
        one that is not known.
    hops : int
        How many times rows were computed over rows with a loss.
    """

    kl: float
    error: int
    hops: int

    def worst(self, other: Loss) -> Loss:
        """Give the worst of both, in every respect.

        Examples
        --------
        >>> kvasir.Loss(0.1, 3, 1).worst(kvasir.Loss(0.2, 1, 1))
        Loss(kl=0.2, error=3, hops=1)
        """
        return Loss(max(self.kl, other.kl), max(self.error, other.error), max(self.hops, other.hops))


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
        Tokens that were loaded and are in place.
    prefix_tokens : int
        Leading tokens that are in place, those that were before among them.
    missing : list of range
        Every token of the session that is not, in order: compute these. The last token is always missing unless a level was asked
        for, because no cache holds its logits.
    kl : float
        Worst predicted KL of what is in place, in nats a token.
    losses : list of (range, Loss)
        Tokens in place whose rows are not exact, and what they have lost. An engine that keeps rows for other requests keeps this
        with them, for `Session.reused`.
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
    prefix_tokens: int
    missing: list[range]
    kl: float
    losses: list[tuple[range, Loss]]
    seconds: float
    bytes: int
    gave_up: bool
    chunks: list[LoadedChunk]
    failures: list[str]

    @classmethod
    def _of(cls, kv: Any, text: str) -> Loaded:
        report = json.loads(text)
        report["missing"] = [range(*pair) for pair in report["missing"]]
        report["losses"] = [(range(*tokens), Loss(*loss)) for tokens, loss in report["losses"]]
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
