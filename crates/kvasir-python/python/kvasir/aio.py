"""The API of `kvasir` for ``asyncio``: blocking calls there are awaitable here. Cancelling a task abandons its request at once.

Examples
--------
>>> import asyncio
>>> async def main():
...     store = await kvasir.aio.connect(server.url)
...     return (await store.usage())["objects"]
>>> asyncio.run(main()) >= 0
True
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from . import _kvasir
from ._codec import Profile, profile_of
from ._model import Json, context_body, explain_body, made_profile
from ._reports import Loaded, Loss, Saved
from ._spec import KV, ModelSpec, spec_of, token_list
from ._store import JOB_EVERY_S, ProfileLike, label_query, request_body

__all__ = ["Model", "Save", "Session", "Store", "connect"]


async def connect(url: str, token: str | None = None, namespace: str = "default", zone: str | None = None) -> Store:
    """As `kvasir.connect`."""
    return Store(await _kvasir.connect(url, token, namespace, zone, True))


class Store:
    """As `kvasir.Store`."""

    __slots__ = ("_core",)

    def __init__(self, core: _kvasir.Store) -> None:
        self._core = core

    async def _request(self, name: str, **body: Any) -> Any:
        return json.loads(await self._core.request(name, request_body(body), True))

    @property
    def url(self) -> str:
        """The service's address."""
        return self._core.url

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self._core.namespace

    async def model(
        self,
        model: Any,
        profile: ProfileLike | None = None,
        *,
        chunk_tokens: int | None = None,
        prefill_tokens_per_s: float | None = None,
        quality: str | None = "transparent",
        **options: Any,
    ) -> Model:
        """As `kvasir.Store.model`."""
        spec = spec_of(model, **options)
        found = None if profile is None else profile_of(profile)
        if isinstance(found, str):
            found = Profile._of(await self._core.profile(spec.model_id, found, True))
        core = None if found is None else found._core
        core_model = await self._core.model(spec._core, core, chunk_tokens, prefill_tokens_per_s, quality, True)
        return Model(self, core_model)

    async def usage(self) -> Json:
        """As `kvasir.Store.usage`."""
        found: Json = await self._request("usage")
        return found

    async def config(self) -> Json:
        """As `kvasir.Store.config`."""
        found: Json = await self._request("config")
        return found

    async def put_object(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        """As `kvasir.Store.put_object`."""
        return await self._core.put_object(key, data, True)

    async def put_objects(self, objects: Mapping[str, bytes | bytearray | memoryview]) -> dict[str, str]:
        """As `kvasir.Store.put_objects`."""
        return await self._core.put_objects(list(objects.items()), True)

    async def get_object(self, key: str) -> bytes:
        """As `kvasir.Store.get_object`."""
        return await self._core.get_object(key, True)

    async def find_objects(self, keys: Sequence[str]) -> list[int]:
        """As `kvasir.Store.find_objects`."""
        found: list[int] = await self._request("find_objects", namespace=self.namespace, keys=list(keys))
        return found

    async def read_objects(self, keys: Sequence[str]) -> list[bytes]:
        """As `kvasir.Store.read_objects`."""
        return await self._core.read_objects(list(keys), True)

    async def explain_objects(self, keys: Sequence[str]) -> Json:
        """As `kvasir.Store.explain_objects`."""
        found: Json = await self._request("explain_objects", namespace=self.namespace, keys=list(keys))
        return found

    async def delete_object(self, key: str) -> None:
        """As `kvasir.Store.delete_object`."""
        await self._request("delete_object", namespace=self.namespace, key=key)

    async def contexts(self, labels: Mapping[str, str] | None = None) -> AsyncIterator[Json]:
        """As `kvasir.Store.contexts`."""
        after = None
        while True:
            page = await self._request("contexts", labels=label_query(labels), after=after)
            for context in page["contexts"]:
                yield context
            after = page.get("next")
            if after is None:
                return

    async def context(self, context_id: str, version: int | None = None) -> Json:
        """As `kvasir.Store.context`."""
        found: Json = await self._request("context", context_id=context_id, version=version)
        return found

    async def change_context(self, context_id: str, **change: Any) -> Json:
        """As `kvasir.Store.change_context`."""
        found: Json = await self._request("change_context", context_id=context_id, change=change)
        return found

    async def delete_context(self, context_id: str) -> None:
        """As `kvasir.Store.delete_context`."""
        await self._request("delete_context", context_id=context_id)

    async def events(self, types: str | None = None, after: str | None = None) -> AsyncIterator[Json]:
        """As `kvasir.Store.events`."""
        stream = await self._core.events(request_body({"types": types, "after": after}), True)
        while (text := await stream.next(True)) is not None:
            yield json.loads(text)

    async def run_job(
        self,
        kind: str,
        *,
        dry_run: bool = False,
        tenant: str | None = None,
        progress: Callable[[Mapping[str, int]], object] | None = None,
    ) -> Json:
        """As `kvasir.Store.run_job`."""
        job: Json = await self._request("start_job", kind=kind, dry_run=dry_run, tenant=tenant)
        while job["state"] == "running":
            await asyncio.sleep(JOB_EVERY_S)
            job = await self._request("job", job_id=job["job_id"])
            if progress is not None:
                progress(job["counts"])
        return job


class Model:
    """As `kvasir.Model`."""

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
        """As `kvasir.Model.profile`."""
        return made_profile(self._core)

    def observe_prefill(self, tokens: range, seconds: float) -> None:
        """As `kvasir.Model.observe_prefill`."""
        self._core.observe_prefill(tokens.start, tokens.stop, seconds)

    def prefill_seconds(self, tokens: range) -> float:
        """As `kvasir.Model.prefill_seconds`."""
        return self._core.prefill_seconds(tokens.start, tokens.stop)

    async def session(
        self,
        tokens: Any,
        *,
        kind: str | None = None,
        turn: int = 0,
        salt: bytes | None = None,
        adapter: str | None = None,
        timeout: float | None = None,
    ) -> Session:
        """As `kvasir.Model.session`."""
        ids = token_list(tokens)
        return Session(self.spec, ids, await self._core.session(ids, kind, turn, salt, adapter, timeout, True))

    async def explain(self, tokens: Any) -> Json:
        """As `kvasir.Model.explain`."""
        body = explain_body(self.spec, self._store.namespace, tokens)
        found: Json = await self._store._request("explain", **body)
        return found

    async def create_context(
        self, saved: Saved, *, labels: Mapping[str, str] | None = None, ttl_s: int | None = None, pinned: bool = False
    ) -> Json:
        """As `kvasir.Model.create_context`."""
        body = context_body(self.spec, self._store.namespace, saved)
        found: Json = await self._store._request("create_context", **body, labels=dict(labels or {}), ttl_s=ttl_s, pinned=pinned)
        return found

    async def drain(self) -> None:
        """As `kvasir.Model.drain`."""
        await self._core.drain(True)


class Session:
    """As `kvasir.Session`."""

    def __init__(self, spec: ModelSpec, tokens: list[int], core: _kvasir.Session) -> None:
        self._spec = spec
        self._core = core
        self.tokens = tokens
        self.missing = [range(len(tokens))]

    @property
    def matched(self) -> int:
        """Leading tokens that are stored; 0 for a miss."""
        return self._core.matched

    @property
    def below_quality(self) -> int:
        """As `kvasir.Session.below_quality`."""
        return self._core.below_quality

    @property
    def error(self) -> Exception | None:
        """Why the lookup failed, if it did."""
        return self._core.lookup_error()

    async def load(
        self,
        into: KV = None,
        *,
        deadline: float | None = None,
        level: int | None = None,
        present: int = 0,
        rank: tuple[int, int] | None = None,
        soft_quality: str | None = None,
    ) -> Loaded:
        """As `kvasir.Session.load`. If it is cancelled, writes to `into` may follow shortly after the `CancelledError`."""
        target = self._spec.empty(self.matched) if into is None else into
        loaded = Loaded._of(target, await self._core.load(target, deadline, level, present, rank, soft_quality, True))
        self.missing = loaded.missing
        return loaded

    async def save(self, kv: KV, tokens: int | None = None) -> Saved:
        """As `kvasir.Session.save`."""
        return Saved._of(await self._core.save(kv, len(self.tokens) if tokens is None else tokens, True))

    def save_in_background(self, kv: KV, tokens: int | None = None) -> Save:
        """As `kvasir.Session.save_in_background`."""
        return Save(self._core.save_in_background(kv, len(self.tokens) if tokens is None else tokens))

    def reused(self, loss: Loss) -> None:
        """As `kvasir.Session.reused`."""
        self._core.reused(*loss)

    def extend(self, tokens: Any) -> None:
        """As `kvasir.Session.extend`."""
        more = token_list(tokens)
        self._core.extend(more)
        self.tokens = self.tokens + more


class Save:
    """As `kvasir.Save`."""

    __slots__ = ("_core",)

    def __init__(self, core: _kvasir.Save) -> None:
        self._core = core

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._core.is_done

    async def wait(self) -> Saved:
        """As `kvasir.Save.wait`."""
        return Saved._of(await self._core.wait(True))
