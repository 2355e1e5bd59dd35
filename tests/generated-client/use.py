"""Works with the generated client; every call goes through its types."""

import sys

from kvasir_client import Client
from kvasir_client.api.chunks import explain, lookup
from kvasir_client.api.contexts import list_contexts
from kvasir_client.api.models import get_model, register_model
from kvasir_client.api.namespaces import open_namespace
from kvasir_client.api.service import get_config, get_usage
from kvasir_client.models import (
    ExplainRequest,
    LookupRequest,
    MissReason,
    ModelSpec,
    NamespaceRequest,
    Problem,
)

client = Client(base_url=sys.argv[1])

config = get_config.sync(client=client)
assert config.block_tokens == 16, config

spec = ModelSpec.from_dict(
    {
        "weights": "generated/client",
        "revision": "1",
        "kv_dtype": "bf16",
        "layers": [{"layout": {"kind": "gqa", "kv_heads": 2, "head_dim": 64}}],
    }
)
registered = register_model.sync(client=client, body=spec)
assert registered.created, registered
assert get_model.sync(client=client, model_id=registered.model_id).weights == "generated/client"

request = NamespaceRequest(namespace="python", model_id=registered.model_id)
root = open_namespace.sync(client=client, body=request).root
assert len(root) == 64, root

tokens = list(range(64))
found = lookup.sync(
    client=client, body=LookupRequest(model_id=registered.model_id, namespace="python", tokens=tokens)
)
assert found.matched_tokens == 0, found
why = explain.sync(
    client=client, body=ExplainRequest(model_id=registered.model_id, namespace="python", tokens=tokens)
)
assert why.causes[0].reason == MissReason.NEVER_STORED, why
assert list_contexts.sync(client=client).contexts == []
assert get_usage.sync(client=client).objects == 0

problem = get_model.sync(client=client, model_id="0" * 64)
assert isinstance(problem, Problem) and problem.code == "unknown_model", problem
print("the generated client works: 9 calls, one typed error")
