"""Identities: what makes pages with equal hashes incompatible. Registered in the service, to explain misses.

An engine registers those of which it has stored pages, as numbered objects. One that looked pages up in vain stores its own beside
them, so that `kvasir.Store.explain_objects` finds it by their keys.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import _kvasir
from .errors import ServiceError

# Maximum size of an engine's register: as many as one request reads.
_NOTED_MAX = 256
# Keys of pages begin with this, see `Identity.prefix`.
_PREFIX = re.compile(r"[a-z-]+/[0-9a-f]{32}/")


@dataclass(frozen=True)
class Identity:
    """The identity of compatible pages.

    Attributes
    ----------
    engine : str
        The back end; pages of different back ends never match.
    place : tuple
        Rank, pool and group: an engine has pages for each.
    fields : tuple
        Properties that must be equal, with user-visible names.
    """

    engine: str
    place: tuple[str | int, ...]
    fields: tuple[tuple[str, str | int], ...]

    def prefix(self, salt: str = "") -> str:
        """Return the prefix of keys. The salt is a user's secret, and occurs nowhere else."""
        identity = [self.place, self.fields, salt]
        return f"{self.engine}/{hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()}/"

    def note(self) -> bytes:
        """Return what is registered."""
        return json.dumps({"place": self.place, "fields": self.fields}).encode()


class Register:
    """Identities with stored pages, as numbered objects in the service."""

    def __init__(self, store: _kvasir.Store) -> None:
        self._store = store

    async def add(self, identity: Identity) -> None:
        """Register an identity, unless the register is full."""
        note = identity.note()
        noted = await self._read(identity.engine)
        if note in noted:
            return
        for key in registered(identity.engine)[len(noted) :]:
            try:
                await self._store.put_object(key, note, True)
                return
            except ServiceError as error:
                # Another engine took this number first.
                if error.code != "object_exists":
                    raise

    async def difference(self, identity: Identity) -> str | None:
        """Describe how an identity differs from the closest registered one; None if it is registered, or none is."""
        found = _difference(identity.note(), await self._read(identity.engine))
        return ", ".join(f"{name} is {here!r} here and {there!r} there" for name, here, there in found) or None

    async def declare(self, prefix: str, identity: Identity) -> None:
        """Store the identity of an engine that found none of the pages whose keys have this prefix."""
        await self._store.put_object(_declared(prefix), identity.note(), True)

    async def _read(self, engine: str) -> list[bytes]:
        return await self._store.read_objects(registered(engine), True)


def registered(engine: str) -> list[str]:
    """Return the keys of a back end's registered identities."""
    return [f"{engine}/identities/{number}" for number in range(_NOTED_MAX)]


def asker_of(explained: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the back end of a page that the service has no trace of, and the key of its engine's identity."""
    prefix = _PREFIX.match(explained.get("key") or "")
    reasons = [cause["reason"] for cause in explained["causes"]]
    if prefix is None or reasons[:1] != ["never_stored"]:
        return None
    return prefix[0].split("/")[0], _declared(prefix[0])


def mismatch(asker: bytes, noted: Iterable[bytes]) -> dict[str, Any] | None:
    """Return how an engine differs from the closest one with stored pages, as a cause of a miss; None if one of them is alike."""
    found = _difference(asker, noted)
    if not found:
        return None
    differences = [{"field": name, "asked": str(here), "stored": str(there)} for name, here, there in found]
    detail = "No stored page fits the engine that asked for this one; compared with the closest engine that stores, it differs."
    return {"reason": "other_model", "detail": detail, "tokens": 0, "differences": differences}


def _declared(prefix: str) -> str:
    return f"{prefix}identity"


def _difference(asker: bytes, noted: Iterable[bytes]) -> list[tuple[str, Any, Any]]:
    """Return the fields that differ from those of the closest identity of the same place, with both values."""
    try:
        asked = json.loads(asker)
        own = dict(asked["fields"])
        others = [dict(each["fields"]) for each in map(json.loads, noted) if each["place"] == asked["place"]]
    except (ValueError, TypeError, LookupError, RecursionError):
        # Any client may store objects under these keys.
        return []
    differences = [
        [(name, own.get(name), other.get(name)) for name in own | other if own.get(name) != other.get(name)] for other in others
    ]
    return min(differences, key=len, default=[])
