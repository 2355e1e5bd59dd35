"""What is not known is refused with a sentence, and vLLM goes on without Kvasir."""

from __future__ import annotations

import pytest
from engine import Engine, make_tokens

import kvasir


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"urll": "x"}, "urll is not known"),
        ({"quality": "best"}, "quality is 'best'"),
        ({"chunk_tokens": 100}, "chunk_tokens is 100"),
        ({"load_deadline_s": "soon"}, "load_deadline_s is 'soon'"),
        ({"load_deadline_s": 0}, "load_deadline_s is 0"),
    ],
)
def test_settings(extra, says):
    with pytest.raises(kvasir.InputError, match=says):
        Engine("http://127.0.0.1:1", extra=extra)


def test_no_service_at_all():
    engine = Engine("http://127.0.0.1:1")
    tokens = make_tokens(300, seed=1)
    assert engine.run(tokens).tokens == engine.run(tokens, fresh=True).tokens
