"""A model in a service, for callers that wait. `kvasir.aio` has the same for ``asyncio``."""

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
        """What its cache looks like."""
        return ModelSpec(self._core.spec)

    @property
    def profile(self) -> Profile | None:
        """What its caches are encoded with; None before the first save where no profile was given."""
        return made_profile(self._core)

    def observe_prefill(self, tokens: range, seconds: float) -> None:
        """Tell what computing tokens took, over the cache of those before them: later loads are weighed against it.

        Each observation moves the expectation a little; one that is wrong by far is better said as ``prefill_tokens_per_s``.

        Parameters
        ----------
        tokens : range
            Positions that were computed.
        seconds : float
            How long it took.

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
        """Tell how long computing tokens is expected to take.

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
        """Open a session for a prompt, and look it up. A miss, a slow service and a dead one are all the same: it matches nothing.

        Parameters
        ----------
        tokens : sequence of int, array or tensor
            Token ids.
        kind : str, optional
            Type of the request, which the service keeps by: ``text``, ``file``, ``search``, ``agent``, ….
        turn : int
            Turn in its conversation, from 1; 0 leaves it to the service.
        salt : bytes, optional
            A secret of those who may share this cache.
        adapter : str, optional
            Name and digest of the adapter (LoRA) that this request runs with.
        timeout : float, optional
            Longest that the lookup may take, in seconds.

        Examples
        --------
        >>> session = model.session(tokens)
        >>> session.matched
        0
        """
        ids = token_list(tokens)
        return Session(self.spec, ids, self._core.session(ids, kind, turn, salt, adapter, timeout, False))

    def explain(self, tokens: Any) -> Json:
        """Tell why a lookup of these tokens ends where it ends.

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
        """Name what was saved from the first token on.

        Parameters
        ----------
        saved : Saved
            Report of the save.
        labels : mapping, optional
            Labels, for lists.
        ttl_s : int, optional
            Life in seconds; by default until it is deleted.
        pinned : bool
            Whether its chunks stay, whatever is collected.

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
        """Wait until nothing is left to be saved in the background.

        Examples
        --------
        >>> model.drain()
        """
        self._core.drain(False)

    def __repr__(self) -> str:
        return f"<Model {self.spec.model_id[:12]} at {self._store.url}>"


def made_profile(core: _kvasir.Model) -> Profile | None:
    """The profile of a model, where it is known."""
    found = core.profile
    return None if found is None else Profile._of(found)


def explain_body(spec: ModelSpec, namespace: str, tokens: Any) -> Json:
    """What explain asks."""
    return {
        "model_id": spec.model_id,
        "spec": json.loads(spec.to_json()),
        "namespace": namespace,
        "tokens": token_list(tokens),
    }


def context_body(spec: ModelSpec, namespace: str, saved: Saved) -> Json:
    """What names a context."""
    return {"model_id": spec.model_id, "namespace": namespace, "chunks": [chunk.seq_hash for chunk in saved.chunks]}
