"""Reports of loads and saves."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Loss(NamedTuple):
    """The loss of rows, compared with rows computed from the text alone.

    Attributes
    ----------
    kl : float
        Predicted KL, in nats per token, as far as it is known.
    error : int
        The largest measured error, in steps of an eighth of an octave: 0 for none, 128 for the bound of ``transparent``, 255 if
        unknown.
    hops : int
        Length of the chain of computations over rows with a loss.
    """

    kl: float
    error: int
    hops: int

    def worst(self, other: Loss) -> Loss:
        """Return the larger of both, in each respect.

        Examples
        --------
        >>> kvasir.Loss(0.1, 3, 1).worst(kvasir.Loss(0.2, 1, 1))
        Loss(kl=0.2, error=3, hops=1)
        """
        return Loss(max(self.kl, other.kl), max(self.error, other.error), max(self.hops, other.hops))


class LoadedChunk(NamedTuple):
    """One chunk of a load: its tokens, the level it was decoded at (None: to be computed), its predicted KL, and its size."""

    tokens: range
    level: int | None
    kl: float
    bytes: int


class Loaded(NamedTuple):
    """The result of a load.

    Attributes
    ----------
    kv : KV
        The tensors.
    loaded_tokens : int
        Tokens that were loaded and are in place.
    prefix_tokens : int
        Leading tokens that are in place, including those that were before.
    missing : list of range
        All other tokens of the session, in order: compute these. The last token is always missing unless a level was
        requested, because no cache holds its logits.
    kl : float
        Largest predicted KL of the tokens in place, in nats per token.
    losses : list of (range, Loss)
        Tokens in place whose rows are not exact, and their loss. An engine that keeps rows for other requests must keep this
        with them, for `Session.reused`.
    seconds : float
        Duration of the load.
    network_seconds : float
        Part of the duration in which at least one read was under way.
    decode_seconds : float
        Time of the decoding threads, summed over them: it may exceed the duration.
    wait_seconds : float
        Part of the duration in which nothing was being read or decoded.
    bytes : int
        Bytes received.
    gave_up : bool
        Whether the load was given up because computing was predicted to be faster.
    chunks : list of LoadedChunk
        The outcome of each chunk.
    failures : list of str
        Failures during the load.
    """

    kv: Any
    loaded_tokens: int
    prefix_tokens: int
    missing: list[range]
    kl: float
    losses: list[tuple[range, Loss]]
    seconds: float
    network_seconds: float
    decode_seconds: float
    wait_seconds: float
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
    """One chunk of a save: its tokens, its identity, ``stored``, ``already_there`` or ``too_lossy``, and the bytes sent."""

    tokens: range
    seq_hash: str
    outcome: str
    bytes: int


class Saved(NamedTuple):
    """The result of a save.

    Attributes
    ----------
    chunks : list of SavedChunk
        The outcome of each chunk.
    bytes : int
        Bytes sent.
    seconds : float
        Duration of the save.
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
