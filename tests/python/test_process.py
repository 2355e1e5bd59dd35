"""Threads, forks, signals, and the command."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import kvasir
from toy_model import make_kv, make_tokens, same


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


FORK = """
import os, sys
import kvasir
store = kvasir.connect(sys.argv[1])
profile_bytes = open(sys.argv[2], "rb").read()
child = os.fork()
if child == 0:
    for use in (store.usage, lambda: kvasir.connect(sys.argv[1]), lambda: kvasir.Profile(profile_bytes)):
        try:
            use()
        except kvasir.ForkError as error:
            print(error.code, "spawn" in error.remedy, flush=True)
    del store
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(store.usage()["objects"] >= 0)
"""


def test_use_after_a_fork_is_refused(server, profile, tmp_path):
    profile.save(tmp_path / "profile.kvp")
    assert run(FORK, server.url, str(tmp_path / "profile.kvp")).split() == ["forked", "True"] * 3 + ["True"]


def test_an_import_before_a_fork_is_fine(server):
    child = "print(kvasir.connect(sys.argv[1]).usage()['objects'] >= 0)"
    code = f"import os, sys, kvasir\nif os.fork() == 0:\n    {child}\nelse:\n    os.wait()"
    assert run(code, server.url).strip() == "True"


def test_threads_share_everything(model, spec):
    def one(seed):
        tokens, kv = make_tokens(300, seed=100 + seed), make_kv(spec, 300, seed=100 + seed)
        model.session(tokens).save(kv)
        loaded = model.session(tokens).load(level=3)
        return loaded.loaded_tokens == 300 and same(loaded.kv, kv, 300)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(24)))


def test_threads_share_a_session(model, spec):
    tokens, kv = make_tokens(300, seed=99), make_kv(spec, 300, seed=99)
    model.session(tokens).save(kv)
    session = model.session(tokens)

    def one(_):
        loaded = session.load(level=3)
        return loaded.loaded_tokens == 300 and same(loaded.kv, kv, 300)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(24)))


def test_the_gil_is_released_while_others_wait(server):
    """A call that waits for its answer does not stop other threads."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        def wait():
            with pytest.raises(kvasir.UnavailableError):
                kvasir.connect(url)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        connection, _ = silent.accept()
        for _ in range(20):
            assert kvasir.connect(server.url).usage()["objects"] >= 0
        assert waiting.is_alive()
        connection.close()
        silent.close()
        waiting.join(20)
        assert not waiting.is_alive()


def test_signals_end_a_call():
    class Enough(Exception):
        pass

    def stop(number, frame):
        raise Enough

    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        started = time.monotonic()
        try:
            with pytest.raises(Enough):
                kvasir.connect(f"http://127.0.0.1:{silent.getsockname()[1]}")
        finally:
            signal.signal(signal.SIGALRM, before)
        assert time.monotonic() - started < 5


SESSIONS = """
import sys
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, sys.argv[2])
import kvasir
from toy_model import make_profile, make_spec

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

spec = make_spec()
model = kvasir.connect(sys.argv[1], namespace="many").model(spec, make_profile(spec))
tokens = list(range(64))

def some(count):
    for _ in range(count):
        session = model.session(tokens)
        session.load()
        del session

with ThreadPoolExecutor(8) as pool:
    list(pool.map(some, [125] * 8))
    before = resident()
    list(pool.map(some, [int(sys.argv[3]) // 8] * 8))
    print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sessions_in_threads_leak_nothing(server):
    # 10,000 sessions may leave less than 400 bytes each, the allocator's own growth included.
    assert int(run(SESSIONS, server.url, os.path.dirname(__file__), "10000")) < 4_000_000


def test_the_package_is_the_command():
    ours = subprocess.run([sys.executable, "-m", "kvasir", "--version"], check=True, capture_output=True, text=True)
    assert ours.stdout.strip() == f"kvasir {kvasir.__version__}"
    wrong = subprocess.run([sys.executable, "-m", "kvasir", "object", "inspect", "/dev/null"], check=False)
    assert wrong.returncode == 65
