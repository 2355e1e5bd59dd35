"""The deployment of compose.yaml as processes: MinIO, replicas of the real binary, HAProxy, Prometheus.

Configuration files are the very files that compose mounts; only addresses differ.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

from processes import Process, StackError, delete, free_port, get, run

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BUCKET, KEY, SECRET = "kvasir", "local-key", "local-secret"


def build_folder() -> Path:
    """Where cargo puts what it builds."""
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def built(name: str, variable: str, package: str) -> Path:
    """A program of this tree: what the variable names, else the newest of the release and the development build."""
    given = os.environ.get(variable)
    candidates = [Path(given)] if given else [build_folder() / kind / name for kind in ("release", "debug")]
    existing = [candidate for candidate in candidates if candidate.exists()]
    if not existing:
        raise StackError(f"there is no {name} binary: cargo build --release -p {package}")
    return max(existing, key=lambda candidate: candidate.stat().st_mtime).resolve()


def binary() -> Path:
    """The `kvasir` to run; KVASIR_BINARY names another."""
    return built("kvasir", "KVASIR_BINARY", "kvasir-cli")


def lab_binary() -> Path:
    """The `kvasir-lab` to run; KVASIR_LAB_BINARY names another."""
    return built("kvasir-lab", "KVASIR_LAB_BINARY", "kvasir-lab")


def write_dump(text: Path, dump: Path, tokens: int = 512, skip: int = 0) -> None:
    """Writes the KV dump of a part of a text, as the shipped model computes it."""
    run([lab_binary(), "dump", "--text", text, "--skip", str(skip), "--tokens", str(tokens), "-o", dump])


def package(name: str) -> Path:
    """The unpacked files of a Debian package, fetched once."""
    root = build_folder() / "tools" / name
    run([DEPLOY / "stack/unpack", root, name])
    return root


def minio_binary() -> Path:
    """MinIO's server, built once by the script of the tests; MINIO names another."""
    if "MINIO" in os.environ:
        return Path(os.environ["MINIO"])
    run([ROOT / "tests/servers/minio", "install"], patience=1800)
    return next((ROOT / "target/servers/minio").glob("v*/minio"))


def outlive_misses() -> None:
    """Waits until no replica keeps to a "not stored" that it answered before something was stored at another (`negative_ttl`, 1 s)."""
    time.sleep(1.5)


class Replica(Process):
    """One `kvasir serve` with a folder of its own."""

    def __init__(self, name: str, folder: Path, store: dict, program: Path | None = None, settings: list | None = None):
        self.port, self.cache = free_port(), folder / f"{name}-cache"
        self.url = f"http://127.0.0.1:{self.port}"
        env = {**store, "KVASIR_SERVER_LISTEN": f"127.0.0.1:{self.port}", "KVASIR_CACHE_DIRECTORY": str(self.cache)}
        command = [program or binary(), "serve", "--config", DEPLOY / "kvasir.toml", *(settings or [])]
        super().__init__(name, command, folder, env)

    def ready(self) -> float:
        return self.wait_for(f"{self.url}/readyz")


def remove(url: str, dump: Path, program: Path | None = None) -> None:
    """Removes every chunk of a context through the service at `url`."""
    client = program or binary()
    found = json.loads(run([client, "context", "lookup", "--kv", dump, "--json", "--url", url]).stdout)["chunks"]
    models = json.loads(run([client, "admin", "usage", "--json", "--url", url]).stdout)["bytes_by_model"]
    for chunk in found:
        removed = [delete(f"{url}/v1/models/{model}/chunks/{chunk['seq_hash']}") for model in models]
        if not any(removed):
            raise StackError(f"{chunk['seq_hash']} is offered and cannot be removed")


