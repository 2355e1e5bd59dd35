"""Parsing of settings in an engine's configuration."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from .errors import InputError

T = TypeVar("T")

QUALITIES = ("exact", "transparent", "balanced", "small")
"""Names of qualities, best first."""

_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float)}


def read_settings(cls: type[T], given: Mapping[str, Any], where: str) -> T:
    """Build a dataclass with fields `url`, `token` and `zone` from the keys and values at `where`. Numbers must be above 0.

    Raises
    ------
    InputError
        ``invalid_setting`` naming the key.
    """
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(known))
    if unknown:
        refuse(where, f"{unknown[0]} is not a setting", f"use {', '.join(known)}")
    if not given.get("url"):
        refuse(where, "url is missing", 'give "url": "http://HOST:7480", the address of `kvasir serve`')
    for name, value in given.items():
        kind = str(known[name].type)
        if value is None and kind.endswith(" | None"):
            continue
        if not isinstance(value, _KINDS.get(kind, (str,))) or isinstance(value, bool):
            refuse(where, f"{name} is {value!r}", f"give a value of type {kind}")
        if isinstance(value, (int, float)) and value <= 0:
            refuse(where, f"{name} is {value}", "give a number above 0")
        if name == "quality" and value not in QUALITIES:
            refuse(where, f"quality is {value!r}", f"give one of {', '.join(QUALITIES)}")
    return cls(**{"token": os.environ.get("KVASIR_TOKEN"), "zone": os.environ.get("KVASIR_ZONE"), **given})


def is_below(soft_quality: str, quality: str | None) -> bool:
    """Whether `Session.load` takes a soft quality under a model's quality: settings are checked before the first load."""
    return quality in QUALITIES and soft_quality in QUALITIES[QUALITIES.index(quality) + 1 :]


def refuse(where: str, what: str, remedy: str) -> NoReturn:
    """Reject a setting.

    Raises
    ------
    InputError
        ``invalid_setting``, always.
    """
    raise InputError(f"{where}: {what}", "invalid_setting", remedy)
