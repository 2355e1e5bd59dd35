"""Automatically made profiles, and the recompute model of loads."""

import asyncio
import threading

import numpy as np
import pytest

import kvasir
from kvasir import aio
from slow_proxy import SlowProxy
from toy_model import TOKENS, make_kv, make_tokens, same


@pytest.fixture
def empty():
    """A service without any profile."""
    with kvasir.testing.server() as running:
        yield running


def error_of(loaded: list, kv: list) -> float:
    """Power of the error over the power about the mean; the worst tensor."""
    pairs = [(np.float64(x), np.float64(y)) for a, b in zip(loaded, kv, strict=True) for x, y in zip(a, b, strict=True)]
    return max(((x - y) ** 2).sum() / ((y - y.mean(axis=1, keepdims=True)) ** 2).sum() for x, y in pairs)


def test_a_model_needs_no_profile(empty, spec, kv, tokens):
    model = kvasir.connect(empty.url).model(spec)
    assert model.profile is None
    assert model.session(tokens).matched == 0
    saved = model.session(tokens).save(kv)
    assert [chunk.outcome for chunk in saved.chunks] == ["stored"]
    made = model.profile
    assert made.model_id == spec.model_id and not made.is_lossless
    # Another client takes the same one, for text that the profile was not made of, too.
    other = kvasir.connect(empty.url).model(spec)
    loaded = other.session(tokens).load(level=len(made.levels) - 1)
    assert loaded.loaded_tokens == TOKENS and error_of(loaded.kv, kv) < 1e-3
    more, more_kv = make_tokens(seed=20), make_kv(spec, seed=20)
    assert other.session(more).save_in_background(more_kv).wait().bytes > 0
    assert other.profile == made
    loaded = model.session(more).load(level=len(made.levels) - 1)
    assert loaded.loaded_tokens == TOKENS and error_of(loaded.kv, more_kv) < 1e-3
    # By its id it is one that is given.
    assert kvasir.connect(empty.url).model(spec, made.profile_id).profile == made


def test_asyncio_needs_no_profile(empty, spec, kv, tokens):
    async def main():
        model = await (await aio.connect(empty.url)).model(spec)
        assert model.profile is None
        await (await model.session(tokens)).save(kv)
        loaded = await (await model.session(tokens)).load(level=0)
        return model.profile, loaded.loaded_tokens

    made, loaded_tokens = asyncio.run(main())
    assert made.model_id == spec.model_id and loaded_tokens == TOKENS


def test_a_cache_that_says_too_little_is_no_first_profile(empty, spec, kv):
    session = kvasir.connect(empty.url).model(spec).session([7] * TOKENS)
    for save in (lambda: session.save(kv), lambda: session.save_in_background(kv).wait()):
        with pytest.raises(kvasir.InputError, match="1 different ones") as caught:
            save()
        assert (caught.value.code, caught.value.retryable) == ("no_first_profile", False)
        assert "give a profile" in caught.value.remedy


def test_loads_are_weighed_against_the_engine(server, store, spec, profile, kv, tokens):
    store.model(spec, profile).session(tokens, salt=b"prefill").save(kv)

    def load(tokens_per_s, patience_s):
        """By an engine of that speed, from a service that is silent for a while."""
        proxy = SlowProxy(server.url)
        model = kvasir.connect(proxy.url).model(spec, profile, prefill_tokens_per_s=tokens_per_s)
        session = model.session(tokens, salt=b"prefill")
        proxy.hold_after = 0
        threading.Timer(patience_s, proxy.release).start()
        return session.load()

    fast, slow = load(1e6, 20.0), load(10, 0.5)
    assert fast.gave_up and fast.missing == [range(TOKENS)] and fast.seconds < 10
    assert not slow.gave_up and slow.missing == [range(TOKENS - 1, TOKENS)]
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(kvasir.InputError, match="prefill_tokens_per_s"):
            store.model(spec, profile, prefill_tokens_per_s=wrong)


