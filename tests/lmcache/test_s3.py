"""LMCache's own S3 classes over Kvasir's S3 front: its server's adapter, its in-process mode's connector, and an engine."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import lmcache
import pytest
import torch
from batches import are_equal, load, look_up, make_keys, make_objects, store
from engine import make_tokens, wait_until_stored
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.s3_l2_adapter import S3L2AdapterConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend
from stores import MeasuredEngine, free_port
from stores import lmcache as engine_with
from test_remote import CHUNK, DIM, HEADS, LAYERS, Process

import kvasir

BUCKET = "pages"
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = str(Path(lmcache.__file__).parents[1])


class Front:
    """A service, and what LMCache needs to know of its front."""

    def __init__(self, url: str, port: int) -> None:
        self.store = kvasir.connect(url, namespace=BUCKET)
        self.host = f"{BUCKET}.s3.localhost:{port}"
        self.adapter = {"type": "s3", "s3_endpoint": f"s3://{self.host}", "s3_region": "us-east-1", "s3_prefer_http2": False}
        # What a service without credentials accepts.
        self.adapter |= {"disable_tls": True, "aws_access_key_id": "anyone", "aws_secret_access_key": "anyone"}
        self.adapter |= {"s3_num_io_threads": 2}


@pytest.fixture
def front():
    port = free_port()
    with kvasir.testing.server("--s3.listen", f"127.0.0.1:{port}", "--s3.domains", f"s3.localhost:{port}") as server:
        yield Front(server.url, port)


@pytest.fixture
def make(front):
    made = []

    def adapter():
        made.append(create_l2_adapter(S3L2AdapterConfig.from_dict(front.adapter)))
        return made[-1]

    yield adapter
    for each in made:
        each.close()


# As one object, and as several parts of an upload.
@pytest.mark.parametrize("times", [1, 80])
def test_the_servers_adapter_loads_what_another_has_stored(front, make, times):
    keys, objects, into = make_keys(4), make_objects(3, seed=1, times=times), make_objects(4, times=times)
    first, other = make(), make()
    assert store(first, keys[:3], objects).is_successful()
    assert look_up(other, keys) == "1110"
    assert load(other, keys, into) == "1110" and are_equal(into[:3], objects)
    assert len(other.list_l2_keys(model_name="org/model").entries) == 3
    other.submit_unlock(keys)
    other.delete(keys[:1])
    assert look_up(make(), keys) == "0110"


def test_a_key_keeps_its_first_bytes(make):
    """LMCache puts what it has computed, whether it is stored or not: other bytes are a failed store, and the first ones stay."""
    keys, objects, into = make_keys(2), make_objects(2, seed=1), make_objects(2)
    first, other = make(), make()
    assert store(first, keys, objects).is_successful() and store(other, keys, objects).is_successful()
    assert not store(other, keys, make_objects(2, seed=2)).is_successful()
    assert look_up(other, keys) == "11" and load(other, keys, into) == "11" and are_equal(into, objects)


class S3Process(Process):
    """An engine's process with the connector of a configuration file."""

    def __init__(self, file: Path) -> None:
        config = LMCacheEngineConfig.from_file(str(file))
        self.metadata = LMCacheMetadata("org/model", 1, 1, 0, 0, torch.bfloat16, (LAYERS, 2, CHUNK, HEADS, DIM), chunk_size=CHUNK)
        self.memory = LocalCPUBackend(config, self.metadata, dst_device="cpu")
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.backend = RemoteBackend(config, self.metadata, self.loop, self.memory, "cpu")


def test_the_in_process_connector_of_the_documented_file(front, tmp_path):
    page = (ROOT / "services/kvasir-server/docs/s3.md").read_text()
    [text] = re.findall(r"```yaml\n(remote_url.*?)```", page, re.DOTALL)
    text = re.sub("pages.s3.example.com:7482", front.host, text, count=1)
    text = re.sub("aws_access_key_id: .*", "aws_access_key_id: anyone", text)
    text = re.sub("aws_secret_access_key: .*", "aws_secret_access_key: anyone", text)
    file = tmp_path / "lmcache.yaml"
    file.write_text(f"chunk_size: {CHUNK}\nlocal_cpu: false\nmax_local_cpu_size: 0.1\n{text}")
    one, other = S3Process(file), S3Process(file)
    values = one.store(one.keys(3), seed=1)
    assert [other.backend.contains(key) for key in other.keys(4)] == [True, True, True, False]
    loaded = other.load(other.keys(4))
    assert all(torch.equal(a, b) for a, b in zip(loaded[:3], values, strict=True)) and loaded[3] is None
    # Neither is closed: LMCache's close of this connector waits in its loop for its loop.


def test_a_fresh_engine_loads_through_lmcaches_adapter(front):
    prompts = [make_tokens(length, seed) for seed, length in enumerate((600, 800))]
    with MeasuredEngine() as engine:
        computed = [engine.ask(tokens=tokens, count=24)["tokens"] for tokens in prompts]
    with engine_with(PACKAGES, front.adapter) as first:
        cold = [first.ask(tokens=tokens, count=24) for tokens in prompts]
        wait_until_stored(front.store, sum(len(tokens) // 256 for tokens in prompts))
    with engine_with(PACKAGES, front.adapter) as fresh:
        warm = [fresh.ask(tokens=tokens, count=24) for tokens in prompts]
    assert [found["cached"] for found in cold + warm] == [0, 0] + [len(tokens) // 256 * 256 for tokens in prompts]
    assert [found["tokens"] for found in cold] == [found["tokens"] for found in warm] == computed
