"""Builds a wheel with the command `kvasir` in it: cargo builds that, then maturin does the rest.

maturin packs an extension or a binary, not both; what lies in its data folder goes into every wheel.
"""

import os
import shutil
import subprocess
from pathlib import Path

from maturin import *  # noqa: F403
from maturin import build_wheel as _build_wheel

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
SCRIPTS = HERE / "kvasir_kv.data" / "scripts"
# maturin wants the folder for the metadata, too.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the command, and the wheel around it."""
    # Without the feature `demo`: the wheel ships no model.
    command = ["cargo", "build", "--profile", "dist", "--locked", "-p", "kvasir-cli", "--no-default-features"]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    shutil.copy2(target / "dist" / "kvasir", SCRIPTS)
    return _build_wheel(wheel_directory, config_settings, metadata_directory)
