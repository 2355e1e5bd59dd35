"""Child processes that end with their parent, and helpers to wait until a process responds."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path


class StackError(Exception):
    """Something did not come up or did not do what it should; the text says which log to read."""


def free_port() -> int:
    """A port at loopback that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(more: dict | None) -> dict:
    """This process's environment with `more`, and nothing in it that would configure a service."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("KVASIR_", "AWS_"))} | (more or {})


class Process:
    """A process in a group of its own, its output in a file."""

    def __init__(self, name: str, command: list, folder: Path, env: dict | None = None):
        self.name, self.command, self.env = name, [str(part) for part in command], env or {}
        self.log = folder / f"{name}.log"
        self.child = None

    def start(self) -> "Process":
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                          env=environment(self.env), start_new_session=True)
        return self

    def runs(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def end(self, how: int = signal.SIGTERM, patience: float = 40.0) -> None:
        """Signals the group, and kills it where it does not end."""
        if not self.runs():
            return
        os.killpg(self.child.pid, how)
        try:
            self.child.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def wait_for(self, url: str, patience: float = 60.0) -> float:
        """Waits until `url` answers 200; returns how long that took, in seconds."""
        began = time.monotonic()
        while time.monotonic() - began < patience:
            if self.child is not None and not self.runs():
                break
            if get(url, quiet=True) is not None:
                return time.monotonic() - began
            time.sleep(0.1)
        raise StackError(f"{self.name} does not answer at {url}; its last words in {self.log}:\n{tail(self.log)}")


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


def get(url: str, quiet: bool = False) -> bytes | None:
    """The body of an answer 200; with `quiet`, None for anything else."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError) as error:
        if quiet:
            return None
        raise StackError(f"{url}: {error}") from error


def delete(url: str) -> bool:
    """Whether there was something to delete."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=30).close()
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise StackError(f"{url}: {error}") from error
        return False
    return True


def run(command: list, env: dict | None = None, expect: int | None = 0, patience: float = 300.0) -> subprocess.CompletedProcess:
    """Runs a command to its end; another exit status than `expect` is an error with what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=patience,
                          env=environment(env), check=False)
    if expect is not None and done.returncode != expect:
        said = (done.stdout[-1500:] + done.stderr[-3000:]).strip()
        raise StackError(f"{' '.join(map(str, command[:4]))} … ended with {done.returncode}:\n{said}")
    return done
