"""The few signed S3 and STS requests that scripts need; and a proxy that records the permission of each request."""

import datetime
import hashlib
import hmac
import http.client
import http.server
import json
import re
import threading
import urllib.parse
import urllib.request
from collections import Counter

REGION = "us-east-1"


def signed(endpoint: str, key: str, secret: str, method: str, path: str, query: dict, body: bytes, service: str) -> urllib.request.Request:
    """A request with Signature Version 4."""
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    host, digest = endpoint.split("://")[1], hashlib.sha256(body).hexdigest()
    asked = urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote)
    names = "host;x-amz-content-sha256;x-amz-date"
    canonical = f"{method}\n{path}\n{asked}\nhost:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{stamp}\n\n{names}\n{digest}"
    scope = f"{day}/{REGION}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signing = ("AWS4" + secret).encode()
    for part in [day, REGION, service, "aws4_request"]:
        signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(signing, text.encode(), hashlib.sha256).hexdigest()
    request = urllib.request.Request(f"{endpoint}{path}{'?' + asked if asked else ''}", data=body or None, method=method)
    request.add_header("x-amz-date", stamp)
    request.add_header("x-amz-content-sha256", digest)
    request.add_header("authorization", f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}")
    return request


def assume_role(endpoint: str, key: str, secret: str, policy: dict) -> dict:
    """Credentials that may do what `policy` allows and nothing else, as the variables that AWS tools read."""
    asked = {"Action": "AssumeRole", "Version": "2011-06-15", "DurationSeconds": "3600", "Policy": json.dumps(policy)}
    request = signed(endpoint, key, secret, "POST", "/", {}, urllib.parse.urlencode(asked).encode(), "sts")
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    value = lambda name: re.search(f"<{name}>(.*?)</{name}>", text)[1]  # noqa: E731
    return {"AWS_ACCESS_KEY_ID": value("AccessKeyId"), "AWS_SECRET_ACCESS_KEY": value("SecretAccessKey"),
            "AWS_SESSION_TOKEN": value("SessionToken")}


def actions(method: str, path: str, query: dict, copies: bool) -> set:
    """What S3's permission model asks for a request."""
    on_object = "/" in path.strip("/")
    if not on_object:
        return {"s3:DeleteObject"} if "delete" in query else {"s3:ListBucketMultipartUploads"} if "uploads" in query else {"s3:ListBucket"}
    if method == "DELETE":
        return {"s3:AbortMultipartUpload"} if "uploadId" in query else {"s3:DeleteObject"}
    if method in ("GET", "HEAD"):
        return {"s3:GetObject"}
    return {"s3:PutObject", "s3:GetObject"} if copies else {"s3:PutObject"}


class Recorder:
    """An HTTP proxy in front of an S3 server: counts what was asked and refused, and fails parts of uploads on request."""

    def __init__(self, endpoint: str):
        self.asked, self.refused, self.parts, self.fails_parts = Counter(), Counter(), 0, False
        upstream, recorder = endpoint.split("://")[1], self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                url = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                needed = actions(self.command, url.path, query, "x-amz-copy-source" in self.headers)
                recorder.asked.update(needed)
                recorder.parts += "partNumber" in query
                if recorder.fails_parts and "partNumber" in query:
                    return self.answer(500, {}, b"")
                connection = http.client.HTTPConnection(upstream, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                headers = {name: value for name, value in answer.getheaders() if name.lower() not in ("transfer-encoding", "connection")}
                content = answer.read()
                connection.close()
                # Deletions of many keys are refused one by one, under a status of 200.
                if answer.status == 403 or b"<Code>AccessDenied</Code>" in content[:65536]:
                    recorder.refused.update(needed)
                return self.answer(answer.status, headers, content)

            def answer(self, status: int, headers: dict, content: bytes):
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if not any(name.lower() == "content-length" for name in headers):
                    self.send_header("content-length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *_):
                pass

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Whoever gave up does not wait for the answer.
        self.server.handle_error = lambda *_: None
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
