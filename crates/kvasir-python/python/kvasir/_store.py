"""A service and its contents, with blocking calls. `kvasir.aio` has the same for ``asyncio``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import _kvasir
from ._codec import Profile, profile_of
from ._model import Json, Model
from ._spec import spec_of

ProfileLike = Profile | bytes | str | os.PathLike[str]
"""A profile, its bytes, its path, or its id in the store."""

JOB_EVERY_S = 0.5


def connect(url: str, token: str | None = None, namespace: str = "default", zone: str | None = None) -> Store:
    """Connect to a service.

    Parameters
    ----------
    url : str
        Its address, ``http://host:port``.
    token : str, optional
        A token of the service, or a JSON Web Token.
    namespace : str
        Caches of different namespaces never match.
    zone : str, optional
        The zone that this process runs in: of the two replicas that keep a context, one in the same zone is asked first.

    Returns
    -------
    Store
        Usable from many threads; not after a fork.

    Raises
    ------
    UnavailableError
        If the service does not respond.
    AuthError
        If it does not accept the token.

    Examples
    --------
    >>> with kvasir.testing.server() as s:
    ...     kvasir.connect(s.url).usage()["objects"]
    0
    """
    return Store(_kvasir.connect(url, token, namespace, zone, False))


class Store:
    """A service, for one credential and one namespace. Made by `connect`."""

    __slots__ = ("_core",)

    def __init__(self, core: _kvasir.Store) -> None:
        self._core = core

    def _request(self, name: str, **body: Any) -> Any:
        return json.loads(self._core.request(name, request_body(body), False))

    @property
    def url(self) -> str:
        """The service's address."""
        return self._core.url

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self._core.namespace

    def model(
        self,
        model: Any,
        profile: ProfileLike | None = None,
        *,
        weights: str | None = None,
        revision: str | None = None,
        adapter: str | None = None,
        kv_dtype: str | None = None,
        pairing: str | None = None,
        context: int | None = None,
        chunk_tokens: int | None = None,
        prefill_tokens_per_s: float | None = None,
        quality: str | None = "transparent",
    ) -> Model:
        """Register a model, to look up, load and save its caches.

        Parameters
        ----------
        model : ModelSpec, dict, path, or object with ``to_dict``
            A spec, or a Hugging Face configuration as `ModelSpec.from_config` reads it with the options below.
        profile : Profile, bytes, path, or str, optional
            The profile to encode caches with; a text of 64 hexadecimal digits is the id of a stored profile. Default: the
            profile in force at the service; if there is none, one made from the first cache saved.
        weights, revision, adapter, kv_dtype, pairing, context
            As `ModelSpec.from_config`. Weights, revision and adapter are part of the model's identity.
        chunk_tokens : int, optional
            Tokens of a stored chunk: a multiple of 256 up to 16,384. Default: 1,536.
        prefill_tokens_per_s : float, optional
            Initial estimate of tokens that the engine computes per second. Default: 4,200, as of a 7·10⁹ parameter model on a GPU.
            A load without a level is given up if the service is silent for longer than computing takes, or if a deadline
            would be missed and computing is faster.
        quality : str or None
            Lowest quality that lookups match and loads bring, by the errors that encoders measured: ``"exact"``, ``"transparent"``,
            ``"balanced"`` or ``"small"``. For ``"exact"`` a given profile needs an exact level. None: whatever the
            deadline allows, also chunks whose error was not measured.

        Raises
        ------
        InputError
            ``invalid_config``, ``invalid_model_spec``, ``invalid_setting``, also for ``"exact"`` with a profile that has no exact
            level, or a ``kv_dtype`` that cannot have one.
        DataError
            ``invalid_profile`` for a profile of another model.
        ServiceError, UnavailableError
            The service responded with an error, or not at all.

        Examples
        --------
        >>> store.model(spec).spec == spec
        True
        """
        options = dict(weights=weights, revision=revision, adapter=adapter, kv_dtype=kv_dtype, pairing=pairing, context=context)
        spec = spec_of(model, **options)
        found = None if profile is None else profile_of(profile)
        if isinstance(found, str):
            found = Profile._of(self._core.profile(spec.model_id, found, False))
        core = None if found is None else found._core
        return Model(self, self._core.model(spec._core, core, chunk_tokens, prefill_tokens_per_s, quality, False))

    def usage(self) -> Json:
        """Return the tenant's usage of the store: objects, bytes, bytes by model.

        Examples
        --------
        >>> store.usage()["bytes"] >= 0
        True
        """
        found: Json = self._request("usage")
        return found

    def config(self) -> Json:
        """Return the service's properties and limits.

        Examples
        --------
        >>> store.config()["block_tokens"]
        16
        """
        found: Json = self._request("config")
        return found

    def contexts(self, labels: Mapping[str, str] | None = None) -> Iterator[Json]:
        """Iterate over named contexts, page by page.

        Parameters
        ----------
        labels : mapping, optional
            Only contexts with these labels.

        Examples
        --------
        >>> [context["labels"] for context in store.contexts({"team": "search"})]
        []
        """
        after = None
        while True:
            page = self._request("contexts", labels=label_query(labels), after=after)
            yield from page["contexts"]
            after = page.get("next")
            if after is None:
                return

    def context(self, context_id: str, version: int | None = None) -> Json:
        """Return a named context. Default: its newest version.

        Raises
        ------
        ServiceError
            ``unknown_context``.

        Examples
        --------
        >>> try:
        ...     store.context("00000000-0000-0000-0000-000000000000")
        ... except kvasir.ServiceError as error:
        ...     print(error.code)
        unknown_context
        """
        found: Json = self._request("context", context_id=context_id, version=version)
        return found

    def change_context(self, context_id: str, **change: Any) -> Json:
        """Write a new version of a context: ``labels``, ``ttl_s``, ``pinned``, ``chunks``. Omitted fields stay the same.

        Raises
        ------
        ServiceError
            ``unknown_context``, ``invalid_context``, ``context_conflict``.

        Examples
        --------
        >>> try:
        ...     store.change_context("00000000-0000-0000-0000-000000000000", pinned=True)
        ... except kvasir.ServiceError as error:
        ...     print(error.code)
        unknown_context
        """
        found: Json = self._request("change_context", context_id=context_id, change=change)
        return found

    def delete_context(self, context_id: str) -> None:
        """Delete a named context.

        Raises
        ------
        ServiceError
            ``unknown_context``.

        Examples
        --------
        >>> try:
        ...     store.delete_context("00000000-0000-0000-0000-000000000000")
        ... except kvasir.ServiceError as error:
        ...     print(error.code)
        unknown_context
        """
        self._request("delete_context", context_id=context_id)

    def put_object(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        """Store bytes under a key, and wait until they are durable. A key's bytes are immutable.

        Parameters
        ----------
        key : str
            1 to 512 bytes of UTF-8, in the store's namespace.
        data : bytes, bytearray, or memoryview
            Contiguous bytes.

        Returns
        -------
        bool
            False if the same bytes were already stored.

        Raises
        ------
        ServiceError
            ``object_exists`` if the key has other bytes, ``body_too_large``, ``storage_quota``.
        InputError
            ``invalid_setting`` for an invalid key.

        Examples
        --------
        >>> store.put_object("page/1", b"bytes"), store.put_object("page/1", b"bytes")
        (True, False)
        """
        return self._core.put_object(key, data, False)

    def put_objects(self, objects: Mapping[str, bytes | bytearray | memoryview]) -> dict[str, str]:
        """Store several objects with one request, each as `put_object` does.

        Parameters
        ----------
        objects : Mapping[str, bytes, bytearray, or memoryview]
            At most 256, and together at most the maximum size of one object.

        Returns
        -------
        dict[str, str]
            Error codes of objects that were not stored, by key; empty if all are durable.

        Raises
        ------
        ServiceError
            ``body_too_large`` for more bytes than the service accepts.

        Examples
        --------
        >>> store.put_objects({"run/1": b"one", "run/2": b"two"}), store.put_objects({"run/1": b"other"})
        ({}, {'run/1': 'object_exists'})
        """
        return self._core.put_objects(list(objects.items()), False)

    def get_object(self, key: str) -> bytes:
        """Return the bytes under a key.

        Raises
        ------
        ServiceError
            ``unknown_object``.

        Examples
        --------
        >>> store.put_object("page/2", b"bytes")
        True
        >>> store.get_object("page/2")
        b'bytes'
        """
        return self._core.get_object(key, False)

    def find_objects(self, keys: Sequence[str]) -> list[int]:
        """Return the sizes of the objects of the leading keys, up to the first that is not stored.

        Parameters
        ----------
        keys : sequence of str
            At most 256, in order of use.

        Examples
        --------
        >>> store.put_object("page/3", b"bytes")
        True
        >>> store.find_objects(["page/3", "page/4"])
        [5]
        """
        found: list[int] = self._request("find_objects", namespace=self.namespace, keys=list(keys))
        return found

    def read_objects(self, keys: Sequence[str]) -> list[bytes]:
        """Return the bytes of the leading keys, up to the first that is not stored, in one request.

        Parameters
        ----------
        keys : sequence of str
            At most 256.

        Examples
        --------
        >>> store.put_object("page/5", b"bytes")
        True
        >>> store.read_objects(["page/5", "page/6"])
        [b'bytes']
        """
        return self._core.read_objects(list(keys), False)

    def explain_objects(self, keys: Sequence[str]) -> Json:
        """Return how many of the leading keys have an object, and why the next one has none.

        For a page that LMCache, SGLang or vLLM's tier asked for in vain, the causes say in which fields that engine differs
        from the closest one that stores.

        Parameters
        ----------
        keys : sequence of str
            At most 256, in order of use.

        Examples
        --------
        >>> store.explain_objects(["page/8"])["causes"][0]["reason"]
        'never_stored'
        """
        found: Json = self._request("explain_objects", namespace=self.namespace, keys=list(keys))
        return found

    def delete_object(self, key: str) -> None:
        """Remove the bytes under a key; other bytes may then be stored under it.

        Raises
        ------
        ServiceError
            ``unknown_object``.

        Examples
        --------
        >>> store.put_object("page/7", b"bytes")
        True
        >>> store.delete_object("page/7")
        """
        self._request("delete_object", namespace=self.namespace, key=key)

    def events(self, types: str | None = None, after: str | None = None) -> Iterator[Json]:
        """Iterate over events of chunks. Ends only when the service stops; leave the loop to stop earlier.

        Parameters
        ----------
        types : str, optional
            Only these types, separated by commas: ``stored``, ``removed``, ``cleared``, ``profile``.
        after : str, optional
            Resume after the event with this ``event_id``.

        Examples
        --------
        >>> events = store.events(types="stored")
        """
        stream = self._core.events(request_body({"types": types, "after": after}), False)

        def follow() -> Iterator[Json]:
            while (text := stream.next(False)) is not None:
                yield json.loads(text)

        return follow()

    def run_job(
        self,
        kind: str,
        *,
        dry_run: bool = False,
        tenant: str | None = None,
        progress: Callable[[Mapping[str, int]], object] | None = None,
    ) -> Json:
        """Run a job of the service, and wait until it ends.

        Parameters
        ----------
        kind : {"gc", "scrub", "seal", "rebuild_index"}
            Kind of the job.
        dry_run : bool
            Whether it only counts; for ``gc`` and ``scrub``.
        tenant : str, optional
            The tenant that a ``seal`` moves to its first key.
        progress : callable, optional
            Called with the job's counts twice per second.

        Raises
        ------
        ServiceError
            ``forbidden``, ``job_running``.

        Examples
        --------
        >>> store.run_job("gc", dry_run=True)["state"]
        'done'
        """
        job: Json = self._request("start_job", kind=kind, dry_run=dry_run, tenant=tenant)
        while job["state"] == "running":
            time.sleep(JOB_EVERY_S)
            job = self._request("job", job_id=job["job_id"])
            if progress is not None:
                progress(job["counts"])
        return job

    def __repr__(self) -> str:
        return f"<Store {self.url}, namespace {self.namespace}>"


def request_body(fields: Mapping[str, Any]) -> str:
    """Return the JSON of a request, without fields that are None."""
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def label_query(labels: Mapping[str, str] | None) -> str | None:
    """Format labels for a query."""
    return None if labels is None else ",".join(f"{name}={value}" for name, value in labels.items())
