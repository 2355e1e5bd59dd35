"""The part of a Kubernetes API server that helm needs to install and upgrade: discovery, objects and patches, stored as received.

It judges nothing: that is what the tests do with what it recorded.
"""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

KINDS = {
    "v1": {"ConfigMap": "configmaps", "Secret": "secrets", "Service": "services", "ServiceAccount": "serviceaccounts", "Pod": "pods"},
    "apps/v1": {"StatefulSet": "statefulsets", "Deployment": "deployments"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "batch/v1": {"CronJob": "cronjobs"},
    "monitoring.coreos.com/v1": {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"},
    "cert-manager.io/v1": {"Certificate": "certificates"},
}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def resources(version):
    names = KINDS[version].items()
    entries = [{"name": n, "singularName": "", "namespaced": True, "kind": k, "verbs": VERBS} for k, n in names]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries}


def groups():
    found = []
    for version in KINDS.keys() - {"v1"}:
        each = {"groupVersion": version, "version": version.split("/")[1]}
        found.append({"name": version.split("/")[0], "versions": [each], "preferredVersion": each})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


class Api:
    """Listens at loopback between `with` and its end."""

    def __init__(self):
        self.objects, self.patches, self.deleted = {}, {}, []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, answer = api.answer(self.command, self.path, body)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, method, target, body):
        url = urlsplit(target)
        if url.path == "/version":
            return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        if url.path == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if url.path == "/apis":
            return 200, groups()
        match = re.fullmatch(r"/(?:api|apis)/(.+?)(?:/namespaces/[^/]+/([^/]+)(?:/([^/]+))?)?", url.path)
        if not match or match[1] not in KINDS:
            return missing(target)
        if not match[2]:
            return 200, resources(match[1])
        return self.object(method, match.groups(), url.query, body)

    def object(self, method, key, query, body):
        version, plural, name = key
        kind = next(k for k, n in KINDS[version].items() if n == plural)
        if method == "POST":
            sent = parse(body)
            self.objects[kind, sent["metadata"]["name"]] = sent
            return 201, sent
        if method == "GET" and not name:
            wanted = [pair.split("=") for pair in parse_qs(query).get("labelSelector", [""])[0].split(",") if pair]
            items = [o for (k, _), o in self.objects.items() if k == kind and carries(o, wanted)]
            return 200, {"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": items}
        if (kind, name) not in self.objects:
            return missing(name)
        if method == "PUT":
            self.objects[kind, name] = parse(body)
        elif method == "PATCH":
            self.patches[kind, name] = json.loads(body)
        elif method == "DELETE":
            self.deleted.append((kind, name))
        return 200, self.objects[kind, name]


def carries(document, wanted):
    labels = document["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in wanted)


def missing(what):
    return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": f"{what} not found"}


def parse(body):
    """An object as JSON, or, as helm writes the Secrets that it keeps releases in, as protobuf."""
    if not body.startswith(b"k8s\0"):
        return json.loads(body)
    # runtime.Unknown: 2 is the object. Secret: 1 metadata, 2 data, 3 type. ObjectMeta: 1 name, 3 namespace, 11 labels.
    secret = fields(fields(body[4:])[2][0])
    metadata = fields(secret[1][0])
    entries = [fields(entry) for entry in metadata.get(11, [])]
    data = [fields(entry) for entry in secret.get(2, [])]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": metadata[1][0].decode(),
            "namespace": metadata[3][0].decode(),
            "labels": {e[1][0].decode(): e[2][0].decode() for e in entries},
        },
        "data": {e[1][0].decode(): base64.b64encode(e[2][0]).decode() for e in data},
        "type": secret[3][0].decode(),
    }


def fields(message):
    """A protobuf message as number → values; bytes where they have a length."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        value = varint()
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        elif key & 7 != 0:
            raise ValueError(f"wire type {key & 7} is not used by what helm sends")
        found.setdefault(key >> 3, []).append(value)
    return found
