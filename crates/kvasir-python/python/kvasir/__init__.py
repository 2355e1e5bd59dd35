"""Kvasir for Python: a store for the KV caches of language models.

Examples
--------
>>> with kvasir.testing.server() as s:
...     store = kvasir.connect(s.url)
...     model = store.model(spec)
...     saved = model.session(tokens).save(kv)
...     loaded = model.session(tokens).load(level=0)
>>> loaded.loaded_tokens == len(tokens)
True
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from ._codec import Inspection, Level, Plan, Profile, decode, encode, inspect, plan
from ._kvasir import __version__
from ._model import Model
from ._reports import Loaded, LoadedChunk, Loss, Saved, SavedChunk
from ._session import Save, Session
from ._spec import KV, ModelSpec
from ._store import Store, connect
from .errors import AuthError, DataError, ForkError, InputError, KvasirError, ServiceError, UnavailableError

if TYPE_CHECKING:
    from . import aio, testing

__all__ = [
    "KV",
    "AuthError",
    "DataError",
    "ForkError",
    "InputError",
    "Inspection",
    "KvasirError",
    "Level",
    "Loaded",
    "LoadedChunk",
    "Loss",
    "Model",
    "ModelSpec",
    "Plan",
    "Profile",
    "Save",
    "Saved",
    "SavedChunk",
    "ServiceError",
    "Session",
    "Store",
    "UnavailableError",
    "__version__",
    "aio",
    "connect",
    "decode",
    "encode",
    "inspect",
    "plan",
    "testing",
]


def __getattr__(name: str) -> ModuleType:
    # Imported on first use: asyncio and subprocess take longer to import than everything else.
    if name in ("aio", "testing"):
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
