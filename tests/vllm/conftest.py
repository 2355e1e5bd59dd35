"""A service, and a client to inspect it."""

from __future__ import annotations

import pytest

import kvasir


@pytest.fixture(scope="module")
def service():
    with kvasir.testing.server() as server:
        yield server


@pytest.fixture(scope="module")
def store(service):
    return kvasir.connect(service.url)