def test_prefills_are_learned_from(store, spec, profile):
    model = store.model(spec, profile, prefill_tokens_per_s=1000)
    assert model.prefill_seconds(range(0, 3000)) == pytest.approx(3.0)
    for _ in range(50):
        model.observe_prefill(range(0, 3000), 6.0)
    assert model.prefill_seconds(range(0, 3000)) == pytest.approx(6.0, rel=0.05)
    assert model.prefill_seconds(range(1000, 1500)) == pytest.approx(1.0, rel=0.05)
    with pytest.raises(kvasir.InputError, match="-1"):
        model.observe_prefill(range(0, 10), -1.0)


def test_a_named_quality_is_kept(empty, spec, kv, tokens):
    store = kvasir.connect(empty.url)
    first = store.model(spec)
    first.session(tokens, salt=b"quality").save(kv)
    loads = {}
    for quality in ("small", "balanced", "transparent", None):
        session = store.model(spec, quality=quality).session(tokens, salt=b"quality")
        loads[quality] = session.load(level=0).chunks[0].level
    assert loads == {"small": 0, "balanced": 1, "transparent": 2, None: 0}
    with pytest.raises(kvasir.InputError, match="transparent"):
        store.model(spec, quality="good")
    with pytest.raises(kvasir.InputError, match="--recipe exact-only") as caught:
        store.model(spec, first.profile, quality="exact")
    assert caught.value.code == "invalid_setting", "that profile has no exact level"
    exact = store.model(spec, quality="exact")
    exact.session(tokens, salt=b"exact").save(kv)
    assert exact.profile.is_lossless and same(exact.session(tokens, salt=b"exact").load(level=0).kv, kv, TOKENS)
    sessions = [exact.session(tokens, salt=salt) for salt in (b"quality", b"exact")]
    assert [(session.matched, session.below_quality) for session in sessions] == [(0, TOKENS), (TOKENS, 0)]
    session = store.model(spec).session(tokens, salt=b"quality")
    lowered = [session.load(level=0, soft_quality=soft).chunks[0].level for soft in ("small", "balanced", None)]
    assert lowered == [0, 1, 2]
    for soft, why in (("good", "balanced"), ("transparent", "not below")):
        with pytest.raises(kvasir.InputError, match=why):
            session.load(level=0, soft_quality=soft)


def test_exact_caches_are_loaded_where_a_profile_makes_them(empty, spec, profile, kv, tokens):
    store = kvasir.connect(empty.url)
    store.model(spec, profile, quality="exact").session(tokens).save(kv)
    model = store.model(spec, quality="exact")
    assert model.profile == profile
    loaded = model.session(tokens).load(level=0)
    assert loaded.loaded_tokens == TOKENS and same(loaded.kv, kv, TOKENS)


@pytest.mark.parametrize("recipe", ["basis", "direct"])
def test_a_trained_profile_is_transparent_unless_its_error_is_given(empty, spec, kv, tokens, recipe):
    contexts = [(make_tokens(seed=seed), make_kv(spec, seed=seed)) for seed in (1, 2, 3)]

    def matched(salt, **options):
        profile = kvasir.Profile.train(contexts, model=spec, recipe=recipe, **options)
        model = kvasir.connect(empty.url).model(spec, profile)
        model.session(tokens, salt=salt).save(kv)
        return model.session(tokens, salt=salt).matched

    assert matched(b"transparent") == TOKENS
    assert matched(b"coarse", finest_nmse=1e-2) == 0


def test_what_lies_beneath_is_kept_with_what_is_saved_over_it(empty, spec, kv, tokens):
    model = kvasir.connect(empty.url).model(spec)
    model.session(tokens[:256]).save([(k[:, :256], v[:, :256]) for k, v in kv])
    loaded = model.session(tokens[:256]).load(level=2)
    assert [loss.hops for _, loss in loaded.losses] == [1] and loaded.losses[0][0] == range(0, 256)
    # Another session of an engine that has kept these rows.
    session = model.session(tokens)
    session.reused(loaded.losses[0][1])
    session.save(kv)
    losses = model.session(tokens).load(level=2).losses
    assert max(loss.hops for _, loss in losses) == 2
