"""Hostile clients against a running service with credentials on: python attacks.py HOST PORT TOKEN PID VICTIM STORE [SECONDS].

VICTIM is the token of the tenant "default", whose objects are in the folder STORE. Only the standard library. Each attack says what it did and what came of it; the exit status is 1 where one got through.
While they run, an honest client with a good token asks all the time: it must always be answered, and soon.
"""

import base64, hashlib, json, os, pathlib, random, socket, sys, threading, time, zlib
from concurrent.futures import ThreadPoolExecutor

HOST, PORT, TOKEN, PID = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
VICTIM, STORE = sys.argv[5], pathlib.Path(sys.argv[6])
SECONDS = float(sys.argv[7]) if len(sys.argv) > 7 else 36.0
HEX = "0" * 64
MODEL, CHUNK = f"/v1/models/{HEX}", f"/v1/models/{HEX}/chunks/{HEX}"
AUTH = f"authorization: Bearer {TOKEN}\r\n"
random.seed(7)


def connect(timeout=10.0):
    return socket.create_connection((HOST, PORT), timeout=timeout)


def raw(data, timeout=10.0, shut=True):
    """Sends bytes, gives all that comes back; empty where the connection just ends."""
    with connect(timeout) as s:
        try:
            s.sendall(data)
            if shut:
                s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        out = b""
        try:
            while chunk := s.recv(65536):
                out += chunk
                if len(out) > 1 << 20:
                    break
        except OSError:
            pass
        return out


def status(answer):
    return int(answer[9:12]) if answer[:5] == b"HTTP/" and answer[9:12].isdigit() else 0


def request(method, path, headers="", body=b"", auth=AUTH):
    if isinstance(path, str):
        path = path.encode()
    head = method.encode() + b" " + path + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + (auth + headers).encode()
    return raw(head + b"\r\n" + body, shut=False)


def sized(method, path, body, headers="", auth=AUTH):
    return request(method, path, headers + f"content-length: {len(body)}\r\n", body, auth)


