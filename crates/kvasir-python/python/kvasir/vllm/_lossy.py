"""Which prefixes a worker has loaded with loss: vLLM's own cache may give their blocks to other requests."""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from ._plan import Prompt

# Tokens of the smallest part of a chunk that two prompts can share.
_BLOCK = 16
_PREFIXES_MAX = 1 << 16


class LossyPrefixes:
    """Remembers where chunks that were loaded with loss begin, by what all prompts that share them begin with."""

    def __init__(self, chunk_tokens: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, prompt: Prompt, starts: Iterable[int]) -> None:
        """Chunks of a prompt that begin at these tokens were loaded with loss."""
        keys = [key for _, key in self._keys(prompt, sorted(starts))]
        with self._lock:
            for key in keys:
                self._known[key] = None
                self._known.move_to_end(key)
            while len(self._known) > _PREFIXES_MAX:
                self._known.popitem(last=False)

    def lie_under(self, prompt: Prompt) -> bool:
        """Whether rows of the prompt may have been computed over such a chunk."""
        starts = range(0, len(prompt.tokens), self._chunk_tokens)
        with self._lock:
            return any(key in self._known for _, key in self._keys(prompt, starts))

    def _keys(self, prompt: Prompt, starts: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Digests of the tokens up to the first block of chunks, with all that tells caches of equal tokens apart."""
        salt, adapter = prompt.salt or b"", (prompt.adapter or "").encode()
        digest = hashlib.sha256(b"%d %d %d " % (prompt.salt is not None, len(salt), len(adapter)) + salt + adapter)
        at = 0
        for start in starts:
            end = min(start + _BLOCK, len(prompt.tokens))
            digest.update(array("I", prompt.tokens[at:end]).tobytes())
            at = end
            yield start, digest.copy().digest()
