"""Pages of engines' caches, as back ends store and load them: from and to memory, with checksums, within deadlines."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import random
import time
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from proxy import FaultProxy

import kvasir
from kvasir import _pages, aio
from kvasir._identities import Identity
from kvasir._pages import PageLayout, PageStore, Settings
from kvasir._settings import read_settings
from slow_proxy import SlowProxy


class Memory:
    """Memory of an engine's, in which pages of two parts lie."""

    def __init__(self, pages: int, part: int = 5_000, seed: int | None = None) -> None:
        size = 2 * pages * part
        self.bytes = bytearray(size if seed is None else random.Random(seed).randbytes(size))
        self.part = part
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        # The second parts lie behind all first ones.
        self.pages = [[(address + place * part, part), (address + (pages + place) * part, part)] for place in range(pages)]


def connect(url: str, **settings) -> PageStore:
    pages = PageStore(Settings(url, **settings), logging.getLogger("test"))
    until = time.monotonic() + 30
    while not pages.is_connected:
        assert time.monotonic() < until
        time.sleep(0.01)
    return pages


@pytest.fixture
def pages(server, request):
    made = connect(server.url, namespace=request.node.name)
    yield made
    made.close()


def test_pages_come_back(pages):
    keys, written = [f"k/{index}" for index in range(300)], Memory(300, seed=1)
    assert pages.store(keys[:299], written.pages[:299]).result() == ["stored"] * 299
    assert pages.store(keys[:1], written.pages[:1]).result() == ["present"]
    # What another engine computed differs in its last bits.
    assert pages.store(keys[:1], written.pages[1:2]).result() == ["present"]
    read = Memory(300)
    assert pages.load(keys, read.pages).result() == [True] * 299 + [False]
    assert read.bytes[:1_495_000] == written.bytes[:1_495_000] and not any(read.bytes[1_495_000:1_500_000])
    assert pages.counts["loads:loaded"] == 299 and pages.counts["loads:missing"] == 1
    assert pages.counts["load_bytes"] == pages.counts["store_bytes"] == 299 * 10_000
    assert pages.load([], []).result() == [] and pages.store([], []).result() == []


def test_lookups_end_at_the_first_that_is_missing_or_have_gaps(pages):
    written = Memory(3, seed=2)
    pages.store(["a/0", "a/1", "b/1"], written.pages).result()
    rows = [["a/0", "a/1", "a/2"], ["b/0", "b/1"], []]
    assert pages.find(rows).result() == [[True, True, False], [False, False], []]
    assert pages.find(rows, gaps=True).result() == [[True, True, False], [False, True], []]
    assert pages.find([["a/0"] * 300 + ["x"] * 300]).result() == [[True] * 300 + [False] * 300]


def test_what_does_not_fit_is_a_miss_and_goes(pages, server, request):
    written, read, raw = Memory(3, seed=3), Memory(3), kvasir.connect(server.url, namespace=request.node.name)
    keys = ["damaged", "other key", "sound"]
    pages.store(keys, written.pages).result()
    stored = raw.read_objects(keys)
    assert len(stored[0]) == 10_004
    for key in keys[:2]:
        raw.delete_object(key)
    raw.put_object(keys[0], stored[0][:7_000] + bytes([stored[0][7_000] ^ 4]) + stored[0][7_001:])
    raw.put_object(keys[1], stored[2])
    assert pages.load(keys, read.pages).result() == [False, False, True]
    assert pages.counts["loads:damaged"] == 2
    pages.drain()
    assert pages.store(keys, written.pages).result() == ["stored", "stored", "present"]
    assert pages.load(keys, read.pages).result() == [True] * 3 and read.bytes == written.bytes
    # Memory of another layout.
    assert pages.load(keys[2:], Memory(1, part=4_999).pages).result() == [False]
    assert pages.counts["loads:other_size"] == 1


def test_nothing_is_written_after_the_deadline(server):
    keys, written = [f"k/{index}" for index in range(8)], Memory(8, part=500_000, seed=4)
    proxy = SlowProxy(server.url)
    pages = connect(proxy.url, namespace="late", load_deadline_s=3.0)
    assert pages.store(keys, written.pages).result() == ["stored"] * 8
    proxy.hold_after = 3_000_000
    read, begun = Memory(8, part=500_000), time.monotonic()
    loaded = pages.load(keys, read.pages).result()
    assert time.monotonic() - begun < 30 and proxy.held.is_set()
    # What had come before, counts.
    assert any(loaded[:3]) and not any(loaded[3:]) and pages.counts["loads:late"] >= 5
    before = bytes(read.bytes)
    proxy.release()
    time.sleep(0.5)
    assert read.bytes == before
    proxy.hold_after = 0
    pages.close()