def memory():
    with open(f"/proc/{PID}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) >> 10


class Honest(threading.Thread):
    """Somebody with work to do."""

    def __init__(self):
        super().__init__(daemon=True)
        self.over, self.times, self.failed, self.rss = threading.Event(), [], [], 0

    def run(self):
        while not self.over.is_set():
            begun = time.monotonic()
            try:
                answer = status(request("GET", "/v1/config"))
            except OSError as error:
                answer = repr(error)
            self.times.append(time.monotonic() - begun)
            if answer != 200:
                self.failed.append(answer)
            self.rss = max(self.rss, memory())
            time.sleep(0.05)


def expect(answers, allowed):
    wrong = [(what, found) for what, found in answers if found not in allowed]
    return not wrong, f"{len(answers)} tried" + (f", not expected: {wrong[:4]}" if wrong else "")


def slowloris():
    """Heads that never end, a byte at a time, and connections that say nothing."""
    slow, trickling, open_ones = [], {}, 300
    for n in range(open_ones):
        s = connect()
        if n % 2:
            s.sendall(b"GET /v1/config HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
        trickling[s] = n % 2
        slow.append(s)
    begun, closed = time.monotonic(), 0
    while slow and time.monotonic() - begun < SECONDS - 6:
        for s in list(slow):
            s.settimeout(0.0)
            try:
                if trickling.get(s) and random.random() < 0.5:
                    s.send(b"x")
                if s.recv(1024) == b"":
                    raise ConnectionError
            except BlockingIOError:
                continue
            except OSError:
                s.close()
                slow.remove(s)
                closed += 1
        time.sleep(0.5)
    for s in slow:
        s.close()
    return closed == open_ones, f"{closed} of {open_ones} closed by the service after at most {time.monotonic() - begun:.0f} s"


def slow_bodies():
    """Bodies that stand still, and one that trickles."""

    def one(trickles):
        s = connect(SECONDS)
        s.sendall(f"POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\n{AUTH}content-length: 1000000\r\n\r\n".encode())
        begun = time.monotonic()
        s.settimeout(1.0)
        while time.monotonic() - begun < SECONDS:
            try:
                if trickles:
                    s.sendall(b"x")
                if (answer := s.recv(4096)) is not None:
                    return status(answer), time.monotonic() - begun
            except TimeoutError:
                continue
            except OSError:
                return 0, time.monotonic() - begun
        return -1, time.monotonic() - begun

    with ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(one, [False] * 15 + [True]))
    ok = all(found == 408 for found, _ in ends)
    return ok, f"{len(ends)} ended with {sorted({found for found, _ in ends})} within {max(t for _, t in ends):.0f} s"


def header_bombs():
    many = "".join(f"x-{n}: 1\r\n" for n in range(10_000))
    bombs = [
        ("10,000 headers", request("GET", "/v1/config", many)),
        ("100 headers", request("GET", "/v1/config", "".join(f"x-{n}: 1\r\n" for n in range(100)))),
        ("1 MiB of one", request("GET", "/v1/config", f"x: {'a' * (1 << 20)}\r\n")),
        ("40 KiB of one", request("GET", "/v1/config", f"x: {'a' * (40 << 10)}\r\n")),
        ("a path of 1 MiB", request("GET", "/" + "a" * (1 << 20))),
        ("a path of 20 KiB", request("GET", "/" + "a" * (20 << 10))),
        ("a credential of 30 KiB", request("GET", "/v1/config", "", auth=f"authorization: Bearer {'a' * 30000}\r\n")),
        ("a name of 1 MiB", request("GET", "/v1/config", f"{'a' * (1 << 20)}: x\r\n")),
        ("two hosts", request("GET", "/v1/config", "host: y\r\n" * 70)),
    ]
    return expect([(what, status(a)) for what, a in bombs], (0, 400, 401, 414, 431))


def body_bombs():
    deep = b"[" * 3_000_000
    bomb = zlib.compress(b"0" * (64 << 20))
    token_path = f"/v1/lookup?model_id={HEX}&namespace=n"
    chunked = b"".join(b"10000\r\n" + b" " * 65536 + b"\r\n" for _ in range(400)) + b"0\r\n\r\n"
    bombs = [
        ("10 TB announced", request("PUT", CHUNK, "content-length: 10000000000000\r\n")),
        ("26 MB of spaces in chunks", request("POST", "/v1/lookup", "transfer-encoding: chunked\r\n", chunked)),
        ("3 M brackets", sized("POST", "/v1/models", deep)),
        ("64 MiB deflated", sized("POST", "/v1/lookup", bomb, "content-encoding: deflate\r\n")),
        ("100 K block hashes", sized("POST", token_path, b"\0" * (32 * 100_000), "content-type: application/vnd.kvasir.blocks\r\n")),
        ("2 M tokens", sized("POST", token_path, b"\0" * (8 << 20), "content-type: application/vnd.kvasir.tokens\r\n")),
        ("a string of 15 MB", sized("POST", "/v1/namespaces", b'{"namespace":"' + b"a" * 15_000_000 + b'"}')),
        ("numbers of 1 MB", sized("POST", "/v1/loads", b'{"slo_ms":' + b"9" * 1_000_000 + b"}")),
        ("1 M keys", sized("POST", "/v1/loads", b"{" + b",".join(b'"k%d":1' % n for n in range(1_000_000)) + b"}")),
        ("chunk sizes of 1 MB", request("POST", "/v1/lookup", "transfer-encoding: chunked\r\n", b"0" * (1 << 20) + b"1\r\nx\r\n0\r\n\r\n")),
        ("chunk extensions", request("POST", "/v1/lookup", "transfer-encoding: chunked\r\n", b"1;" + b"e" * (1 << 20) + b"\r\nx\r\n0\r\n\r\n")),
    ]
    return expect([(what, status(a)) for what, a in bombs], (0, 400, 404, 408, 411, 413, 415, 422))


def ranges():
    forms = ["bytes=-", "bytes=", "bytes=a-b", "bytes=5-1", "bytes=0-0,1-1", "bytes=-0", "bytes=99999999999999999999-", "chars=0-1",
             "bytes=0-18446744073709551615", "bytes=18446744073709551615-18446744073709551616", "bytes=--1", "bytes=0-1-2", "bytes= 0 - 1",
             "bytes=" + ",".join(f"{n}-{n}" for n in range(2000)), "\x7f", "bytes=0x0-0x1"]
    return expect([(form[:30], status(request("GET", CHUNK, f"range: {form}\r\n"))) for form in forms], (400, 404, 416))


def paths():
    tricks = ["/v1/models/../../etc/passwd", "/v1/models/%2e%2e/%2e%2e/x", "/v1/models/..%2f..%2f", "//v1/config", "/v1//config", "/v1/config/",
              "/v1/config/.", "/v1/config%00", "/v1/models/%00", "/v1/models/%ff%fe%fd", "/v1/models/" + "%" * 64, "/v1/models/" + "é" * 32,
              f"/v1/models/{'A' * 64}", f"/v1/models/{HEX}%0d%0aset-cookie:x", f"{MODEL}/chunks/../../../t/other/m", "/v1/../metrics/../v1/admin/jobs",
              f"{MODEL};x=1", f"{CHUNK}/{HEX}/url/..", "/docs/../../../etc/passwd", "/docs/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "http://other/v1/config%",
              "*", "/v1/contexts?labels=" + "a" * 7000, "/v1/contexts?limit=-1", "/v1/contexts?limit=99999999999999999999", "/v1/contexts?after=%00",
              "/v1/events?after=" + "x" * 5000 + "&types=nothing", f"{CHUNK}?level=99999", f"{CHUNK}?tokens=-1", f"{CHUNK}?sections=,,,", "/?" + "&" * 5000]
    found = [(path[:40], status(request("GET", path))) for path in tricks]
    return expect(found, (0, 308, 400, 403, 404, 405, 414))


def smuggling():
    inner = b"GET /v1/admin/jobs HTTP/1.1\r\nhost: localhost\r\n\r\n"
    heads = [b"content-length: 3\r\ntransfer-encoding: chunked\r\n", b"content-length: 3\r\ncontent-length: 4\r\n", b"transfer-encoding: xchunked\r\n",
             b"transfer-encoding: chunked, identity\r\n", b"content-length: +3\r\n", b"content-length: 0x3\r\n", b"content-length: -1\r\n",
             b"content-length : 3\r\n", b" folded: x\r\n", b"x: a\r\n b\r\n", b"x\r\n", b"x: \0\r\n", b"x: a\nb\r\n", b"content-length: 18446744073709551616\r\n"]
    found = []
    for head in heads:
        answer = raw(b"POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\n" + AUTH.encode() + head + b"\r\n0\r\n\r\n" + inner)
        found.append((head[:40], 200 if b"HTTP/1.1 2" in answer else status(answer)))
    return expect(found, (0, 400, 401, 411, 413, 431, 501))


def noise():
    """Random bytes, cut requests, HTTP/2 prefaces with random frames, TLS hellos."""
    found = []
    for n in range(150):
        size = random.randrange(1, 3000)
        data = random.randbytes(size)
        if n % 3 == 1:
            data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(
                random.randrange(2000).to_bytes(3, "big") + bytes([random.randrange(12), random.randrange(256)]) + random.randbytes(4 + random.randrange(60))
                for _ in range(20))
        elif n % 3 == 2:
            whole = f"PUT {CHUNK} HTTP/1.1\r\nhost: localhost\r\n{AUTH}content-length: 50\r\n\r\n".encode() + b"x" * 50
            data = whole[: random.randrange(len(whole))]
        answer = raw(data, timeout=5.0)
        found.append((data[:20], 200 if b"HTTP/1.1 2" in answer else min(status(answer), 599)))
    return expect(found, (0, 400, 401, 404, 408, 422, 431, 505))


def guesses():
    """Credentials, by the hundred, from one address."""

    def guess(n):
        kinds = [f"kv_{random.randbytes(32).hex()}", TOKEN[:-1] + "g", TOKEN.upper(), "", forged(n), hashlib.sha256(TOKEN.encode()).hexdigest()]
        return status(request("GET", "/v1/config", auth=f"authorization: Bearer {kinds[n % len(kinds)]}\r\n"))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(guess, range(600)))
    good = status(request("GET", "/v1/config"))
    ok = set(answers) <= {401, 429} and answers.count(429) > 400 and good == 200
    return ok, f"600 refused, {answers.count(401)} of them looked at; the good one still gets {good}"


