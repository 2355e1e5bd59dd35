"""A service, and an adapter over it."""

from __future__ import annotations

import pytest
from batches import make_adapter

import kvasir


@pytest.fixture(scope="module")
def service():
    with kvasir.testing.server() as server:
        yield server


@pytest.fixture
def store_of(service):
    return lambda namespace: kvasir.connect(service.url, namespace=namespace)


@pytest.fixture
def adapter(service, request):
    """One whose namespace is the test's own."""
    made = make_adapter(service.url, namespace=request.node.name.split("[")[0])
    yield made
    made.close()
