"""A model in a service, with blocking calls. `kvasir.aio` has the same for ``asyncio``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _kvasir
from ._codec import Profile
from ._reports import Saved
from ._session import Session
from ._spec import ModelSpec, token_list

if TYPE_CHECKING:
    from ._store import Store

Json = dict[str, Any]
"""A document of the REST API."""


class Model:
    """A model in a service. Made by `Store.model`."""

    __slots__ = ("_core", "_store")

    def __init__(self, store: Store, core: _kvasir.Model) -> None:
        self._store = store
        self._core = core

    @property
    def spec(self) -> ModelSpec:
        """The spec of its cache."""
        return ModelSpec(self._core.spec)

    @property
    def profile(self) -> Profile | None:
        """The profile of its caches; None before the first save if no profile was given."""
        return made_profile(self._core)

    def observe_prefill(self, tokens: range, seconds: float) -> None:
        """Report how long computing tokens took, over the cache of all previous ones. Later loads are compared with it.

        Each observation changes the estimate a little; if it is far off, set ``prefill_tokens_per_s`` instead.

        Parameters
        ----------
        tokens : range
            Positions of the computed tokens.
        seconds : float
            Duration in seconds.

        Raises
        ------
        InputError
            ``invalid_setting`` for a negative number of seconds.

        Examples
        --------
        >>> model.observe_prefill(range(0, 2048), 0.4)
        """
        self._core.observe_prefill(tokens.start, tokens.stop, seconds)

    def prefill_seconds(self, tokens: range) -> float:
        """Return the expected time to compute tokens, in seconds.

        Examples
        --------
        >>> round(store.model(spec, prefill_tokens_per_s=1000).prefill_seconds(range(0, 2000)), 3)
        2.0
        """
        return self._core.prefill_seconds(tokens.start, tokens.stop)

    def session(
        self,
        tokens: Any,
        *,
        kind: str | None = None,
        turn: int = 0,
        salt: bytes | None = None,
        adapter: str | None = None,
        timeout: float | None = None,
    ) -> Session:
        """Open a session for a prompt, and look it up. If the service is slow or unavailable, the session is a miss.

        Parameters
        ----------
        tokens : sequence of int, array or tensor
            Token ids.
        kind : str, optional
            Type of the request, a hint for eviction: ``text``, ``file``, ``search``, ``agent``, ….
        turn : int
            Turn in its conversation, from 1; with 0 the service infers it.
        salt : bytes, optional
            A secret of the users who may share this cache.
        adapter : str, optional
            Name and digest of the request's adapter (LoRA).
        timeout : float, optional
            Time limit of the lookup, in seconds.

        Examples
        --------
        >>> session = model.session(tokens)
        >>> session.matched
        0
        """
        ids = token_list(tokens)
        return Session(self.spec, ids, self._core.session(ids, kind, turn, salt, adapter, timeout, False))

    def explain(self, tokens: Any) -> Json:
        """Explain why a lookup of these tokens ends where it does.

        Examples
        --------
        >>> model.explain([1] * 64)["causes"][0]["reason"]
        'never_stored'
        """
        found: Json = self._store._request("explain", **explain_body(self.spec, self._store.namespace, tokens))
        return found

    def create_context(
        self, saved: Saved, *, labels: Mapping[str, str] | None = None, ttl_s: int | None = None, pinned: bool = False
    ) -> Json:
        """Create a named context over the saved chunks, from the first token on.

        Parameters
        ----------
        saved : Saved
            Report of the save.
        labels : mapping, optional
            Labels, for filtering lists.
        ttl_s : int, optional
            Lifetime in seconds. Default: no expiry.
        pinned : bool
            Whether its chunks are protected from garbage collection.

        Examples
        --------
        >>> saved = model.session(tokens).save(kv)
        >>> model.create_context(saved, labels={"team": "docs"})["tokens"] == len(tokens)
        True
        """
        body = context_body(self.spec, self._store.namespace, saved)
        found: Json = self._store._request("create_context", **body, labels=dict(labels or {}), ttl_s=ttl_s, pinned=pinned)
        return found

    def drain(self) -> None:
        """Wait until all background saves have ended.

        Examples
        --------
        >>> model.drain()
        """
        self._core.drain(False)

    def __repr__(self) -> str:
        return f"<Model {self.spec.model_id[:12]} at {self._store.url}>"


def made_profile(core: _kvasir.Model) -> Profile | None:
    """The profile of a model, if it is known."""
    found = core.profile
    return None if found is None else Profile._of(found)


def explain_body(spec: ModelSpec, namespace: str, tokens: Any) -> Json:
    """The request of explain."""
    return {
        "model_id": spec.model_id,
        "spec": json.loads(spec.to_json()),
        "namespace": namespace,
        "tokens": token_list(tokens),
    }


def context_body(spec: ModelSpec, namespace: str, saved: Saved) -> Json:
    """The request that creates a context."""
    return {"model_id": spec.model_id, "namespace": namespace, "chunks": [chunk.seq_hash for chunk in saved.chunks]}