def test_a_service_that_is_away_is_a_miss():
    pages = PageStore(Settings("http://127.0.0.1:1"), logging.getLogger("test"))
    memory = Memory(1)
    assert pages.find([["k"]]).result() == [[False]]
    assert pages.load(["k"], memory.pages).result() == [False]
    assert pages.store(["k"], memory.pages).result() == ["not_connected"]
    assert pages.delete(["k"]).result() == [False]
    pages.close()


def test_calls_wait_for_the_first_attempt_to_connect(server, request, monkeypatch):
    connect_at_once, written, read = _pages._kvasir.connect, Memory(1, seed=10), Memory(1)

    async def connect_late(*given):
        await asyncio.sleep(0.3)
        return await connect_at_once(*given)

    monkeypatch.setattr(_pages._kvasir, "connect", connect_late)
    settings = Settings(server.url, namespace=request.node.name, lookup_deadline_s=30, load_deadline_s=30)
    calls = [
        (lambda pages: pages.store(["k"], written.pages), ["stored"]),
        (lambda pages: pages.find([["k"]]), [[True]]),
        (lambda pages: pages.load(["k"], read.pages), [True]),
        (lambda pages: pages.delete(["k"]), [True]),
    ]
    for call, expected in calls:
        pages = PageStore(settings, logging.getLogger("test"))
        assert call(pages).result() == expected
        pages.close()
    assert read.bytes == written.bytes


def test_only_the_first_attempt_to_connect_is_waited_for(monkeypatch):
    first, attempts, memory = Future(), [], Memory(1)

    async def connect(*given):
        attempts.append(given)
        await (asyncio.wrap_future(first) if len(attempts) == 1 else asyncio.sleep(3600))
        raise kvasir.ServiceError("it is away", "unavailable", "wait")

    monkeypatch.setattr(_pages._kvasir, "connect", connect)
    monkeypatch.setattr(_pages, "_AGAIN_S", 0.01)
    pages = PageStore(Settings("http://x", lookup_deadline_s=0.2, load_deadline_s=60), logging.getLogger("test"))
    begun = time.monotonic()
    assert pages.find([["k"]]).result() == [[False]] and 0.2 <= time.monotonic() - begun < 0.2 + 1.5
    loading = pages.load(["k"], memory.pages)
    assert not loading.done()
    first.set_result(None)
    assert loading.result(timeout=10) == [False]
    while len(attempts) < 2:
        time.sleep(0.01)
    assert pages.load(["k"], memory.pages).result(timeout=10) == [False]
    assert pages.counts["loads:not_connected"] == 2 and pages.counts["finds:not_connected"] == 1
    pages.close()
    # asyncio logs those that have not ended, when their memory is freed.
    assert not asyncio.all_tasks(pages._loop)


def test_lookups_do_not_wait_for_each_others_silence(monkeypatch):
    """Of an engine that asks for one request after another."""
    silent, asked = asyncio.Event(), []

    class Objects:
        async def find(self, rows, gaps, seconds, is_async):
            asked.append(rows)
            await asyncio.sleep(seconds)
            raise kvasir.UnavailableError("no answer", "late", "")

    async def connect(*given):
        await silent.wait()
        return SimpleNamespace(objects=Objects)

    monkeypatch.setattr(_pages._kvasir, "connect", connect)
    pages = PageStore(Settings("http://x", lookup_deadline_s=0.5), logging.getLogger("test"))

    def find(keys: str, asked_at: float) -> float:
        begun = time.monotonic()
        assert pages.find([list(keys)], asked_at=asked_at).result() == [[False] * len(keys)]
        return time.monotonic() - begun

    # While it connects first, and then.
    for _ in range(2):
        begun, late, sent = time.monotonic(), pages.counts["finds:late"], len(asked)
        assert find("a", begun) >= 0.5 and find("bc", begun) < 0.5 and find("d", time.monotonic()) >= 0.5
        assert pages.counts["finds:late"] - late == 2 + len(asked) - sent and len(asked) - sent == (2 if asked else 0)
        pages._loop.call_soon_threadsafe(silent.set)
        while not pages.is_connected:
            time.sleep(0.01)
    pages.close()


