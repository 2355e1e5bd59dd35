"""A service with an S3 front over an empty folder. As a program: runs a command against it, with `AWS_*` set."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

BINARY = os.environ["KVASIR_TEST_BINARY"]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Front:
    """Where the front is, and its access keys by their names."""

    def __init__(self, url: str, api: str, keys: dict[str, tuple[str, str]]):
        self.url, self.api, self.keys = url, api, keys

    def environment(self, name: str) -> dict[str, str]:
        """What AWS's tools read, for the access key of this name."""
        access_key, secret = self.keys[name]
        return os.environ | {
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }


@contextlib.contextmanager
def front():
    """Starts it with three access keys: `writer` and `reader` of tenant `a`, `sealed` of a tenant that is encrypted at rest."""
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        keys = {}
        with open(work / "tenants.toml", "w") as tenants:
            for name, tenant, role in [("writer", "a", "write"), ("reader", "a", "read"), ("sealed", "s", "write")]:
                arguments = [BINARY, "token", "--s3", "--json", "--tenant", tenant, "--role", role, "--name", name]
                made = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
                keys[name] = (made["id"], made["secret"])
                tenants.write(made["entry"] + "\n")
        api, port = _free_port(), _free_port()
        settings = {
            "--listen": f"127.0.0.1:{api}",
            "--s3.listen": f"127.0.0.1:{port}",
            "--s3.domains": f"s3.localhost:{port}",
            "--store.url": f"file://{work}/store",
            "--cache.directory": str(work / "cache"),
            "--auth.tenants_file": str(work / "tenants.toml"),
            "--log.filter": "warn",
        }
        with open(work / "log", "w") as log:
            command = [BINARY, "serve", *[word for pair in settings.items() for word in pair]]
            environment = os.environ | {"KVASIR_ENCRYPTION_KEYS": f"s:1:{'5a' * 32}"}
            service = subprocess.Popen(command, stderr=log, env=environment)
            try:
                for _ in range(100):
                    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{api}/readyz"):
                        break
                    assert service.poll() is None, (work / "log").read_text()
                    time.sleep(0.1)
                yield Front(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{api}", keys)
                assert service.poll() is None, (work / "log").read_text()
                log = (work / "log").read_text()
                assert "panicked" not in log, log
            finally:
                service.terminate()
                service.wait()


if __name__ == "__main__":
    with front() as running:
        environment = running.environment("writer") | {"AWS_ENDPOINT": running.url, "AWS_BUCKET": "suite"}
        sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)
