"""Tests the chart's output with the service itself: settings, probes, ports, tenants, and the commands of `helm test` and the CronJobs.

Nothing here needs a store but a folder, or a dead address in place of one.
"""

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import tomllib
import unittest
from pathlib import Path

import chart
from chart import config, container, of, one, rendered

KVASIR = os.environ["KVASIR"]
EXAMPLE = chart.ROOT / "services/kvasir-server/kvasir-server.example.toml"
# Nothing of the caller's AWS_* or KVASIR_*.
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
# A request to a service on a loaded machine.
PATIENCE = 60


def kvasir(*arguments):
    command = [KVASIR, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=300)


def settings(text):
    return {f"{s}.{k}": v for s, keys in tomllib.loads(text).items() for k, v in keys.items()}


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for(what, condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if condition():
                return
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {PATIENCE} s")


def status(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status


class Service:
    """`kvasir serve` with a render's own kvasir.toml and arguments; only places on this machine are other ones."""

    def __init__(self, documents, folder, secrets=None):
        self.folder = Path(folder)
        spec = container(documents)
        toml = config(documents)
        for document in chart.all_of(documents, "Secret"):
            for name, text in document.get("stringData", {}).items():
                (self.folder / name).write_text(text)
        toml = toml.replace("/etc/kvasir/tenants/", f"{folder}/").replace("/etc/kvasir/tls/", f"{folder}/")
        toml = toml.replace("/etc/kvasir/client-ca/", f"{folder}/").replace("/var/lib/kvasir", f"{folder}/var")
        self.config = self.folder / "kvasir.toml"
        self.config.write_text(toml)
        self.ports = {p["name"]: p["containerPort"] for p in spec["ports"]}
        self.probes = {name: spec[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        arguments = [str(self.config) if a == "/etc/kvasir/config/kvasir.toml" else a for a in spec["args"]]
        # As the kubelet expands them where pods have no label of their zone.
        arguments = [a.replace("$(POD_NAME)", "rel-kvasir-0").replace("$(POD_ZONE)", "") for a in arguments]
        self.log = (self.folder / "log").open("w+")
        command, environment = [KVASIR, *arguments], ENVIRONMENT | (secrets or {})
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)  # noqa: S603

    def probe(self, name):
        """The status that the kubelet would see."""
        get = self.probes[name]
        assert get["scheme"] == "HTTP"
        return status(self.ports[get["port"]], get["path"])

    def __enter__(self):
        try:
            wait_for("the startup probe", lambda: self.process.poll() is not None or self.probe("startup") == 200)
            assert self.process.poll() is None, self.said()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def said(self):
        return (self.folder / "log").read_text()


def local(values, **more):
    """Values for this machine: one replica over a folder, free ports at loopback."""
    http_port, ops_port = free_ports(2)
    base = {
        "replicas": 1,
        "store": {"type": "file", "s3": {"bucket": ""}},
        "listenAddress": "127.0.0.1",
        "ports": {"http": http_port, "ops": ops_port},
        "config": {"hot": {"memory": "16MiB", "disk": "64MiB"}},
    }
    return {**base, **values, **more}


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)


class Settings(Folder):
    def accepted(self, text):
        path = Path(self.folder) / "kvasir.toml"
        path.write_text(text)
        done = kvasir("config", "--config", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        in_force, given = settings(done.stdout), settings(text)
        wrong = {key: value for key, value in given.items() if not same(in_force.get(key), value)}
        self.assertFalse(wrong, "what is given is in force")
        return given

    def test_each_ok_case_is_accepted(self):
        for case in chart.cases("ok"):
            with self.subTest(case=case.name):
                self.accepted(config(rendered(case.stem)))

    def test_every_setting_can_be_set(self):
        owners = (chart.CHART / "templates/_validate.tpl").read_text()
        owned = set(re.findall(r"^([a-z0-9_]+\.[a-z_]+): ", owners, re.MULTILINE))
        refused = {"store.access_key_id", "store.secret_access_key", "store.session_token", "encryption.keys"}
        # What each pod is told by the chart.
        refused |= {"cluster.members", "cluster.advertise", "cluster.zone"}
        live = re.sub(r"^#([a-z_]+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)
        every = settings(live)
        self.assertLess(owned | refused, every.keys(), "the chart owns what there is")
        values = {}
        for key, value in every.items():
            section, _, name = key.partition(".")
            if key not in owned | refused:
                values.setdefault(section, {})[name] = value
        given = self.accepted(config(of({"config": values})))
        self.assertLessEqual(set(every) - owned - refused, set(given))
        # And of what the chart owns, everything comes from some case.
        seen = set().union(*(settings(config(rendered(c.stem))) for c in chart.cases("ok")))
        self.assertFalse(owned - seen, "settings that no case of tests/ok reaches")

    def test_defaults_that_the_validation_looks_at(self):
        live = re.sub(r"^#([a-z_]+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)
        source = (chart.CHART / "templates/_config.tpl").read_text()
        told = re.search(r'define "kvasir.defaults" -}}\n(.*?)\{\{- end', source, re.DOTALL)[1]
        for key, value in chart.yaml.safe_load(told).items():
            self.assertEqual(settings(live)[key], value, key)

    def test_what_the_schema_lets_through_by_force_the_service_refuses(self):
        path = Path(self.folder) / "kvasir.toml"
        path.write_text(config(rendered("minimal")) + '\n[hott]\nmemory = "1GiB"\n')
        done = kvasir("config", "--config", path)
        self.assertEqual(done.returncode, 64)
        self.assertIn("hott.memory: is not a setting", done.stderr)

    def test_version(self):
        version = chart.yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["appVersion"]
        self.assertEqual(kvasir("--version").stdout.split()[1], version)


class Probes(Folder):
    def test_of_a_replica_that_works_and_then_stops(self):
        documents = of(local({"auth": {"allowUnauthenticated": True}}))
        with Service(documents, self.folder) as service:
            wait_for("readiness", lambda: service.probe("readiness") == 200)
            self.assertEqual(service.probe("liveness"), 200)
            self.assertEqual(status(service.ports["ops"], "/metrics"), 200)
            self.assertEqual(status(service.ports["ops"], "/v1/config"), 404, "no API where there is no credential")
            self.assertEqual(status(service.ports["api"], "/v1/config"), 200)
            service.process.send_signal(signal.SIGTERM)
            grace = chart.pod(documents)["terminationGracePeriodSeconds"]
            self.assertEqual(service.process.wait(timeout=grace), 0, service.said())

    def test_a_dead_store_makes_a_replica_unready_and_never_dead(self):
        (dead,) = free_ports(1)
        store = {"type": "s3", "s3": {"bucket": "kv-cache", "endpoint": f"http://127.0.0.1:{dead}"}}
        documents = of(local({"auth": {"allowUnauthenticated": True}}, store=store))
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        with Service(documents, self.folder, keys) as service:
            wait_for("the store's first failure", lambda: "does not respond" in service.said())
            for _ in range(5):
                self.assertEqual((service.probe("liveness"), service.probe("readiness")), (200, 503))
            self.assertEqual(status(service.ports["ops"], "/metrics"), 200)

    @unittest.skipUnless(shutil.which("openssl"), "needs openssl to make certificates")
    def test_client_certificates_do_not_keep_the_kubelet_out(self):
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
        make += ["-subj", "/CN=localhost", "-keyout", f"{self.folder}/tls.key", "-out", f"{self.folder}/tls.crt"]
        subprocess.run(make, check=True, capture_output=True)
        shutil.copy(f"{self.folder}/tls.crt", f"{self.folder}/ca.crt")
        tls = {"existingSecret": "t", "clientCa": {"existingSecret": {"name": "ca"}}}
        with Service(of(local({"auth": {"allowUnauthenticated": True}, "tls": tls})), self.folder) as service:
            wait_for("readiness", lambda: service.probe("readiness") == 200)
            self.assertEqual(service.probe("liveness"), 200)
            with self.assertRaises((http.client.HTTPException, OSError)):
                status(service.ports["api"], "/livez")


class Commands(Folder):
    def test_helm_test_and_tenants_that_change(self):
        def tokens(*names):
            hashed = [hashlib.sha256(f"kv_{name}".encode()).hexdigest() for name in names]
            entries = [{"name": n, "tenant": "t", "role": "write", "sha256": h} for n, h in zip(names, hashed, strict=True)]
            quotas = {"t": {"requests_per_second": 100000}}
            return {"allowUnauthenticated": False, "tenants": {"tokens": entries, "quotas": quotas}}

        test = {"selfTest": {"tokenSecret": {"name": "token"}}}
        documents = of(local({"auth": tokens("one"), **test}))
        with Service(documents, self.folder) as service:
            url = f"http://127.0.0.1:{service.ports['api']}"
            arguments = one(documents, "Pod")["spec"]["containers"][0]["args"]
            arguments[arguments.index("--url") + 1] = url
            secret = Path(self.folder) / "token"
            arguments[arguments.index("/etc/kvasir/token/token")] = str(secret)
            secret.write_text("kv_one\n")
            done = kvasir(*arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)
            for step in ["ready", "put", "lookup", "get", "delete", "gone"]:
                self.assertIn(f"{step}_ms", result)

            # Another Secret arrives as the kubelet brings it: a new folder behind the same link.
            secret.write_text("kv_two\n")
            self.assertNotEqual(kvasir(*arguments).returncode, 0, "a token that nobody knows")
            after = one(of(local({"auth": tokens("one", "two"), **test})), "Secret")["stringData"]
            fresh = Path(self.folder) / "..fresh"
            fresh.write_text(after["tenants.toml"])
            fresh.rename(Path(self.folder) / "tenants.toml")
            wait_for("the new tenants", lambda: "files reloaded" in service.said())
            done = kvasir(*arguments)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_cronjob(self):
        documents = rendered("gc-cronjob")
        path = Path(self.folder) / "kvasir.toml"
        path.write_text(config(documents))
        spec = one(documents, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
        arguments = [str(path) if a == "/etc/kvasir/config/kvasir.toml" else a for a in spec["args"]]
        (Path(self.folder) / "store").mkdir()
        here = ["--store.url", f"file://{self.folder}/store", "--cache.directory", f"{self.folder}/cache"]
        done = kvasir(*arguments, *here)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["dry_run"], True)

    def test_the_retraining(self):
        retrain = {"profiles": {"retrain": {"enabled": True}}}
        documents = of(local({"auth": {"allowUnauthenticated": True}, **retrain}))
        with Service(documents, self.folder) as service:
            wait_for("readiness", lambda: service.probe("readiness") == 200)
            spec = one(documents, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            arguments = list(spec["containers"][0]["args"])
            arguments[arguments.index("--url") + 1] = f"http://127.0.0.1:{service.ports['api']}"
            done = kvasir(*arguments)
            self.assertEqual((done.returncode, done.stdout), (0, "the tenant has no models\n"), done.stderr)


def same(shown, given):
    """Whether two ways to write a setting mean the same: `168h` is shown as `604800s`."""
    return shown == given or number(shown) == number(given) is not None


def number(value):
    scales = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    scales |= {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    match = re.fullmatch(r"([0-9]+) ?([A-Za-z]*)", str(value))
    return int(match[1]) * scales[match[2]] if match and match[2] in scales else None


