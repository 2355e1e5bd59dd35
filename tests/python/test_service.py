"""A real service: stored data is loaded unchanged, and failures are reported to the user."""

import asyncio
import itertools
import json
import subprocess
import threading
import time

import pytest
from proxy import FaultProxy

import kvasir
from kvasir import aio
from slow_proxy import SlowProxy
from toy_model import CONFIG, TOKENS, make_kv, make_tokens, readme_examples, same


def test_the_example_of_the_guide_runs(server, spec, kv, tokens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    example = readme_examples()[0].replace("http://127.0.0.1:7480", server.url)
    for is_stored in (False, True):
        computed, into = [], [(k.copy(), v.copy()) for k, v in kv]
        found = {"tokens": tokens, "kv": into, "prefill": computed.append}
        exec(example, found)
        assert found["session"].matched == (TOKENS if is_stored else 0)
        assert computed == found["loaded"].missing and computed[-1].stop == TOKENS


def names(kv: list) -> list[int]:
    return [array.ctypes.data for pair in kv for array in pair]


def test_what_is_saved_is_loaded(store, spec, profile):
    model = store.model(spec, profile, chunk_tokens=256)
    tokens, kv = make_tokens(700, seed=10), make_kv(spec, 700, seed=10)
    session = model.session(tokens)
    assert (session.matched, session.missing, session.error) == (0, [range(700)], None)
    assert session.load().loaded_tokens == 0
    saved = session.save(kv)
    assert [chunk.outcome for chunk in saved.chunks] == ["stored"] * 3 and saved.bytes > 0
    assert [chunk.outcome for chunk in model.session(tokens).save(kv).chunks] == ["already_there"] * 3
    session = model.session([*tokens, 1, 2, 3])
    # Matched by blocks of 16 tokens.
    assert session.matched in (688, 700)
    into = spec.empty(800)
    before = names(into)
    loaded = session.load(into, level=len(profile.levels) - 1)
    assert loaded.kv is into and names(into) == before
    assert loaded.kl >= 0 and loaded.bytes > 0 and not loaded.failures
    assert loaded.prefix_tokens == loaded.loaded_tokens == session.matched
    assert session.missing == loaded.missing == [range(session.matched, 703)]
    assert same(into, kv, session.matched)
    assert all((array[:, session.matched :] == 0).all() for pair in into for array in pair)
    into = spec.empty(800)
    behind = model.session([*tokens, 1, 2, 3]).load(into, level=len(profile.levels) - 1, present=300)
    assert behind.prefix_tokens == session.matched == behind.loaded_tokens + 300 and behind.missing == loaded.missing
    assert [chunk.tokens.start for chunk in behind.chunks] == [256, 512] and behind.bytes < loaded.bytes
    assert all((array[:, :256] == 0).all() and array[:, 256:512].any() for pair in into for array in pair)


def test_a_load_by_deadline_and_a_coarse_one(store, spec, kv, tokens, profile):
    model = store.model(spec, profile, quality=None)
    session = model.session(tokens, salt=b"deadline")
    session.save(kv)
    session = model.session(tokens, salt=b"deadline")
    assert session.matched == TOKENS
    whole = session.load(deadline=30.0)
    assert whole.missing[-1].stop == TOKENS and (whole.gave_up or whole.loaded_tokens == TOKENS - 1)
    coarse = session.load(level=0)
    assert coarse.network_seconds > 0 and coarse.decode_seconds > 0 and coarse.wait_seconds >= 0
    assert coarse.network_seconds + coarse.wait_seconds <= coarse.seconds + 1e-6
    assert {chunk.level for chunk in coarse.chunks} == {0} and not same(coarse.kv, kv, TOKENS)
    assert (
        kvasir.decode(kvasir.encode(tokens, kv, model=spec, profile=profile), model=spec, profile=profile, level=0)[2][1].tobytes()
        == coarse.kv[2][1].tobytes()
    )


def test_a_load_needs_room(model, spec, kv, tokens):
    model.session(tokens, salt=b"room").save(kv)
    with pytest.raises(kvasir.InputError) as caught:
        model.session(tokens, salt=b"room").load(spec.empty(100))
    assert caught.value.code == "wrong_shape" and "512 or more" in caught.value.message


def test_conversations_go_on(model, spec):
    tokens, kv = make_tokens(900, seed=11), make_kv(spec, 900, seed=11)
    session = model.session(tokens[:600])
    session.save(kv)
    session.extend(tokens[600:])
    save = session.save_in_background(kv)
    kv_again = [(k.copy(), v.copy()) for k, v in kv]
    for pair in kv:
        for array in pair:
            array[:] = 0  # it was copied
    assert save.wait().refused is None and save.is_done
    loaded = model.session(tokens).load(level=3)
    assert loaded.loaded_tokens == 900 and same(loaded.kv, kv_again, 900)


def test_short_saves_are_refused_with_the_reason(model, spec):
    tokens = make_tokens(20, seed=12)
    refused = model.session(tokens).save_in_background(make_kv(spec, 20)).wait().refused
    assert refused is not None and "256" in refused


def test_identity_keeps_caches_apart(store, spec, profile, kv, tokens, server):
    model = store.model(spec, profile)
    model.session(tokens, salt=b"mine").save(kv)
    assert model.session(tokens, salt=b"mine").matched == TOKENS
    assert model.session(tokens, salt=b"yours").matched == 0
    assert model.session(tokens, salt=b"mine", adapter="lora@1").matched == 0
    elsewhere = kvasir.connect(server.url, namespace="elsewhere").model(spec, profile)
    assert elsewhere.session(tokens, salt=b"mine").matched == 0
    # Profiles that were published are found by their id.
    again = store.model(spec.to_json(), profile.profile_id)
    assert again.session(tokens, salt=b"mine").matched == TOKENS


def test_the_rest_of_the_api(store, model, spec, kv, tokens):
    followed, events = [], store.events(types="stored")

    def follow():
        followed.append(next(events))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    fresh = make_tokens(seed=13)
    saved = model.session(fresh).save(kv)
    thread.join(20)
    assert followed[0]["event_type"] == "stored" and followed[0]["seq_hash"] == saved.chunks[0].seq_hash
    why = model.explain([*fresh[:100], *tokens[:50]])
    assert why["matched_tokens"] <= 100 and why["causes"]
    made = model.create_context(saved, labels={"team": "docs"}, pinned=True)
    assert [context["context_id"] for context in store.contexts({"team": "docs"})] == [made["context_id"]]
    changed = store.change_context(made["context_id"], labels={"team": "chat"})
    assert (changed["version"], store.context(made["context_id"], 1)["labels"]) == (2, {"team": "docs"})
    store.delete_context(made["context_id"])
    assert list(store.contexts({"team": "chat"})) == []
    counts = []
    assert store.run_job("scrub", progress=counts.append)["counts"]["objects"] >= 1
    assert store.config()["block_tokens"] == 16


def test_objects_by_key(store, server):
    assert (
        store.put_object("a/1", b"one") and store.put_object("a/2", bytearray(b"")) and store.put_object("ä", memoryview(b"three"))
    )
    assert not store.put_object("a/1", b"one")
    with pytest.raises(kvasir.ServiceError) as refused:
        store.put_object("a/1", b"other")
    assert refused.value.code == "object_exists"
    assert store.get_object("a/1") == b"one"
    assert store.find_objects(["a/1", "a/2", "ä", "none", "a/1"]) == [3, 0, 5]
    assert (
        store.read_objects(["ä", "a/2", "none"])
        == [
            b"three",
            b"",
        ]
        and store.read_objects([]) == []
    )
    with pytest.raises(kvasir.ServiceError) as missing:
        kvasir.connect(server.url, namespace="other").get_object("a/1")
    assert missing.value.code == "unknown_object"
    with pytest.raises(kvasir.InputError):
        store.put_object("", b"one")
    store.delete_object("a/1")
    assert store.put_object("a/1", b"other")
    many = {f"many/{n}": bytes([n]) * n for n in range(256)}
    assert store.put_objects(many) == {} == store.put_objects(many)
    assert store.read_objects(list(many)) == list(many.values())
    assert store.put_objects({"many/1": b"other", "many/new": b"new"}) == {"many/1": "object_exists"}
    assert store.get_object("many/new") == b"new"
    assert store.put_objects({}) == {}

    async def main():
        again = await kvasir.aio.connect(server.url, namespace=store.namespace)
        assert await again.put_object("b", b"four")
        assert await again.get_object("b") == b"four" and await again.read_objects(["b"]) == [b"four"]
        assert await again.find_objects(["b", "c"]) == [4]
        await again.delete_object("b")
        assert await again.find_objects(["b"]) == []

    asyncio.run(main())


def test_the_example_of_objects_runs(store):
    found = {"store": store}
    exec(readme_examples()[1], found)
    assert found["found"] == [5] and found["pages"] == [b"bytes"]


def test_a_service_that_is_gone_is_a_miss(spec, profile, kv, tokens):
    with kvasir.testing.server() as running:
        model = kvasir.connect(running.url).model(spec, profile)
        model.session(tokens).save(kv)
        assert model.session(tokens).matched == TOKENS
        session = model.session(tokens)
        running.stop()
        loaded = session.load(level=0)
        assert loaded.loaded_tokens == 0 and loaded.missing == [range(TOKENS)] and loaded.failures
        session = model.session(tokens)
        assert session.matched == 0 and isinstance(session.error, kvasir.UnavailableError)
        assert session.load().missing == [range(TOKENS)]
        with pytest.raises(kvasir.UnavailableError) as caught:
            session.save(kv)
        assert caught.value.retryable and "address" in caught.value.remedy
        with pytest.raises(kvasir.UnavailableError):
            kvasir.connect(running.url)


def test_tokens_are_asked_for(tmp_path):
    made = subprocess.run(
        [kvasir.testing.binary(), "token", "--tenant", "acme", "--role", "read", "--json"], check=True, capture_output=True
    )
    entry = json.loads(made.stdout)
    (tmp_path / "tenants.toml").write_text(entry["entry"])
    with kvasir.testing.server("--auth.tenants_file", str(tmp_path / "tenants.toml")) as running:
        for token in (None, "kv_wrong"):
            with pytest.raises(kvasir.AuthError) as caught:
                kvasir.connect(running.url, token=token)
            assert (caught.value.status, caught.value.code, caught.value.retryable) == (401, "unauthorized", False)
            assert caught.value.remedy
        store = kvasir.connect(running.url, token=entry["token"])
        assert store.usage()["objects"] == 0
        with pytest.raises(kvasir.AuthError) as caught:
            store.run_job("gc")
        assert (caught.value.status, caught.value.code) == (403, "forbidden")
        assert entry["token"] not in repr(store)


@pytest.mark.parametrize("url", ["127.0.0.1:7480", "ftp://host", "http://", "nonsense"])
def test_addresses_that_are_none(url):
    with pytest.raises(kvasir.InputError, match="http://host:port"):
        kvasir.connect(url)


def test_a_zone_is_a_name_or_not_given(server):
    assert kvasir.connect(server.url, zone="eu-1a").usage() == kvasir.connect(server.url, zone="").usage()
    with pytest.raises(kvasir.InputError, match="zone"):
        kvasir.connect(server.url, zone="a zone")


class Member(FaultProxy):
    """A way to a service that is listed as its replica. Counts answers to requests of prompts: they name the list of members."""

    answers = 0
    _counting = threading.Lock()

    def _answer(self, sink, data):
        with self._counting:
            self.answers += data.count(b"\r\nkvasir-members: ")
        super()._answer(sink, data)


def test_models_ask_the_replica_of_their_stores_zone(spec, profile):
    members = {zone: Member("http://127.0.0.1:1") for zone in ("eu-1a", "eu-1b")}
    listed = ",".join(f"{member.url}?zone={zone}" for zone, member in members.items())
    with kvasir.testing.server("--cluster.members", listed) as running:
        for member in members.values():
            member.target = running.url
        for zone, member in members.items():
            model = kvasir.connect(running.url, zone=zone).model(spec, profile)
            # Before it has answered a probe, it is passed over.
            seeds, before, until = itertools.count(100), member.answers, time.monotonic() + 60
            while member.answers == before:
                assert time.monotonic() < until
                model.session(make_tokens(seed=next(seeds)))
            before = member.answers
            # Without zones, one of the two is asked for some of these prompts, and the other one for the rest: not both for most.
            # A lookup that is late is hedged, and may be answered by the other one: of these, at most 6 are.
            for seed in range(48):
                model.session(make_tokens(seed=seed))
            assert member.answers - before >= 36, zone


def test_a_service_that_does_not_start_says_why():
    with pytest.raises(kvasir.KvasirError, match=r"store\.url") as caught, kvasir.testing.server("--store.url", "nonsense"):
        pass
    assert caught.value.code == "not_started"


def test_asyncio_has_the_same_names():
    for name in aio.__all__:
        blocking, awaitable = ({each for each in dir(getattr(of, name)) if each[0] != "_"} for of in (kvasir, aio))
        assert blocking == awaitable, name


def test_asyncio_does_the_same(server, spec, profile):
    tokens, kv = make_tokens(seed=14), make_kv(spec, seed=14)

    async def main():
        store = await aio.connect(server.url, namespace="aio")
        model = await store.model(spec, profile)
        session = await model.session(tokens)
        assert session.matched == 0
        saved = await session.save(kv)
        assert [chunk.outcome for chunk in saved.chunks] == ["stored"]
        sessions = await asyncio.gather(*(model.session(tokens) for _ in range(20)))
        loads = await asyncio.gather(*(session.load(level=3) for session in sessions))
        assert all(same(loaded.kv, kv, TOKENS) for loaded in loads)
        session = await model.session(make_tokens(seed=15))
        assert (await session.save_in_background(kv).wait()).bytes > 0
        made = await model.create_context(saved, labels={"by": "aio"})
        assert [c["context_id"] async for c in store.contexts({"by": "aio"})] == [made["context_id"]]
        assert (await store.usage())["objects"] > 0 and (await model.explain(tokens))["matched_tokens"] == TOKENS
        assert (await store.run_job("gc", dry_run=True))["state"] == "done"
        await model.drain()
        with pytest.raises(kvasir.ServiceError, match="unknown_context"):
            await store.context("00000000-0000-0000-0000-000000000000")
        return saved

    assert asyncio.run(main()).bytes > 0
    with pytest.raises(kvasir.UnavailableError):
        asyncio.run(aio.connect("http://127.0.0.1:1"))


def test_a_cancelled_load_writes_nothing_more(server, spec, profile):
    tokens, kv = make_tokens(4096, seed=16), make_kv(spec, 4096, seed=16)
    direct = kvasir.connect(server.url, namespace="slow").model(spec, profile, chunk_tokens=256)
    direct.session(tokens).save(kv)
    proxy, into = SlowProxy(server.url), spec.empty(4096)

    async def main():
        model = await (await aio.connect(proxy.url, namespace="slow")).model(spec, profile, chunk_tokens=256)
        session = await model.session(tokens)
        assert session.matched == 4096
        proxy.hold_after = 100_000
        load = asyncio.create_task(session.load(into, level=3))
        assert await asyncio.to_thread(proxy.held.wait, 30)
        await asyncio.sleep(0.3)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load

    asyncio.run(main())
    # The future is dropped by a thread of the runtime: give it the time.
    time.sleep(0.3)
    left = [(k.copy(), v.copy()) for k, v in into]
    proxy.release()
    time.sleep(1.0)
    assert same(into, left, 4096) and not same(into, kv, 4096)
