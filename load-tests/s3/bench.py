"""CPU seconds of the servers for objects over S3: Kvasir's front and MinIO, on the same disk, in turns.

    bench.py ROUNDS kvasir=PID,URL,ACCESS_KEY,SECRET minio=PID,URL,ACCESS_KEY,SECRET

Requests are presigned by botocore and sent over one connection by each of two threads, so that the client is the same for both. CPU
seconds are those of the server's process (utime and stime of /proc). Prints JSON: medians over the rounds of each pair's quotient,
MinIO's seconds by Kvasir's, so that more is better; with quartiles, and all pairs of (CPU seconds, seconds).
"""

import http.client
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

import boto3
from botocore.config import Config

BUCKET = "bench"
# Bytes of an object, and how many of them a round stores and reads.
SIZES = {"64 KiB": (64 << 10, 400), "1 MiB": (1 << 20, 96), "4 MiB": (4 << 20, 48), "16 MiB": (16 << 20, 16)}
THREADS = 2
TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, text):
        self.name, rest = text.split("=", 1)
        self.pid, self.url, access_key, secret = rest.split(",")
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=access_key,
            aws_secret_access_key=secret,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        self.client.create_bucket(Bucket=BUCKET)

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def targets(self, call, keys):
        urls = [self.client.generate_presigned_url(call, Params={"Bucket": BUCKET, "Key": key}) for key in keys]
        parts = [urllib.parse.urlsplit(url) for url in urls]
        return [f"{part.path}?{part.query}" for part in parts]

    def run(self, method, targets, body, length):
        """Sends all, and gives the server's CPU seconds for it and the seconds that it took."""

        def send(mine):
            connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc)
            for target in mine:
                connection.request(method, target, body=body)
                answer = connection.getresponse()
                received = 0
                while part := answer.read(1 << 20):
                    received += len(part)
                assert answer.status == 200 and received == length, (self.name, method, answer.status, received)

        threads = [threading.Thread(target=send, args=(targets[number::THREADS],)) for number in range(THREADS)]
        before, started = self.cpu_seconds(), time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.monotonic() - started
        # What it does behind its answers is part of the price.
        time.sleep(0.5)
        return self.cpu_seconds() - before, elapsed


def spread(values):
    ordered = sorted(values)
    quartiles = statistics.quantiles(ordered, n=4) if len(ordered) > 1 else [ordered[0]] * 3
    return {"median": round(quartiles[1], 3), "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)]}


def cpu():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main():
    rounds, servers = int(sys.argv[1]), [Server(text) for text in sys.argv[2:]]
    measured = {}
    for size, (length, count) in SIZES.items():
        for number in range(rounds + 1):
            order = servers if number % 2 else servers[::-1]
            body = os.urandom(length)
            keys = [f"{size.replace(' ', '')}/{number}/{key}" for key in range(count)]
            for method, call in [("PUT", "put_object"), ("GET", "get_object")]:
                seconds = {
                    server.name: server.run(
                        method, server.targets(call, keys), body if method == "PUT" else None, length if method == "GET" else 0
                    )
                    for server in order
                }
                # The first round warms both.
                if number > 0:
                    measured.setdefault((method, size), []).append(seconds)
            print(f"{size}: round {number} of {rounds}", file=sys.stderr, flush=True)
    ours, theirs = (server.name for server in servers)
    rows = []
    for (method, size), pairs in measured.items():
        count = SIZES[size][1]
        rows.append(
            {
                "request": method,
                "bytes": size,
                "cpu_ms_a_request": {
                    name: round(statistics.median(pair[name][0] for pair in pairs) * 1e3 / count, 3) for name in (ours, theirs)
                },
                "cpu_quotient": spread([pair[theirs][0] / max(pair[ours][0], 1 / TICKS) for pair in pairs]),
                "seconds_quotient": spread([pair[theirs][1] / pair[ours][1] for pair in pairs]),
                "raw": [[list(pair[ours]), list(pair[theirs])] for pair in pairs],
            }
        )
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], check=False, capture_output=True, text=True)
    run = {
        "what": f"whole objects over S3, {THREADS} connections: {ours}, then {theirs}, each with its files on the same disk",
        "machine": f"{cpu()}, {os.cpu_count()} cores",
        "load_average": os.getloadavg()[0],
        "commit": commit.stdout.strip(),
        "rounds": rounds,
        "rows": rows,
    }
    print(json.dumps(run, indent=1))


main()
