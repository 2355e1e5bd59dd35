"""A request or a conversation, with blocking calls: its stored tokens, loads and saves."""

from __future__ import annotations

from typing import Any

from . import _kvasir
from ._reports import Loaded, Loss, Saved
from ._spec import KV, ModelSpec, token_list


class Session:
    """One request, or one conversation turn by turn. Made by `Model.session`."""

    def __init__(self, spec: ModelSpec, tokens: list[int], core: _kvasir.Session) -> None:
        self._spec = spec
        self._core = core
        self.tokens = tokens
        self.missing = [range(len(tokens))]
        """Tokens to compute: all of them before a load, and the ones that it did not bring afterwards."""

    @property
    def matched(self) -> int:
        """Leading tokens that are stored; 0 for a miss."""
        return self._core.matched

    @property
    def below_quality(self) -> int:
        """Stored tokens behind the matched ones that are below the model's `quality`.

        They are computed at each request, and saves do not store them again: a namespace has them as they were first
        stored. Give clients of a higher quality a namespace of their own.
        """
        return self._core.below_quality

    @property
    def error(self) -> Exception | None:
        """Why the lookup failed, if it did."""
        return self._core.lookup_error()

    def load(
        self,
        into: KV = None,
        *,
        deadline: float | None = None,
        level: int | None = None,
        present: int = 0,
        rank: tuple[int, int] | None = None,
        soft_quality: str | None = None,
    ) -> Loaded:
        """Load the matched tokens.

        A failure of the network or the service is no error; it only adds to `missing`. Once the call has returned or raised,
        nothing more is written to the tensors.

        Parameters
        ----------
        into : KV, optional
            Tensors of the cache's type with room for `matched` tokens, written in place. Default: new numpy arrays.
        deadline : float, optional
            Seconds until the first token is due; the quality adapts to the time, not below the model's `quality`.
        level : int, optional
            Load everything at this level, including the last token, however long it takes; at the coarsest one of the model's
            quality if that is finer.
        present : int, optional
            Leading tokens that are already in the tensors. A chunk without any other token is not loaded.
        rank : (int, int), optional
            A tensor-parallel rank and the number of ranks, for tensors with only that rank's heads.
        soft_quality : str, optional
            A quality below the `Store.model` one that this load may fall to where the deadline leaves no time for more.

        Raises
        ------
        InputError
            ``wrong_shape``, ``wrong_dtype`` or ``wrong_layout`` naming the tensor; ``invalid_setting`` for a `soft_quality` that
            is not below the model's.

        Examples
        --------
        >>> saved = model.session(tokens, salt=b"load").save(kv)
        >>> loaded = model.session(tokens, salt=b"load").load(level=0)
        >>> loaded.loaded_tokens == len(tokens), loaded.kv[0][0].shape
        (True, (2, 512, 16))
        """
        target = self._spec.empty(self.matched) if into is None else into
        loaded = Loaded._of(target, self._core.load(target, deadline, level, present, rank, soft_quality, False))
        self.missing = loaded.missing
        return loaded

    def save(self, kv: KV, tokens: int | None = None) -> Saved:
        """Save the cache of the first tokens, and wait until it is durable. Only reads tokens that are not stored, without a copy.

        Parameters
        ----------
        kv : KV
            The cache from token 0 on. It must not change until the call returns.
        tokens : int, optional
            Number of tokens to save. Default: all of the session.

        Raises
        ------
        InputError
            ``wrong_shape``, ``wrong_dtype`` or ``wrong_layout`` naming the tensor; ``not_encodable``; ``no_first_profile``
            if the model has none and the cache is too short or too uniform to make one.
        ServiceError, UnavailableError
            The service responded with an error, or not at all. Acknowledged chunks remain stored.

        Examples
        --------
        >>> [chunk.outcome for chunk in model.session(tokens, salt=b"save").save(kv).chunks]
        ['stored']
        """
        return Saved._of(self._core.save(kv, len(self.tokens) if tokens is None else tokens, False))

    def save_in_background(self, kv: KV, tokens: int | None = None) -> Save:
        """Save a copy of the tokens that are not stored, and return at once.

        Parameters
        ----------
        kv, tokens
            As `save`; the tensors may be reused when the call returns.

        Examples
        --------
        >>> model.session(tokens, salt=b"later").save_in_background(kv).wait().refused
        """
        return Save(self._core.save_in_background(kv, len(self.tokens) if tokens is None else tokens))

    def reused(self, loss: Loss) -> None:
        """Report that the engine already had rows with this loss, from its own prefix cache. Saves carry the loss.

        Parameters
        ----------
        loss : Loss
            The largest of the `Loaded.losses` of the load that brought them, as far as they precede this session's tokens.

        Examples
        --------
        >>> model.session(tokens).reused(kvasir.Loss(kl=0.0, error=128, hops=1))
        """
        self._core.reused(*loss)

    def extend(self, tokens: Any) -> None:
        """Append tokens: the generated ones, and the next turn.

        Examples
        --------
        >>> session = model.session([1, 2, 3])
        >>> session.extend([4])
        >>> session.tokens
        [1, 2, 3, 4]
        """
        more = token_list(tokens)
        self._core.extend(more)
        self.tokens = self.tokens + more

    def __repr__(self) -> str:
        return f"<Session: {self.matched} of {len(self.tokens)} tokens matched>"


class Save:
    """A background save. It continues whether or not it is waited for, until the process ends: see `Model.drain`.

    Made by `Session.save_in_background`.
    """

    __slots__ = ("_core",)

    def __init__(self, core: _kvasir.Save) -> None:
        self._core = core

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._core.is_done

    def wait(self) -> Saved:
        """Wait until it is durable.

        Raises
        ------
        ServiceError, UnavailableError
            The save failed permanently.

        Examples
        --------
        >>> model.session(tokens, salt=b"wait").save_in_background(kv).wait().bytes > 0
        True
        """
        return Saved._of(self._core.wait(False))
