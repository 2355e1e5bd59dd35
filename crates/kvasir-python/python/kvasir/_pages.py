"""Pages of an engine's cache as objects in the service: in batches, within deadlines, counted by outcome.

The base of all engine back ends. Its futures never fail: a page that the service does not deliver is a miss.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import and_
from typing import Any, TypeVar

from . import _kvasir
from ._identities import Identity, Register
from ._notices import Notices
from .errors import AuthError, InputError, KvasirError

T = TypeVar("T")

Page = Sequence[tuple[int, int]]
"""Addresses and lengths of a page's parts in the engine's memory, which must remain valid until its future is done."""

LOADED, LOADED_AGAIN, STORED, PRESENT = "loaded", "loaded_again", "stored", "present"
_BELOW_QUALITY = "below_quality"

# Descriptions of the metrics of all back ends.
PAGES_TEXT = "Pages looked up, loaded or stored, by outcome."
BYTES_TEXT = "Bytes of pages loaded from Kvasir or stored in it."

_AGAIN_S = 1.0
_AGAIN_MAX_S = 30.0
# Time limit of a batch of stores: at 100 Mb/s, 375 MB.
_STORE_S = 30.0
# Batches of stores in flight. If the service stalls, each holds pages of the engine's memory, and further batches are not stored.
_STORES_MAX = 64
# Keys with an unusable object, which is deleted before the next store.
_USELESS = ("damaged", "other_size")
# Keys with an object below the quality count as missing for so long after it was loaded. A found page that is not loaded
# fails its request in some engines, and somebody may have removed the object since.
_BELOW_S = 600.0
_BELOW_MAX = 65_536
# Cached layouts: the last chunk of a context is shorter, and each length is a separate layout.
_LAYOUTS_MAX = 512
# Cached key prefixes: one per salt.
_PREFIXES_MAX = 4096


@dataclass(frozen=True)
class PageLayout:
    """The layout of a page's values. Pages of one layout and model share a profile.

    Attributes
    ----------
    model : str
        Name of the model.
    dtype : str
        Type of the cache, as torch names it.
    shape : tuple of int
        Layers, tokens, heads and elements of a head.
    order : str
        The axes, outermost first: ``2`` keys and values, ``L`` layers, ``N`` tokens, ``H`` heads, ``D`` elements.
    """

    model: str
    dtype: str
    shape: tuple[int, int, int, int]
    order: str


Layouts = PageLayout | None | Sequence[PageLayout | None]
"""The layout of all pages of a batch, or of each of them; None where it is unknown, or the page cannot be encoded."""

_Work = Callable[[list[str], Sequence[Page], "PageLayout | None"], Coroutine[Any, Any, list[T]]]


@dataclass(frozen=True)
class Settings:
    """User settings of a back end.

    Attributes
    ----------
    url : str
        The service's address.
    token : str or None
        A token of the service. Default: the environment variable ``KVASIR_TOKEN``.
    namespace : str
        Caches of different namespaces never match.
    revision : str
        Identity of the weights, if the model's name is not enough: a commit, a training run. Caches of different ones never match.
    quality : str or None
        Encode pages with a known layout: ``exact`` packs them bit for bit; ``transparent``, ``balanced`` and ``small`` keep
        that quality, measured for each page. Encoded pages that are stored below it are misses. Default: pages are stored
        unchanged.
    lookup_deadline_s : float
        Time limit of a lookup.
    load_deadline_s : float
        Time limit of a load.
    zone : str or None
        The zone of this engine: of two replicas that keep a context, one in the same zone is asked first. Default: the
        environment variable ``KVASIR_ZONE``.
    """

    url: str
    token: str | None = None
    namespace: str = "default"
    revision: str = ""
    quality: str | None = None
    lookup_deadline_s: float = 0.5
    load_deadline_s: float = 10.0
    zone: str | None = None


class PageStore:
    """The service, accessed from a separate thread. It connects in the background until it succeeds, or finds that it cannot.

    Calls during the first attempt to connect wait for it, within their own time limits. Later ones never wait for a connection.

    Attributes
    ----------
    counts : Counter
        Keys by ``finds:``, ``loads:`` or ``stores:`` and their outcome, plus ``load_bytes`` and ``store_bytes``.
    mismatches : dict
        Why no stored page fits, by identity.
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
        # Identities whose misses were explained, and those with pages stored by this engine.
        self._asked: set[Identity] = set()
        self._noted: set[Identity] = set()
        # Keys whose objects were below the quality, and until when they count as missing.
        self._below: dict[str, float] = {}
        self._stores = 0
        # When a lookup was last late.
        self._late_at = -math.inf
        self._moving: set[Future[Any]] = set()
        self._is_closed = False
        # Set when the first attempt to connect has ended.
        self._is_tried = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvasir-pages", daemon=True)
        self._thread.start()
        self._connecting = self._run(self._connect(), None)

    @property
    def is_connected(self) -> bool:
        """Whether the service is connected."""
        return self._objects is not None

    def names(self, identity: Identity, rank: Iterable[int], hashes: Iterable[str], salt: str = "") -> list[str]:
        """Return the keys of a rank's pages: another identity, rank or salt is a miss."""
        prefix = self._prefixes.get((identity, salt))
        if prefix is None:
            if len(self._prefixes) >= _PREFIXES_MAX:
                self._prefixes.clear()
                self._identities.clear()
            prefix = self._prefixes[identity, salt] = identity.prefix(salt)
            self._identities[prefix] = identity
        of_rank = prefix + ".".join(map(str, rank))
        return [f"{of_rank}/{each}" for each in hashes]

    def take_counts(self) -> dict[str, int]:
        """Return the counts since the last call."""
        counts = Counter(self.counts)
        new, self._told = counts - self._told, counts
        return dict(new)

    def find(self, rows: Sequence[Sequence[str]], gaps: bool = False, asked_at: float = math.inf) -> Future[list[list[bool]]]:
        """Report whether each key of each row is stored; without `gaps`, keys after the first missing one count as missing.

        Only a page's bytes tell that it is below the quality: once it was loaded, it and those behind it count as missing
        for ten minutes.

        An engine whose lookups wait for one another says when it asked: if one was late since, this one is late, too.
        """
        none = [[False] * len(row) for row in rows]
        return self._move(self._find([list(row) for row in rows], gaps, none, asked_at), none)

    def load(self, keys: Sequence[str], pages: Sequence[Page], layout: Layouts = None) -> Future[list[bool]]:
        """Fill pages with the objects stored under their keys. Only pages that are sound and at the quality count as loaded."""
        return self._move(self._of_each(self._load, list(keys), pages, layout), [False] * len(keys))

    def store(self, keys: Sequence[str], pages: Sequence[Page], layout: Layouts = None) -> Future[list[str]]:
        """Store pages under their keys, and report each outcome: `STORED`, `PRESENT`, or why it was not stored."""
        return self._move(self._of_each(self._store, list(keys), pages, layout), ["internal"] * len(keys))

    def delete(self, keys: Sequence[str]) -> Future[list[bool]]:
        """Remove the objects under keys, and report whether each existed."""
        return self._move(self._delete(list(keys)), [False] * len(keys))

    def drain(self) -> None:
        """Wait until no operation reads or writes the engine's memory. Each one has a deadline."""
        while moving := self._moving.copy():
            wait(moving)

    def close(self) -> None:
        """Wait for operations in flight, and stop. What is asked for afterwards counts as missed."""
        self._is_closed = True
        self._connecting.cancel()
        self._loop.call_soon_threadsafe(self._is_tried.set)
        self.drain()
        # One step later: in the first, the cancelled attempt to connect ends.
        self._loop.call_soon_threadsafe(self._loop.call_soon, self._loop.stop)
        self._thread.join()

    def _run(self, work: Coroutine[Any, Any, T], otherwise: T) -> Future[T]:
        if self._is_closed:
            work.close()
            missed: Future[T] = Future()
            missed.set_result(otherwise)
            return missed

        async def guarded() -> T:
            try:
                return await work
            except Exception:
                # An engine that waits for the result must not wait forever.
                self._logger.exception("unexpected error, counted as a miss; please report it")
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
                store = await _kvasir.connect(settings.url, settings.token, settings.namespace, settings.zone, True)
                self._objects, self._register = store.objects(), Register(store)
                self._logger.info("Kvasir at %s keeps this cache", settings.url)
                return
            except (AuthError, InputError) as error:
                self._logger.error("the engine runs without Kvasir: %s", error)
                return
            except KvasirError as error:
                text = "Kvasir at %s is not available yet, retrying in %.0f s: %s"
                self._logger.warning(text, settings.url, pause, error)
            finally:
                self._is_tried.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _AGAIN_MAX_S)

    async def _wait_until_tried(self, seconds: float) -> float:
        """Wait for the first attempt to connect, and return the rest of the time."""
        if self._is_tried.is_set():
            return seconds
        until = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_tried.wait(), seconds)
        return max(until - time.monotonic(), 0.0)

    async def _find(self, rows: list[list[str]], gaps: bool, none: list[list[bool]], asked_at: float) -> list[list[bool]]:
        asked = sum(map(len, rows))
        if asked_at < self._late_at:
            self.counts["finds:late"] += asked
            return none
        rest = await self._wait_until_tried(self._settings.lookup_deadline_s)
        if self._objects is None:
            if not self._is_tried.is_set():
                self._late_at = time.monotonic()
            self.counts["finds:not_connected"] += asked
            return none
        try:
            sizes = await self._objects.find(rows, gaps, rest, True)
        except KvasirError as error:
            if error.code == "late":
                self._late_at = time.monotonic()
            self.counts[f"finds:{error.code}"] += asked
            self._notices.say("find", "a lookup failed and counts as a miss: %s", error)
            return none
        padded = [[*found, *[None] * (len(row) - len(found))] for row, found in zip(rows, sizes, strict=True)]
        now, there = time.monotonic(), []
        for row, row_sizes in zip(rows, padded, strict=True):
            good = [size is not None and self._below.get(key, 0.0) <= now for key, size in zip(row, row_sizes, strict=True)]
            there.append(good if gaps else list(accumulate(good, and_)))
        found = sum(map(sum, there))
        self.counts["finds:found"] += found
        self.counts["finds:below_quality"] += sum(size is not None for size in chain.from_iterable(padded)) - found
        missing: dict[Identity | None, list[str]] = {}
        for key, size in zip(chain.from_iterable(rows), chain.from_iterable(padded), strict=True):
            identity = self._identity_of(key)
            if size is None:
                missing.setdefault(identity, []).append(key)
            elif identity is not None:
                self.mismatches.pop(identity, None)
        for identity, keys in missing.items():
            if identity is None or identity in self._asked:
                self._count_missing(identity, len(keys))
            else:
                self._move(self._explain(identity, _prefix_of(keys[0]), len(keys)), None)
        return there

    async def _explain(self, identity: Identity, prefix: str, count: int) -> None:
        """Check once whether pages are missing because all stored pages have other identities."""
        assert self._register is not None
        # Concurrent callers do not ask.
        self._asked.add(identity)
        try:
            difference = await asyncio.wait_for(self._register.difference(identity), self._settings.load_deadline_s)
        except (KvasirError, TimeoutError) as error:
            self._logger.debug("cannot determine why nothing was found: %s", error)
            difference = None
        if difference is not None and identity not in self._noted:
            self.mismatches[identity] = difference
            self._logger.info("no stored page fits this engine; compared with the closest one, %s", difference)
        self._count_missing(identity, count)
        if identity in self.mismatches:
            await self._tell("misses are not explained by their keys", self._register.declare(prefix, identity))

    def _count_missing(self, identity: Identity | None, count: int) -> None:
        self.counts["finds:mismatch" if identity in self.mismatches else "finds:missing"] += count

    def _identity_of(self, key: str) -> Identity | None:
        return self._identities.get(_prefix_of(key))

    async def _note(self, identity: Identity) -> None:
        """Register an identity, once, after its first stored page."""
        assert self._register is not None
        self._noted.add(identity)
        self._asked.add(identity)
        self.mismatches.pop(identity, None)
        await self._tell("other engines cannot explain misses by this one's pages", self._register.add(identity))

    async def _tell(self, otherwise: str, telling: Coroutine[Any, Any, None]) -> None:
        """Store an identity. It may fail: engines work without."""
        try:
            await asyncio.wait_for(telling, self._settings.load_deadline_s)
        except (KvasirError, TimeoutError) as error:
            self._logger.debug("cannot store this engine's identity, so %s: %s", otherwise, error)

    def _objects_of(self, layout: PageLayout | None) -> _kvasir.Objects | None:
        """Return the store for pages of a layout: with encoding, if it is requested and possible."""
        quality = self._settings.quality
        if self._objects is None or layout is None or quality is None:
            return self._objects
        if layout not in self._encoded:
            if len(self._encoded) >= _LAYOUTS_MAX:
                self._encoded.clear()
            model = layout.model, self._settings.revision
            self._encoded[layout] = self._objects.encoded(layout.dtype, layout.shape, layout.order, quality, model)
        return self._encoded[layout]

    async def _of_each(self, work: _Work[T], keys: list[str], pages: Sequence[Page], layout: Layouts) -> list[T]:
        """Do the work for the pages of each layout, all at once, and return its results in the order of the keys."""
        if layout is None or isinstance(layout, PageLayout):
            return await work(keys, pages, layout)
        places: dict[PageLayout | None, list[int]] = {}
        for place, each in enumerate(layout):
            places.setdefault(None if self._settings.quality is None else each, []).append(place)
        batches = (work([keys[at] for at in those], [pages[at] for at in those], each) for each, those in places.items())
        # All of them end before a failure is told: until then they use the engine's memory.
        done = await asyncio.gather(*batches, return_exceptions=True)
        results: dict[int, T] = {}
        for those, outcome in zip(places.values(), done, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            results.update(zip(those, outcome, strict=True))
        return [results[place] for place in range(len(keys))]

    async def _load(self, keys: list[str], pages: Sequence[Page], layout: PageLayout | None) -> list[bool]:
        rest = await self._wait_until_tried(self._settings.load_deadline_s)
        objects = self._objects_of(layout)
        if objects is None:
            self.counts["loads:not_connected"] += len(keys)
            return [False] * len(keys)
        outcomes = await objects.load(keys, [_parts(page) for page in pages], rest, True)
        loaded = [outcome in (LOADED, LOADED_AGAIN) for outcome in outcomes]
        self._count("loads", outcomes)
        self.counts["load_bytes"] += sum(size_of(page) for page, is_loaded in zip(pages, loaded, strict=True) if is_loaded)
        below = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome == _BELOW_QUALITY]
        if self._below:
            for key, is_loaded in zip(keys, loaded, strict=True):
                if is_loaded:
                    self._below.pop(key, None)
        if below:
            if len(self._below) + len(below) > _BELOW_MAX:
                self._below.clear()
            self._below.update(dict.fromkeys(below, time.monotonic() + _BELOW_S))
            what = "%d of %d pages are stored below quality %s, and computed each time: use another namespace"
            self._notices.say("quality", what, len(below), len(keys), self._settings.quality)
        failed = [outcome for outcome in outcomes if outcome not in (LOADED, LOADED_AGAIN, _BELOW_QUALITY)]
        if failed:
            self._notices.say("load", "%d of %d pages were not loaded: %s", len(failed), len(keys), failed[0])
        useless = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome in _USELESS]
        if useless:
            # A key's bytes are immutable: without a removal, the recomputed page could not be stored.
            self._move(self._delete(useless), [])
        return loaded

    async def _store(self, keys: list[str], pages: Sequence[Page], layout: PageLayout | None) -> list[str]:
        if self._stores >= _STORES_MAX:
            outcomes = ["dropped"] * len(keys)
        else:
            self._stores += 1
            try:
                rest = await self._wait_until_tried(_STORE_S)
                objects = self._objects_of(layout)
                if objects is None:
                    outcomes = ["not_connected"] * len(keys)
                else:
                    outcomes = await objects.store(keys, [_parts(page) for page in pages], rest, True)
            finally:
                self._stores -= 1
        self._count("stores", outcomes)
        stored = {self._identity_of(key) for key, outcome in zip(keys, outcomes, strict=True) if outcome == STORED}
        for identity in stored - self._noted:
            if identity is not None:
                self._move(self._note(identity), None)
        for key, outcome in zip(keys, outcomes, strict=True):
            if outcome == STORED:
                # Somebody has removed what was below the quality.
                self._below.pop(key, None)
        new = (page for page, outcome in zip(pages, outcomes, strict=True) if outcome == STORED)
        self.counts["store_bytes"] += sum(map(size_of, new))
        failed = [outcome for outcome in outcomes if outcome not in (STORED, PRESENT)]
        if failed:
            self._notices.say("store", "%d of %d pages were not stored: %s", len(failed), len(keys), failed[0])
        return outcomes

    async def _delete(self, keys: list[str]) -> list[bool]:
        rest = await self._wait_until_tried(self._settings.load_deadline_s)
        if self._objects is None:
            return [False] * len(keys)
        try:
            return await self._objects.delete(keys, rest, True)
        except KvasirError as error:
            self._notices.say("delete", "%d pages were not removed: %s", len(keys), error)
            return [False] * len(keys)

    def _count(self, what: str, outcomes: list[str]) -> None:
        self.counts.update(f"{what}:{outcome}" for outcome in outcomes)


def is_of_bytes(count: str) -> bool:
    """Whether a name in `PageStore.counts` counts bytes rather than pages."""
    return count.endswith("_bytes")


def size_of(page: Page) -> int:
    """Return the size of a page in bytes."""
    return sum(size for _, size in page)


def _prefix_of(key: str) -> str:
    engine, digest, _ = f"{key}//".split("/", 2)
    return f"{engine}/{digest}/"


def _parts(page: Page) -> list[tuple[int, int, tuple[int], str]]:
    """Convert a page to the extension's form of memory."""
    return [(address, size, (size,), "uint8") for address, size in page]