class Stack:
    """Everything, from empty, under one folder. Use it as a context: what was started ends with it."""

    def __init__(self, folder: Path):
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.processes = []
        self.replicas = []

    def __enter__(self) -> "Stack":
        # A script that is ended ends what it started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        return self

    def __exit__(self, *_) -> None:
        for process in reversed(self.processes):
            process.end(patience=10)

    def started(self, process: Process) -> Process:
        self.processes.append(process)
        return process.start()

    def minio(self, certificates: Path | None = None) -> "Stack":
        """An S3 server; with a bucket, where it speaks plain HTTP. `certificates` has `public.crt` and `private.key` otherwise."""
        port = free_port()
        scheme, tls = ("https", ["--certs-dir", certificates]) if certificates else ("http", [])
        self.endpoint = f"{scheme}://127.0.0.1:{port}"
        env = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off", "MINIO_CI_CD": "1"}
        data = self.folder / "minio-data"
        data.mkdir()
        server = self.started(Process("minio", [minio_binary(), "server", "--quiet", *tls, "--address", f"127.0.0.1:{port}", data], self.folder, env))
        if certificates:
            (data / BUCKET).mkdir()  # MinIO takes a folder for a bucket; only what trusts the authority can ask it for one
            return self
        server.wait_for(f"{self.endpoint}/minio/health/ready")
        run([ROOT / "tests/servers/make-bucket", self.endpoint, KEY, SECRET, BUCKET])
        return self

    def store(self, prefix: str = "", credentials: dict | None = None) -> dict:
        """The store as environment variables of a replica."""
        as_root = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        return {"KVASIR_STORE_URL": f"s3://{BUCKET}/{prefix}".rstrip("/"), "AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1",
                **(credentials or as_root)}

    def replica(self, name: str, store: dict | None = None, **more) -> Replica:
        replica = Replica(name, self.folder, store or self.store(), **more)
        self.replicas.append(replica)
        return self.started(replica)

    def balancer(self) -> "Stack":
        """HAProxy in front of the first two replicas."""
        root, port = package("haproxy"), free_port()
        self.url = f"http://127.0.0.1:{port}"
        env = {"LD_LIBRARY_PATH": str(root / "usr/lib/x86_64-linux-gnu"), "BALANCER_LISTEN": f"127.0.0.1:{port}",
               "REPLICA_ONE": f"127.0.0.1:{self.replicas[0].port}", "REPLICA_TWO": f"127.0.0.1:{self.replicas[1].port}"}
        balancer = self.started(Process("haproxy", [root / "usr/sbin/haproxy", "-db", "-f", DEPLOY / "haproxy.cfg"], self.folder, env))
        balancer.wait_for(f"{self.url}/readyz")
        return self

    def prometheus(self) -> "Stack":
        """Prometheus over all replicas, with our rules."""
        root, port, home = package("prometheus"), free_port(), self.folder / "prometheus"
        (home / "targets").mkdir(parents=True)
        (home / "prometheus.yml").symlink_to(DEPLOY / "prometheus/prometheus.yml")
        (home / "rules").symlink_to(DEPLOY / "../helm/kvasir/files/rules")
        targets = [{"targets": [f"127.0.0.1:{replica.port}" for replica in self.replicas], "labels": {"namespace": "local"}}]
        (home / "targets/local.json").write_text(json.dumps(targets))
        self.prometheus_url = f"http://127.0.0.1:{port}"
        command = [root / "usr/bin/prometheus", f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'data'}",
                   f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=2d"]
        server = self.started(Process("prometheus", command, self.folder))
        server.wait_for(f"{self.prometheus_url}/-/ready")
        return self

    def kvasir(self, *arguments, url: str | None = None, expect: int | None = 0) -> subprocess.CompletedProcess:
        """The client against the load balancer, or another address."""
        return run([binary(), *arguments, "--url", url or self.url], expect=expect)

    def query(self, expr: str) -> list:
        """Prometheus' answer to an instant query."""
        answer = json.loads(get(f"{self.prometheus_url}/api/v1/query?{urlencode({'query': expr})}"))
        return answer["data"]["result"]