def test_the_end_ends_the_wait_for_the_first_attempt_to_connect(monkeypatch):
    async def connect(*given):
        await asyncio.sleep(3600)

    monkeypatch.setattr(_pages._kvasir, "connect", connect)
    pages, begun = PageStore(Settings("http://x"), logging.getLogger("test")), time.monotonic()
    storing = pages.store(["k"], Memory(1).pages)
    pages.close()
    assert storing.result() == ["not_connected"] and time.monotonic() - begun < 10


def test_what_is_asked_for_after_the_end_is_a_miss(server):
    pages, memory = connect(server.url, namespace="closed"), Memory(1, seed=5)
    assert pages.store(["k"], memory.pages).result() == ["stored"]
    pages.close()
    asked = [
        pages.find([["k", "l"], []]),
        pages.load(["k"], memory.pages),
        pages.store(["k"], memory.pages),
        pages.delete(["k"]),
    ]
    # Nothing runs any more that could end them later.
    assert all(future.done() for future in asked)
    assert [future.result() for future in asked] == [[[False, False], []], [False], ["internal"], [False]]
    pages.drain()


def test_too_many_stores_are_dropped(pages, monkeypatch):
    monkeypatch.setattr(_pages, "_STORES_MAX", 0)
    assert pages.store(["k"], Memory(1).pages).result() == ["dropped"]


def test_a_key_that_cannot_be_counts_as_a_miss(pages):
    memory = Memory(1)
    assert pages.load(["k" * 513], memory.pages).result() == [False]
    assert pages.store([""], memory.pages).result() == ["internal"]
    assert pages.find([["."]]).result() == [[False]]


RANK = (0, 0)


def identity(*place: str | int, **fields: str | int) -> Identity:
    return Identity("e", place, tuple(fields.items()))


def test_prefixes_tell_identities_apart():
    one = identity(0, model="m", dtype="a")
    others = [
        identity(1, model="m", dtype="a"),
        identity("0", model="m", dtype="a"),
        identity(0, model="ma", dtype=""),
        identity(0),
    ]
    prefixes = {one.prefix(), one.prefix("salt"), *(other.prefix() for other in others)}
    assert len(prefixes) == 6 and all(prefix.startswith("e/") and len(prefix) == 35 for prefix in prefixes)


def test_a_mismatch_has_a_reason(server, caplog):
    caplog.set_level(logging.INFO)
    one, other = (connect(server.url, namespace="mismatch") for _ in range(2))
    memory = Memory(1, seed=6)
    # Who comes first has nobody to differ from.
    assert one.find([one.names(identity(0, model="m", dtype="bf16"), RANK, "a")]).result() == [[False]]
    one.store(one.names(identity(0, model="m", dtype="bf16"), RANK, "a"), memory.pages).result()
    one.store(one.names(identity(0, model="n", dtype="fp16"), RANK, "a"), memory.pages).result()
    one.drain()
    assert one.counts["finds:missing"] == 1 and not one.mismatches
    mine = identity(0, model="m", dtype="fp8")
    for salt in ("", "someone"):
        assert other.find([other.names(mine, RANK, "ab", salt)]).result() == [[False, False]]
        other.drain()
    reason = "dtype is 'fp8' here and 'bf16' there"
    assert other.counts["finds:mismatch"] == 4 and other.mismatches == {mine: reason} and caplog.text.count(reason) == 1
    raw, [key] = kvasir.connect(server.url, namespace="mismatch"), other.names(mine, (1, 0), "c")
    # Also for a page of another rank.
    [cause, trace] = raw.explain_objects([key])["causes"]
    assert cause["differences"] == [{"field": "dtype", "asked": "fp8", "stored": "bf16"}] and trace["reason"] == "never_stored"
    assert asyncio.run(explain(server.url, "mismatch", key)) == [cause, trace]
    # What this engine has stored itself fits, and of another place nothing is there to differ from.
    assert other.store(other.names(mine, RANK, "a"), memory.pages).result() == ["stored"]
    other.drain()
    other.find([other.names(mine, RANK, "ab"), other.names(identity(1, model="m", dtype="fp8"), RANK, "a")]).result()
    other.drain()
    assert other.counts["finds:missing"] == 2 and other.counts["finds:mismatch"] == 4 and not other.mismatches
    assert raw.explain_objects([key])["causes"] == [trace]
    one.close()
    other.close()


