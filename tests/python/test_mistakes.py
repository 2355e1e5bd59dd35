"""The errors that a user sees after a dozen mistakes: `mistakes.txt` is the transcript."""

import os
import re
import sys
from pathlib import Path

import numpy as np

import kvasir
from toy_model import CONFIG, TOKENS, make_spec, make_tokens

TRANSCRIPT = Path(__file__).with_name("mistakes.txt")


def said(mistake) -> str:
    """The whole of an exception that is raised or given."""
    try:
        error = mistake()
    except kvasir.KvasirError as raised:
        error = raised
    assert isinstance(error, kvasir.KvasirError), error
    again = ", may work later" if error.retryable else ""
    return f"{type(error).__name__} {error.code}{again}: {error.message}\n  -> {error.remedy}"


def in_a_fork(use) -> str:
    """What is said in a child of this process."""
    here, there = os.pipe()
    if os.fork() == 0:
        try:
            os.write(there, said(use).encode())
        finally:
            os._exit(0)
    os.wait()
    os.close(there)
    with os.fdopen(here) as answer:
        return answer.read()


def test_empty_without_numpy(monkeypatch, spec):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert said(lambda: spec.empty(1)).startswith("InputError missing_package: numpy")


def test_what_a_user_sees(tmp_path, spec, profile, kv, tokens):
    (tmp_path / "tenants.toml").write_text("")
    with kvasir.testing.server("--auth.tenants_file", str(tmp_path / "tenants.toml")) as closed:
        wrong_token = said(lambda: kvasir.connect(closed.url, token="kv_wrong")).replace(closed.url, "URL")
    with kvasir.testing.server() as running:
        store = kvasir.connect(running.url)
        model = store.model(spec, profile)
        model.session(tokens).save(kv)
        session = model.session(tokens)
        renewed = store.model(kvasir.ModelSpec.from_config(CONFIG, weights="toy", revision="2"))
        causes = [cause["reason"] for cause in renewed.explain(tokens)["causes"]]
        wide = [(k.astype(np.float32) + 1e-6, v.astype(np.float32)) for k, v in kv]
        transposed = [(k.transpose(1, 0, 2), v.transpose(1, 0, 2)) for k, v in kv]
        seen = {
            "a token that is none": wrong_token,
            "another dtype to load into": said(lambda: session.load(wide, level=0)),
            "values that the cache's dtype has not": said(lambda: model.session(make_tokens(seed=30)).save(wide)),
            "another shape": said(lambda: session.load(transposed, level=0)),
            "too little room": said(lambda: session.load(spec.empty(TOKENS - 1), level=0)),
            "a model that is not known": said(lambda: store.model({**CONFIG, "model_type": "t5"}, weights="toy", revision="1")),
            "a profile of another model": said(lambda: store.model(make_spec(layers=2), profile)),
            "a profile that is not there": said(lambda: store.model(spec, "0" * 64)),
            "weights that changed since": f"matched {renewed.session(tokens).matched}, explained by {causes}",
            "after a fork": in_a_fork(lambda: model.session(tokens)),
        }
        running.stop()
        seen["a service that is gone, connect"] = said(lambda: kvasir.connect(running.url))
        gone = model.session(tokens)
        seen["a service that is gone, session.error"] = said(lambda: gone.error)
        seen["a service that is gone, save"] = said(lambda: gone.save(kv))
        transcript = "".join(f"{name}\n  {text.replace(running.url, 'URL')}\n" for name, text in seen.items())
        transcript = re.sub(r"[0-9a-f]{64}", "ID", transcript)
    assert transcript == TRANSCRIPT.read_text()
