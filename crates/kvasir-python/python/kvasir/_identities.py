"""Identities: what makes pages with equal hashes incompatible. Registered in the service, to explain misses."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from . import _kvasir
from .errors import ServiceError

# Maximum size of an engine's register: as many as one request reads.
_NOTED_MAX = 256


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


class Register:
    """Identities with stored pages, as numbered objects in the service."""

    def __init__(self, store: _kvasir.Store) -> None:
        self._store = store

    async def add(self, identity: Identity) -> None:
        """Register an identity, unless the register is full."""
        text = json.dumps({"place": identity.place, "fields": identity.fields})
        noted = await self._read(identity.engine)
        if text in noted:
            return
        for key in _keys(identity.engine)[len(noted) :]:
            try:
                await self._store.put_object(key, text.encode(), True)
                return
            except ServiceError as error:
                # Another engine took this number first.
                if error.code != "object_exists":
                    raise

    async def difference(self, identity: Identity) -> str | None:
        """Describe how an identity differs from the closest registered one; None if it is registered, or none is."""
        own, place = dict(identity.fields), list(identity.place)
        others = [dict(each["fields"]) for each in map(json.loads, await self._read(identity.engine)) if each["place"] == place]
        differences = [{name: other.get(name) for name in own | other if own.get(name) != other.get(name)} for other in others]
        nearest = min(differences, key=len, default={})
        return ", ".join(_sentence(name, own.get(name), value) for name, value in nearest.items()) or None

    async def _read(self, engine: str) -> list[str]:
        return [data.decode() for data in await self._store.read_objects(_keys(engine), True)]


def _keys(engine: str) -> list[str]:
    return [f"{engine}/identities/{number}" for number in range(_NOTED_MAX)]


def _sentence(name: str, here: Any, there: Any) -> str:
    return f"{name} is {here!r} here and {there!r} there"
