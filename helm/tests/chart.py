"""Common helpers of the chart's tests: rendering it, and finding objects in the output."""

import os
import subprocess
from functools import cache
from pathlib import Path

import yaml

TESTS = Path(__file__).resolve().parent
CHART = TESTS.parent / "kvasir"
ROOT = TESTS.parent.parent
HELM = os.environ.get("HELM", "helm")
# The oldest version that the chart takes, the newest that there are schemas of, and one between.
VERSIONS = ["1.31.0", "1.34.0", "1.37.0"]


def helm(*arguments):
    """A finished helm, whatever its end."""
    return subprocess.run([HELM, *map(str, arguments)], capture_output=True, text=True, check=False)


def template(*files, values=None, version="1.34.0", release="rel", chart=CHART, scratch=None):
    """`helm template` with values from files, and then from a map."""
    arguments = ["template", release, chart, "--namespace", "ns", "--kube-version", version]
    for file in files:
        arguments += ["--values", file]
    if values is not None:
        path = Path(scratch or os.environ["TMPDIR"]) / f"values-{os.getpid()}.yaml"
        path.write_text(yaml.safe_dump(values))
        arguments += ["--values", path]
    return helm(*arguments)


@cache
def rendered(name):
    """The objects of tests/ok/NAME.yaml."""
    return objects(template(TESTS / "ok" / f"{name}.yaml"))


def of(values):
    """The objects of values over tests/base.yaml."""
    return objects(template(TESTS / "base.yaml", values=values))


def objects(done):
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def all_of(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def one(documents, kind, name=None):
    """The only object of a kind (and name)."""
    found = [d for d in all_of(documents, kind) if name in (None, d["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of {kind} {name or ''}"
    return found[0]


def config(documents):
    """kvasir.toml."""
    for document in all_of(documents, "ConfigMap"):
        if "kvasir.toml" in document["data"]:
            return document["data"]["kvasir.toml"]
    raise AssertionError("there is no kvasir.toml")


def pod(documents):
    """The pod's spec of the StatefulSet."""
    return one(documents, "StatefulSet")["spec"]["template"]["spec"]


def container(documents):
    return pod(documents)["containers"][0]


def cases(folder):
    return sorted((TESTS / folder).glob("*.yaml"))
