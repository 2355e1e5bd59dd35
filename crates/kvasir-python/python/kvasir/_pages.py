"""Pages of an engine's cache as objects in the service: whole batches, within deadlines, counted by what became of them.

Back ends of engines are made of this. None of its futures fails: what the service does not give is a miss.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from . import _kvasir
from ._identities import Identity, Register
from ._notices import Notices
from .errors import AuthError, InputError, KvasirError

T = TypeVar("T")

Page = Sequence[tuple[int, int]]
"""Addresses and lengths of the parts of a page in the engine's memory, which stays until its future is done."""

LOADED, LOADED_AGAIN, STORED, PRESENT = "loaded", "loaded_again", "stored", "present"

# What the metrics of all back ends say that they are.
PAGES_TEXT = "Pages that Kvasir was asked for or given, by what became of them."
BYTES_TEXT = "Bytes of pages that came from Kvasir, or were stored there."

_AGAIN_S = 1.0
_AGAIN_MAX_S = 30.0
# Longest that a batch of stores may take: in it 100 Mb/s bring 375 MB.
_STORE_S = 30.0
# Batches of stores under way. While a service is silent each keeps its pages in the engine's memory; what comes then is not stored.
_STORES_MAX = 64
# Keys under which nothing usable lies, and which are freed for the next store.
_USELESS = ("damaged", "other_size")
# Layouts that are remembered: last chunks of contexts have fewer tokens, each number of its own.
_LAYOUTS_MAX = 512
# Prefixes that are remembered: each salt has its own.
_PREFIXES_MAX = 4096


@dataclass(frozen=True)
class PageLayout:
    """Where the values of a page lie. Pages of one layout and model are encoded with one profile.

    Attributes
    ----------
    model : str
        Its name.
    dtype : str
        Of the cache, as torch names it.
    shape : tuple of int
        Layers, tokens, heads and elements of a head.
    order : str
        The axes, the outermost first: ``2`` keys and values, ``L`` layers, ``N`` tokens, ``H`` heads, ``D`` elements.
    """

    model: str
    dtype: str
    shape: tuple[int, int, int, int]
    order: str


@dataclass(frozen=True)
class Settings:
    """What a user says of a back end.

    Attributes
    ----------
    url : str
        The service's address.
    token : str or None
        A token of the service; by default the environment's ``KVASIR_TOKEN``.
    namespace : str
        Caches of different namespaces never match.
    revision : str
        Identity of the weights where the model's name does not say it: a commit, a training. Caches of different ones never match.
    quality : str or None
        Encode pages whose layout is known: ``exact`` packs them bit for bit; ``transparent``, ``balanced`` and ``small`` keep what
        the names promise, measured for each page. Without it pages are stored as they are.
    lookup_deadline_s : float
        Longest that a lookup may take.
    load_deadline_s : float
        Longest that a load may take.
    """

    url: str
    token: str | None = None
    namespace: str = "default"
    revision: str = ""
    quality: str | None = None
    lookup_deadline_s: float = 0.5
    load_deadline_s: float = 10.0