def probing():
    """Another tenant's ids, known to the last digit, must answer as ids that nobody has, and its data stay as they are."""
    base = STORE / "2/t/default"
    names = lambda pattern: sorted(path.relative_to(base).parts for path in base.glob(pattern))
    (_, model, *_), *_ = names("m/*/spec.json")
    (_, _, _, profile), *_ = names("m/*/p/*.kvp")
    removed = {place[3:] for place in names("m/*/d/*/*")}
    offered = [place for place in names("m/*/c/*/*.kvc") if (place[3], place[4].split(".")[0]) not in removed]
    (_, _, _, chunk, digest), *others = offered
    (_, context, _), *_ = names("x/*/*.json")
    profile, digest = profile.split(".")[0], digest.split(".")[0]
    spec, body = (base / "m" / model / "spec.json").read_bytes(), (base / "m" / model / "c" / chunk / f"{digest}.kvc").read_bytes()

    def all_of(model, profile, chunk, digest, context):
        """What a tenant could ask about these ids."""
        chunks, json_of = f"/v1/models/{model}/chunks/{chunk}", lambda **fields: json.dumps(fields).encode()
        ask = {"model_id": model, "namespace": "default"}
        return [
            ("GET", f"/v1/models/{model}", b""), ("GET", f"/v1/models/{model}/profiles", b""), ("GET", f"/v1/models/{model}/profiles/{profile}", b""),
            ("GET", chunks, b""), ("HEAD", chunks, b""), ("GET", f"{chunks}/{digest}", b""), ("HEAD", f"{chunks}/{digest}", b""),
            ("GET", f"{chunks}/{digest}?level=0", b""), ("GET", f"{chunks}/{digest}?tokens=16", b""), ("GET", f"{chunks}/{digest}/url", b""),
            ("DELETE", f"{chunks}/{digest}", b""), ("DELETE", chunks, b""), ("PUT", chunks, body),
            ("POST", "/v1/lookup", json_of(**ask, chunk_ids=[chunk])), ("POST", "/v1/lookup", json_of(**ask, chunk_ids=[chunk], fresh=True, direct=True)),
            ("POST", "/v1/lookup", json_of(**ask, block_hashes=[chunk])), ("POST", "/v1/namespaces", json_of(**ask)),
            ("POST", "/v1/uploads", json_of(model_id=model, seq_hash=chunk, object_digest=digest, bytes=len(body), sha256=HEX)),
            ("POST", "/v1/contexts", json_of(**ask, chunks=[{"seq_hash": chunk, "object_digest": digest}])),
            ("GET", f"/v1/contexts/{context}", b""), ("GET", f"/v1/contexts/{context}?version=1", b""), ("GET", f"/v1/contexts/{context}/versions", b""),
            ("PATCH", f"/v1/contexts/{context}", b'{"ttl_s":1}'), ("DELETE", f"/v1/contexts/{context}", b""),
        ]

    def answer(method, path, body, token):
        found = sized(method, path, body, auth=f"authorization: Bearer {token}\r\n")
        head, _, text = found.partition(b"\r\n\r\n")
        # Details name the id that was asked for, and each answer the request.
        try:
            text = json.dumps({name: value for name, value in json.loads(text).items() if name not in ("detail", "request_id", "instance")})
        except (ValueError, AttributeError):
            text = hashlib.sha256(text).hexdigest()
        return status(found), text

    changed = lambda id: id[:-1] + ("0" if id[-1] != "0" else "1")
    real, nobody = (model, profile, chunk, digest, context), tuple(map(changed, (model, profile, chunk, digest, context)))
    reads = [request for request in all_of(*real) if request[0] in ("GET", "HEAD") and not request[1].endswith("/url")]
    before = [answer(*request, VICTIM) for request in reads]
    owned = [found for found, _ in before]
    told = [(theirs[0], theirs[1][:60], ours[0], ours[1][:60], request[:2]) for request, theirs, ours in
            ((request, answer(*request, TOKEN), answer(*other, TOKEN)) for request, other in zip(all_of(*real), all_of(*nobody))) if theirs != ours or theirs[0] == 200 and request[0] != "POST"]
    listed = answer("GET", "/v1/contexts", b"", TOKEN), answer("GET", "/v1/usage", b"", TOKEN)
    # The same model, registered by the intruder as its own, makes nobody's chunks appear in it.
    registered, _ = answer("POST", "/v1/models", spec, TOKEN)
    told += [(found, text[:80], request[:2]) for request in all_of(*real)[3:] for found, text in [answer(*request, TOKEN)]
             if request[0] in ("GET", "HEAD", "DELETE") and found != 404 or chunk in text]
    roots = {answer("POST", "/v1/namespaces", json.dumps({"model_id": model, "namespace": "default"}).encode(), token) for token in (VICTIM, TOKEN)}
    after = [answer(*request, VICTIM) for request in reads]
    leaks = context in listed[0][1] or '"objects": 0' not in listed[1][1]
    ok = not told and not leaks and before == after and set(owned) == {200} and registered == 201 and len(roots) == 2
    return ok, f"{len(real) and len(all_of(*real))} requests with another tenant's ids: {len(told)} told it from ids that nobody has {told[:3]}; {owned.count(200)} of its own {len(reads)} reads are answered, " + (
        "the same afterwards" if before == after else "OTHERS afterwards") + (f"; {listed}" if leaks else "")


