"""Blocks that a worker loaded with a loss: vLLM's own cache may reuse them for other requests."""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from .._reports import Loss
from ._plan import Prompt

# Tokens of the smallest loaded part that two prompts can share.
_BLOCK = 16
_PREFIXES_MAX = 1 << 16


class LossyPrefixes:
    """Records where rows with a loss begin, by the leading tokens common to all prompts that share them."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Loss] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, prompt: Prompt, losses: list[tuple[range, Loss]]) -> None:
        """Record that rows of a prompt were loaded with these losses."""
        losses = sorted(losses, key=lambda found: found[0].start)
        keys = list(_keys(prompt, [tokens.start for tokens, _ in losses]))
        with self._lock:
            for key, (_, loss) in zip(keys, losses, strict=True):
                self._known[key] = loss.worst(self._known.get(key, loss))
                self._known.move_to_end(key)
            while len(self._known) > _PREFIXES_MAX:
                self._known.popitem(last=False)

    def beneath(self, prompt: Prompt) -> Loss | None:
        """Return the largest loss over which rows of the prompt may have been computed."""
        keys = list(_keys(prompt, range(0, len(prompt.tokens), _BLOCK)))
        worst: Loss | None = None
        with self._lock:
            for key in keys:
                if (loss := self._known.get(key)) is not None:
                    # vLLM's own cache still has it.
                    self._known.move_to_end(key)
                    worst = loss if worst is None else worst.worst(loss)
        return worst


def _keys(prompt: Prompt, starts: Iterable[int]) -> Iterator[bytes]:
    """Return digests of the tokens up to the first block after each start, including salt and adapter."""
    salt, adapter = prompt.salt or b"", (prompt.adapter or "").encode()
    digest = hashlib.sha256(b"%d %d %d " % (prompt.salt is not None, len(salt), len(adapter)) + salt + adapter)
    at = 0
    for start in starts:
        end = min(start + _BLOCK, len(prompt.tokens))
        digest.update(array("I", prompt.tokens[at:end]).tobytes())
        at = max(at, end)
        yield digest.copy().digest()