async def explain(url: str, namespace: str, key: str) -> list[dict]:
    return (await (await aio.connect(url, namespace=namespace)).explain_objects([key]))["causes"]


def test_ranks_share_an_identity(server):
    """`lmcache bench l2` gives each key a rank of its own."""
    pages, memory = connect(server.url, namespace="ranks"), Memory(1, seed=9)
    keys = [pages.names(identity(0, model="m"), (rank, 0), "a") for rank in range(20)]
    assert len(set(map(tuple, keys))) == 20
    assert [pages.store(key, memory.pages).result() for key in keys] == [["stored"]] * 20
    pages.close()
    registered = kvasir.connect(server.url, namespace="ranks").read_objects(["e/identities/0", "e/identities/1"])
    assert registered == [identity(0, model="m").note().encode()]


def test_any_bytes_may_be_in_the_place_of_an_identity(server):
    store, prefix = kvasir.connect(server.url, namespace="identities"), f"e/{0:032x}/"
    mine, memory = identity(0, model="m"), Memory(1, seed=7)
    for number, note in enumerate([b"x", b"[]", b"{}", b'{"fields": [1], "place": [0]}', b"\xff"]):
        store.put_object("e/identities/0", note)
        store.put_object(f"{prefix}identity", note)
        assert [cause["reason"] for cause in store.explain_objects([f"{prefix}page"])["causes"]] == ["never_stored"], note
        # An engine's misses count, and it registers behind what it cannot read.
        engine = connect(server.url, namespace="identities")
        key = engine.names(mine, RANK, [str(number)])
        assert engine.find([key]).result() == [[False]] and engine.store(key, memory.pages).result() == ["stored"]
        engine.close()
        registered = store.read_objects(["e/identities/0", "e/identities/1"])
        assert engine.counts["finds:missing"] == 1 and registered[1:] == [mine.note().encode()]
        for each in ("e/identities/0", "e/identities/1", f"{prefix}identity"):
            store.delete_object(each)


def test_a_network_that_flips_bits_costs_no_page(server):
    keys, written = [f"k/{index}" for index in range(100)], Memory(100, part=500, seed=7)
    proxy = FaultProxy(server.url, seed=8)
    pages = connect(proxy.url, namespace="flips", load_deadline_s=1.0)
    assert pages.store(keys, written.pages).result() == ["stored"] * 100
    proxy.mode = "corrupt"
    for _ in range(20):
        read = Memory(100, part=500)
        for place, is_loaded in enumerate(pages.load(keys, read.pages).result()):
            for part in (place, 100 + place):
                there = slice(500 * part, 500 * part + 500)
                assert not is_loaded or read.bytes[there] == written.bytes[there]
    pages.drain()
    proxy.mode = "sound"
    assert pages.find([keys], gaps=True).result() == [[True] * 100]
    assert pages.counts["loads:loaded_again"] > 0 and pages.counts["loads:damaged_in_transit"] > 0
    assert pages.counts["loads:damaged"] == pages.counts["loads:other_size"] == 0
    pages.close()


