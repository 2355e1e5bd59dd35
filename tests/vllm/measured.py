"""An engine in a separate process that times its requests: commands and results are lines of JSON."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from engine import BLOCK, MODEL, Engine
from vllm import LLM
from vllm.config import KVTransferConfig
from vllm.triton_utils import dispatcher


class OtherStoreEngine(Engine):
    """An engine with a connector that is not ours, or with none."""

    def __init__(self, transfer: dict[str, Any] | None) -> None:
        self.llm = LLM(
            model=str(MODEL),
            enforce_eager=True,
            block_size=BLOCK,
            max_model_len=1024,
            max_num_batched_tokens=256,
            dtype="bfloat16",
            distributed_executor_backend="uni",
            kv_transfer_config=transfer and KVTransferConfig(kv_role="kv_both", kv_load_failure_policy="recompute", **transfer),
        )
        self._core = self.llm.llm_engine
        self._next = 0


def make_engine(url: str = "", extra: dict | None = None, transfer: dict | None = None) -> Engine:
    """One over Kvasir where there is an address, else one with the connector of `transfer`, if any."""
    if url:
        engine = Engine(url, extra=extra)
        engine.wait_until_connected()
        return engine
    # vLLM looks for kernels in all modules, and takes each `vars` for a mapping. Of an object of llvmlite's, which LMCache imports,
    # it is none.
    dispatcher.vars = lambda value: found if isinstance(found := vars(value), Mapping) else {}
    return OtherStoreEngine(transfer)


def fetch(url: str, size: int) -> None:
    """Fetch bytes into memory."""
    host, port = url.removeprefix("http://").split(":")
    into = memoryview(bytearray(size))
    with socket.create_connection((host, int(port))) as server:
        server.sendall(size.to_bytes(8, "little"))
        while into:
            into = into[server.recv_into(into) :]


def answer(engine: Engine, tokens: list[int], own: list[int] | None = None, count: int = 1, **raw: Any) -> dict[str, Any]:
    """Time the first `count` tokens of an answer. Of `own` vLLM has the cache; `url` and `size` are bytes that come before."""
    engine.forget()
    if own:
        engine.run(own, max_tokens=1)
    begun = time.perf_counter()
    if raw:
        fetch(**raw)
    done = engine.run(tokens, max_tokens=count)
    seconds = time.perf_counter() - begun
    # What stores it may need steps.
    engine.settle()
    return {"seconds": seconds, "cached": done.cached, "tokens": done.tokens}


def main(order: dict[str, Any]) -> None:
    try:
        engine = make_engine(**order)
    except Exception as refusal:
        print(json.dumps({"refused": f"{type(refusal).__name__}: {refusal}"}), flush=True)
        raise SystemExit(1) from None
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(engine, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
