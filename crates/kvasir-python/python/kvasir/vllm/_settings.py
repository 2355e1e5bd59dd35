"""The keys of ``kv_connector_extra_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._settings import is_below, read_settings, refuse

_CHUNK_STEP = 256
_CHUNK_MAX = 16_384
_WHERE = "kv_connector_extra_config"


@dataclass(frozen=True)
class Settings:
    """User settings.

    Attributes
    ----------
    url : str
        The service's address.
    token : str or None
        A token of the service. Default: the environment variable ``KVASIR_TOKEN``.
    namespace : str
        Caches of different namespaces never match.
    quality : str
        Lowest quality to load: ``exact``, ``transparent``, ``balanced`` or ``small``.
    soft_quality : str or None
        A quality below `quality` that a load may fall to where its deadline leaves no time for more.
    profile : str or None
        The profile to encode caches with: a file, or an id in the store. Default: the profile in force at the service; if there
        is none, one made from the first cache saved.
    weights, revision : str or None
        Identity of the weights, to override that of their files.
    chunk_tokens : int
        Tokens of a stored chunk: a multiple of 256.
    lookup_deadline_s : float
        Longest delay of a request by its lookup.
    load_deadline_s : float
        Longest wait of a request for its load; after that it is computed.
    save_queue_mb : int
        Maximum memory, in MiB, of copied rows that are not stored yet; beyond it, rows are not saved.
    zone : str or None
        The zone of this engine: of two replicas that keep a context, one in the same zone is asked first. Default: the
        environment variable ``KVASIR_ZONE``.
    """

    url: str
    token: str | None = None
    namespace: str = "default"
    quality: str = "transparent"
    soft_quality: str | None = None
    profile: str | None = None
    weights: str | None = None
    revision: str | None = None
    chunk_tokens: int = 1_536
    lookup_deadline_s: float = 0.5
    load_deadline_s: float = 10.0
    save_queue_mb: int = 1_024
    zone: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """Check the keys and values.

        Raises
        ------
        InputError
            ``invalid_setting`` naming the key.
        """
        settings = read_settings(cls, given, _WHERE)
        soft, quality = settings.soft_quality, settings.quality
        if soft is not None and not is_below(soft, quality):
            refuse(_WHERE, f"soft_quality is {soft!r}", f"give one that is below quality, which is {quality!r}, or none")
        chunk = settings.chunk_tokens
        if not (0 < chunk <= _CHUNK_MAX) or chunk % _CHUNK_STEP:
            refuse(_WHERE, f"chunk_tokens is {chunk}", f"give a multiple of {_CHUNK_STEP} up to {_CHUNK_MAX}")
        return settings
