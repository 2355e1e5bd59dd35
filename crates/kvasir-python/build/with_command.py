"""Builds a wheel with the command `kvasir` in it: cargo builds that, then maturin does the rest.

maturin packs an extension or a binary, not both; what lies in its data folder goes into every wheel.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from maturin import *  # noqa: F403
from maturin import build_wheel as _build_wheel
from maturin import get_maturin_pep517_args

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
SCRIPTS = HERE / "kvasir_kv.data" / "scripts"
# maturin wants the folder for the metadata, too.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def cargo(arguments):
    """Give cargo's subcommand, its flags, and the folder of results: the command runs where the extension does.

    `--zig --compatibility manylinux_2_28` links against that version of the C library by `cargo zigbuild`, as maturin does.
    """
    if "--zig" not in arguments:
        return "build", [], "."
    glibc = re.search(r"manylinux_(\d+)_(\d+)", " ".join(arguments))
    host = re.search(r"^host: (\S+)", subprocess.check_output(["rustc", "-vV"], text=True), re.M)[1]
    version = f".{glibc[1]}.{glibc[2]}" if glibc else ""
    return "zigbuild", ["--target", host + version], host


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the command, and the wheel around it."""
    subcommand, flags, folder = cargo(get_maturin_pep517_args(config_settings))
    # Without the feature `demo`: the wheel ships no model.
    command = ["cargo", subcommand, "--profile", "dist", "--locked", "-p", "kvasir-cli", "--no-default-features", *flags]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    shutil.copy2(target / folder / "dist" / "kvasir", SCRIPTS)
    return _build_wheel(wheel_directory, config_settings, metadata_directory)
