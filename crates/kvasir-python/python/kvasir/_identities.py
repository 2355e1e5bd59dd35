"""Identities: what makes pages with equal hashes incompatible. Registered in the service, to explain misses.

The extension registers and compares them (``kvasir-client``, ``rest/identities.rs``).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from . import _kvasir


@dataclass(frozen=True)
class Identity:
    """The identity of compatible pages. Ranks share it: pages of different ranks differ in their keys alone.

    Attributes
    ----------
    engine : str
        The back end; pages of different back ends never match.
    place : tuple
        Pool, group and stage: an engine has other pages for each, and compares them with those of the same place alone.
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

    def note(self) -> str:
        """Return what is registered."""
        return json.dumps({"place": self.place, "fields": self.fields})


class Register:
    """The identities with stored pages in a namespace."""

    def __init__(self, store: _kvasir.Store) -> None:
        self._store = store

    async def add(self, identity: Identity) -> None:
        """Register an identity, unless the register is full."""
        await self._request("register_identity", identity)

    async def difference(self, identity: Identity) -> str | None:
        """Describe how an identity differs from the closest registered one; None if it is registered, or none is."""
        cause = json.loads(await self._request("identity_mismatch", identity))
        if cause is None:
            return None
        return ", ".join(f"{each['field']} is {each['asked']!r} here and {each['stored']!r} there" for each in cause["differences"])

    async def declare(self, prefix: str, identity: Identity) -> None:
        """Store the identity of an engine that found none of the pages whose keys have this prefix."""
        await self._store.put_object(f"{prefix}identity", identity.note().encode(), True)

    async def _request(self, name: str, identity: Identity) -> str:
        body = {"namespace": self._store.namespace, "engine": identity.engine, "identity": identity.note()}
        return await self._store.request(name, json.dumps(body), True)