def forged(n):
    """A web token that says of itself what it is."""
    part = lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
    algorithm = ["none", "HS256", "RS256", "nOnE"][n % 4]
    claims = {"tenant": "a", "role": "operator", "iss": "x", "aud": "kvasir", "exp": 2**40}
    return f"{part({'alg': algorithm, 'kid': '../../dev/null'})}.{part(claims)}.{'' if algorithm == 'none' else 'AAAA'}"


def main():
    honest = Honest()
    honest.start()
    before = memory()
    failed = 0

    def report(name, ok, text):
        nonlocal failed
        failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name:14} {text}", flush=True)

    with ThreadPoolExecutor(2) as pool:
        # The slow ones wait beside the quick ones, which come one after the other.
        slow = {attack: pool.submit(attack) for attack in (slowloris, slow_bodies)}
        for attack in (header_bombs, body_bombs, ranges, paths, probing, smuggling, noise, guesses):
            report(attack.__name__, *attack())
        for attack, running in slow.items():
            report(attack.__name__, *running.result())
    honest.over.set()
    honest.join()
    times = sorted(honest.times)
    slowest = times[-1]
    report("honest", not honest.failed and slowest < 5.0,
           f"{len(times)} requests, {len(honest.failed)} failed {honest.failed[:3]}, slowest {slowest * 1000:.0f} ms")
    report("memory", honest.rss < before + 400, f"{before} MiB before, {honest.rss} MiB at most")
    sys.exit(1 if failed else 0)


main()