def test_pages_of_a_known_layout_are_encoded(server, request, caplog, monkeypatch):
    layout = PageLayout("m", "float16", (2, 64, 1, 96), "2LNHD")
    dice = np.random.default_rng(9)
    values = (dice.normal(size=(8, 2, 2, 64, 96)) * np.linspace(0.1, 4, 96)).astype(np.float16)
    keys = [f"k/{index}" for index in range(8)]

    def pages_of(array: np.ndarray) -> list[list[tuple[int, int]]]:
        # Each in two parts.
        size = array[0].nbytes
        starts = [array.ctypes.data + index * size for index in range(len(array))]
        return [[(start, 1_000), (start + 1_000, size - 1_000)] for start in starts]

    for quality, least, most in (("exact", 0.5, 0.95), ("transparent", 0.2, 0.6)):
        name = f"{request.node.name}-{quality}"
        pages, raw = connect(server.url, namespace=name, quality=quality), kvasir.connect(server.url, namespace=name)
        assert pages.store(keys[:6], pages_of(values[:6]), layout).result() == ["stored"] * 6
        sizes = [len(stored) / values[0].nbytes for stored in raw.read_objects(keys)]
        assert len(sizes) == 6 and all(least < size < most for size in sizes), sizes
        read = np.zeros_like(values)
        other, exact = (connect(server.url, namespace=name, quality=named) for named in (quality, "exact"))
        assert other.load(keys, pages_of(read), layout).result() == [True] * 6 + [False] * 2
        if quality == "exact":
            assert (read[:6] == values[:6]).all()
        else:
            truth, came = values[:6].astype(float), read[:6].astype(float)
            error = np.square(came - truth).sum((0, 2, 3, 4)) / np.square(truth).sum((0, 2, 3, 4))
            assert (error < (2.5e-4, 1e-3)).all(), error
        assert not read[6:].any() and pages.counts["store_bytes"] == 6 * values[0].nbytes
        # A quality is kept where another engine has stored less, too. Only a load can tell, and the page stays.
        is_kept, again = quality == "exact", np.zeros_like(values)
        assert exact.load(keys, pages_of(again), layout).result() == [is_kept] * 6 + [False] * 2
        assert exact.counts["loads:below_quality"] == (0 if is_kept else 6) and exact.counts["loads:missing"] == 2
        assert ("6 of 8 pages are stored below quality exact" in caplog.text) != is_kept
        assert exact.store(keys[:6], pages_of(values[:6]), layout).result() == ["present"] * 6
        exact.drain()
        # The bytes stay, and the engine is not told again that they are there: until somebody removes one, or for a while.
        assert exact.find([keys]).result() == [[is_kept] * 6 + [False] * 2]
        assert exact.counts["finds:below_quality"] == (0 if is_kept else 6) and exact.counts["finds:missing"] == 2
        assert other.find([keys]).result() == [[True] * 6 + [False] * 2]
        assert other.delete(keys[1:2]).result() == [True]
        assert exact.store(keys[1:2], pages_of(values[1:2]), layout).result() == ["stored"]
        assert exact.find([keys], gaps=True).result() == [[is_kept, True] + [is_kept] * 4 + [False] * 2]
        with monkeypatch.context() as patch:
            patch.setattr(_pages, "_BELOW_S", 0.0)
            assert exact.load(keys[:1], pages_of(again[:1]), layout).result() == [is_kept]
        assert exact.find([keys[:2]]).result() == [[True] * 2]
        # Another layout under the same keys is none, and what cannot have one is stored as it is.
        assert other.load(keys[:1], [[(read.ctypes.data, 500)]], layout).result() == [False]
        assert other.counts["loads:other_size"] == 1
        for each in (pages, other, exact):
            each.close()


def test_a_quality_that_is_none_is_refused():
    with pytest.raises(kvasir.errors.InputError, match="one of exact, transparent, balanced, small"):
        read_settings(Settings, {"url": "http://x", "quality": "lossless"}, "here")


def test_null_is_only_a_value_of_settings_that_may_be_left_out():
    optional = dict.fromkeys(["token", "quality", "zone"])
    assert read_settings(Settings, {"url": "http://x", **optional}, "here") == Settings("http://x")
    for name in ("namespace", "revision", "lookup_deadline_s", "load_deadline_s"):
        with pytest.raises(kvasir.InputError, match=f"{name} is None"):
            read_settings(Settings, {"url": "http://x", name: None}, "here")


def test_pages_are_asked_for_from_the_engines_zone(monkeypatch):
    zones = []

    async def connect(url, token, namespace, zone, is_async):
        zones.append(zone)
        raise kvasir.InputError("enough is known", "test", "")

    monkeypatch.setattr(_pages._kvasir, "connect", connect)
    monkeypatch.setenv("KVASIR_ZONE", "eu-1a")
    for given in ({}, {"zone": "eu-1b"}):
        pages = PageStore(read_settings(Settings, {"url": "http://x", **given}, "here"), logging.getLogger("test"))
        pages._connecting.result()
        pages.close()
    assert zones == ["eu-1a", "eu-1b"]


def test_counts_are_taken_once(pages):
    pages.find([["a", "b"]]).result()
    assert pages.take_counts() == {"finds:missing": 2} and pages.take_counts() == {}
