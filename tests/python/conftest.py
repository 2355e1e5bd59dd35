"""Fixtures of all tests."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest


@pytest.fixture
def import_over(monkeypatch):
    """Imports a module of the package; `stand_ins` have the contents of the engine's modules, by their names."""
    before = set(sys.modules)

    def load(name: str, stand_ins: dict[str, dict]) -> ModuleType:
        for theirs, contents in stand_ins.items():
            made = ModuleType(theirs)
            made.__dict__.update(contents)
            monkeypatch.setitem(sys.modules, theirs, made)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if name.startswith("kvasir."):
            del sys.modules[name]