class PageStore:
    """The service, from a thread of its own. It connects in the background, until it succeeds or cannot.

    Attributes
    ----------
    counts : Counter
        Keys by ``finds:``, ``loads:`` or ``stores:`` and what became of them, and ``load_bytes`` and ``store_bytes``.
    mismatches : dict
        Why nothing that is stored fits, by identity.
    """

    def __init__(self, settings: Settings, logger: logging.Logger) -> None:
        self._settings, self._logger = settings, logger
        self._notices = Notices(logger.warning)
        self._objects: _kvasir.Objects | None = None
        self._encoded: dict[PageLayout, _kvasir.Objects] = {}
        self.counts: Counter[str] = Counter()
        self.mismatches: dict[Identity, str] = {}
        self._told: Counter[str] = Counter()
        self._prefixes: dict[tuple[Identity, str], str] = {}
        self._identities: dict[str, Identity] = {}
        self._register: Register | None = None
        # Identities of which a miss was asked a reason for, and those that this engine has stored something of.
        self._asked: set[Identity] = set()
        self._noted: set[Identity] = set()
        self._stores = 0
        self._moving: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvasir-pages", daemon=True)
        self._thread.start()
        self._connecting = self._run(self._connect(), None)

    @property
    def is_connected(self) -> bool:
        """Whether there is somebody to ask."""
        return self._objects is not None

    def names(self, identity: Identity, hashes: Iterable[str], salt: str = "") -> list[str]:
        """Give the keys of pages: another identity or salt is a miss."""
        prefix = self._prefixes.get((identity, salt))
        if prefix is None:
            if len(self._prefixes) >= _PREFIXES_MAX:
                self._prefixes.clear()
                self._identities.clear()
            prefix = self._prefixes[identity, salt] = identity.prefix(salt)
            self._identities[prefix] = identity
        return [prefix + each for each in hashes]

    def take_counts(self) -> dict[str, int]:
        """Give what was counted since the last call."""
        counts = Counter(self.counts)
        new, self._told = counts - self._told, counts
        return dict(new)

    def find(self, rows: Sequence[Sequence[str]], gaps: bool = False) -> Future[list[list[bool]]]:
        """Say of each key of each row whether something is stored under it; without `gaps` none is behind one that is missing."""
        none = [[False] * len(row) for row in rows]
        return self._run(self._find([list(row) for row in rows], gaps, none), none)

    def load(self, keys: Sequence[str], pages: Sequence[Page], layout: PageLayout | None = None) -> Future[list[bool]]:
        """Fill pages with what is stored under their keys. Only those count whose bytes are the stored ones by their checksum."""
        return self._move(self._load(list(keys), pages, layout), [False] * len(keys))

    def store(self, keys: Sequence[str], pages: Sequence[Page], layout: PageLayout | None = None) -> Future[list[str]]:
        """Store pages under their keys, and say of each what became of it: `STORED`, `PRESENT`, or why it is not stored."""
        return self._move(self._store(list(keys), pages, layout), ["internal"] * len(keys))

    def delete(self, keys: Sequence[str]) -> Future[list[bool]]:
        """Remove what is stored under keys, and say of each whether something was."""
        return self._run(self._delete(list(keys)), [False] * len(keys))

    def drain(self) -> None:
        """Wait until nothing is under way that reads or writes the engine's memory; each has its deadline."""
        while moving := self._moving.copy():
            wait(moving)

    def close(self) -> None:
        """Wait for what is under way, and end."""
        self._connecting.cancel()
        self.drain()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, work: Coroutine[Any, Any, T], otherwise: T) -> Future[T]:
        async def guarded() -> T:
            try:
                return await work
            except Exception:
                # An engine that waits for the answer must not wait for ever.
                self._logger.exception("report this error: it counts as a miss")
                return otherwise

        return asyncio.run_coroutine_threadsafe(guarded(), self._loop)

    def _move(self, work: Coroutine[Any, Any, T], otherwise: T) -> Future[T]:
        future = self._run(work, otherwise)
        self._moving.add(future)
        future.add_done_callback(self._moving.discard)
        return future

    async def _connect(self) -> None:
        settings, pause = self._settings, _AGAIN_S
        while True:
            try:
                store = await _kvasir.connect(settings.url, settings.token, settings.namespace, True)
                self._objects, self._register = store.objects(), Register(store)
                self._logger.info("Kvasir at %s keeps this cache", settings.url)
                return
            except (AuthError, InputError) as error:
                self._logger.error("this cache is kept without Kvasir: %s", error)
                return
            except KvasirError as error:
                text = "Kvasir at %s cannot be used yet, and is tried again in %.0f s: %s"
                self._logger.warning(text, settings.url, pause, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _AGAIN_MAX_S)

    async def _find(self, rows: list[list[str]], gaps: bool, none: list[list[bool]]) -> list[list[bool]]:
        asked = sum(map(len, rows))
        if self._objects is None:
            self.counts["finds:not_connected"] += asked
            return none
        try:
            sizes = await self._objects.find(rows, gaps, self._settings.lookup_deadline_s, True)
        except KvasirError as error:
            self.counts[f"finds:{error.code}"] += asked
            self._notices.say("find", "a lookup failed, and counts as a miss: %s", error)
            return none
        padded = [[*found, *[None] * (len(row) - len(found))] for row, found in zip(rows, sizes, strict=True)]
        there = [[size is not None for size in row] for row in padded]
        self.counts["finds:found"] += sum(map(sum, there))
        missing: Counter[Identity | None] = Counter()
        for key, is_there in zip(chain.from_iterable(rows), chain.from_iterable(there), strict=True):
            identity = self._identity_of(key)
            if not is_there:
                missing[identity] += 1
            elif identity is not None:
                self.mismatches.pop(identity, None)
        for identity, count in missing.items():
            if identity is None or identity in self._asked:
                self._count_missing(identity, count)
            else:
                self._move(self._explain(identity, count), None)
        return there

    async def _explain(self, identity: Identity, count: int) -> None:
        """Ask once whether what is missing is missing because all that is stored is of others."""
        assert self._register is not None
        # Those that come meanwhile do not ask.
        self._asked.add(identity)
        try:
            difference = await asyncio.wait_for(self._register.difference(identity), self._settings.load_deadline_s)
        except (KvasirError, TimeoutError) as error:
            self._logger.debug("why nothing was found could not be asked: %s", error)
            difference = None
        if difference is not None and identity not in self._noted:
            self.mismatches[identity] = difference
            self._logger.info("nothing that is stored fits this engine; of the nearest, %s", difference)
        self._count_missing(identity, count)

    def _count_missing(self, identity: Identity | None, count: int) -> None:
        self.counts["finds:mismatch" if identity in self.mismatches else "finds:missing"] += count

    def _identity_of(self, key: str) -> Identity | None:
        engine, digest, _ = f"{key}//".split("/", 2)
        return self._identities.get(f"{engine}/{digest}/")

    async def _note(self, identity: Identity) -> None:
        """Note, once, that something of an identity is stored."""
        assert self._register is not None
        self._noted.add(identity)
        self._asked.add(identity)
        self.mismatches.pop(identity, None)
        try:
            await asyncio.wait_for(self._register.add(identity), self._settings.load_deadline_s)
        except (KvasirError, TimeoutError) as error:
            self._logger.debug("other engines will not be told what is stored: %s", error)

    def _objects_of(self, layout: PageLayout | None) -> _kvasir.Objects | None:
        """Give what stores and loads pages of a layout: encoded where that is asked for and can be."""
        quality = self._settings.quality
        if self._objects is None or layout is None or quality is None:
            return self._objects
        if layout not in self._encoded:
            if len(self._encoded) >= _LAYOUTS_MAX:
                self._encoded.clear()
            model = layout.model, self._settings.revision
            self._encoded[layout] = self._objects.encoded(layout.dtype, layout.shape, layout.order, quality, model)
        return self._encoded[layout]

    async def _load(self, keys: list[str], pages: Sequence[Page], layout: PageLayout | None) -> list[bool]:
        objects = self._objects_of(layout)
        if objects is None:
            self.counts["loads:not_connected"] += len(keys)
            return [False] * len(keys)
        outcomes = await objects.load(keys, [_parts(page) for page in pages], self._settings.load_deadline_s, True)
        loaded = [outcome in (LOADED, LOADED_AGAIN) for outcome in outcomes]
        self._count("loads", outcomes)
        self.counts["load_bytes"] += sum(size_of(page) for page, is_loaded in zip(pages, loaded, strict=True) if is_loaded)
        if not all(loaded):
            worst = outcomes[loaded.index(False)]
            self._notices.say("load", "%d of %d pages were not loaded: %s", loaded.count(False), len(keys), worst)
        useless = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome in _USELESS]
        if useless:
            # A key keeps its bytes: what is computed now could not be stored in their place.
            self._move(self._delete(useless), [])
        return loaded

    async def _store(self, keys: list[str], pages: Sequence[Page], layout: PageLayout | None) -> list[str]:
        objects = self._objects_of(layout)
        if objects is None or self._stores >= _STORES_MAX:
            outcomes = ["not_connected" if objects is None else "dropped"] * len(keys)
        else:
            self._stores += 1
            try:
                outcomes = await objects.store(keys, [_parts(page) for page in pages], _STORE_S, True)
            finally:
                self._stores -= 1
        self._count("stores", outcomes)
        stored = {self._identity_of(key) for key, outcome in zip(keys, outcomes, strict=True) if outcome == STORED}
        for identity in stored - self._noted:
            if identity is not None:
                self._move(self._note(identity), None)
        new = (page for page, outcome in zip(pages, outcomes, strict=True) if outcome == STORED)
        self.counts["store_bytes"] += sum(map(size_of, new))
        failed = [outcome for outcome in outcomes if outcome not in (STORED, PRESENT)]
        if failed:
            self._notices.say("store", "%d of %d pages were not stored: %s", len(failed), len(keys), failed[0])
        return outcomes

    async def _delete(self, keys: list[str]) -> list[bool]:
        if self._objects is None:
            return [False] * len(keys)
        try:
            return await self._objects.delete(keys, self._settings.load_deadline_s, True)
        except KvasirError as error:
            self._notices.say("delete", "%d pages were not removed: %s", len(keys), error)
            return [False] * len(keys)

    def _count(self, what: str, outcomes: list[str]) -> None:
        self.counts.update(f"{what}:{outcome}" for outcome in outcomes)


def is_of_bytes(count: str) -> bool:
    """Whether a name of `PageStore.counts` is of bytes, and not of pages."""
    return count.endswith("_bytes")


def size_of(page: Page) -> int:
    """Bytes of a page."""
    return sum(size for _, size in page)


def _parts(page: Page) -> list[tuple[int, int, tuple[int], str]]:
    """A page as the extension takes memory."""
    return [(address, size, (size,), "uint8") for address, size in page]
