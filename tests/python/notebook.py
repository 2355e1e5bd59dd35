"""Runs a notebook, and writes it with its outputs: `notebook.py FROM TO`. It stops at the first cell that fails."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

# A notebook is read in a browser, and kept in git.
BYTES_MAX = 300_000

source, target = map(Path, sys.argv[1:])
notebook = nbformat.read(source, as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False).execute()
# What differs from machine to machine and says nothing.
notebook.metadata["language_info"] = {"name": "python"}
text = nbformat.writes(notebook) + "\n"
target.write_text(text)
plots = sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
print(f"{target}: {len(notebook.cells)} cells, {plots} plots, {len(text) / 1000:.0f} kB")
if len(text) > BYTES_MAX:
    sys.exit(f"{target} is larger than {BYTES_MAX / 1000:.0f} kB")
