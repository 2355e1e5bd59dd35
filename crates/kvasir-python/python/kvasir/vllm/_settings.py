"""The keys of ``kv_connector_extra_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._settings import read_settings, refuse

_CHUNK_STEP = 256
_CHUNK_MAX = 16_384
_WHERE = "kv_connector_extra_config"


@dataclass(frozen=True)
class Settings:
    """What a user says.

    Attributes
    ----------
    url : str
        The service's address.
    token : str or None
        A token of the service; the environment's ``KVASIR_TOKEN`` unless said.
    namespace : str
        Caches of different namespaces never match.
    quality : str
        Worst quality that is loaded: ``exact``, ``transparent``, ``balanced`` or ``small``.
    profile : str or None
        What caches are encoded with: a file, or an id in the store. Unless said, the one in force at the service, and where there
        is none, one that is made of the first cache that is saved.
    weights, revision : str or None
        Identity of the weights, where that of their files is not wanted.
    chunk_tokens : int
        Tokens of a stored chunk: a multiple of 256.
    lookup_deadline_s : float
        Longest that a request is held back for its lookup.
    load_deadline_s : float
        Longest that a request waits for its load; then it is computed.
    save_queue_mb : int
        Most memory, in MiB, of what is copied and not stored yet; what comes then is not saved.
    """

    url: str
    token: str | None = None
    namespace: str = "default"
    quality: str = "transparent"
    profile: str | None = None
    weights: str | None = None
    revision: str | None = None
    chunk_tokens: int = 1_536
    lookup_deadline_s: float = 0.5
    load_deadline_s: float = 10.0
    save_queue_mb: int = 1_024

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """Check the keys and values.

        Raises
        ------
        InputError
            ``invalid_setting`` naming the key.
        """
        settings = read_settings(cls, given, _WHERE)
        chunk = settings.chunk_tokens
        if not (0 < chunk <= _CHUNK_MAX) or chunk % _CHUNK_STEP:
            refuse(_WHERE, f"chunk_tokens is {chunk}", f"give a multiple of {_CHUNK_STEP} up to {_CHUNK_MAX}")
        return settings
