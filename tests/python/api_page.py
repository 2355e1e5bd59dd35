"""Writes `crates/kvasir-python/API.md` from the docstrings; with `--check` it fails if the page is not up to date."""

import ast
import re
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "crates" / "kvasir-python"
PAGE = PACKAGE / "API.md"
# Files in the order of the page, and what their names begin with. Those of `kvasir` hold what `__init__.py` exports.
FILES = [
    ("_store.py", "kvasir"),
    ("_model.py", "kvasir"),
    ("_session.py", "kvasir"),
    ("_reports.py", "kvasir"),
    ("_spec.py", "kvasir"),
    ("_codec.py", "kvasir"),
    ("errors.py", "kvasir"),
    ("testing.py", "kvasir.testing"),
    ("transformers.py", "kvasir.transformers"),
]
HEAD = """# The Python package, name by name

The guide is the [README](README.md). `kvasir.aio` has the same names for `asyncio`.

`python tests/python/api_page.py` writes this page from the docstrings; `tests/python/run` checks that it is current,
and runs the examples. They use `spec`, `profile`, `tokens` and `kv` of a small model, and `store` and `model` in a
service (`tests/python/toy_model.py`).
"""


def exported(tree: ast.Module) -> list[str]:
    """The names in `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^(self|cls)(, )?", "", arguments)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({arguments}){returns}"


def text_of(docstring: str) -> str:
    """Sections in numpy's style as Markdown."""
    docstring = docstring.replace("``", "`")
    parts = re.split(r"^([A-Z][a-z]+)\n-+\n", docstring, flags=re.M)
    lines = [parts[0].strip()]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title == "Examples":
            lines.append(f"```python\n{body.strip()}\n```")
        else:
            entries = re.split(r"\n(?=\S)", body.strip())
            lines.append(f"**{title}**\n\n" + "\n".join(entry_of(entry) for entry in entries))
    return "\n\n".join(lines)


def entry_of(entry: str) -> str:
    head, *rest = entry.split("\n")
    name, _, kind = head.partition(" : ")
    what = " ".join(line.strip() for line in rest)
    line = f"- `{name}`" + (f", {kind}" if kind else "") + (f": {what}" if what else "")
    return textwrap.fill(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def is_property(node: ast.AST) -> bool:
    return any(ast.unparse(decorator) == "property" for decorator in getattr(node, "decorator_list", []))


def entries(node: ast.AST, name: str, level: str) -> list[str]:
    """A function, or a class with its methods."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    doc = ast.get_docstring(node) or ""
    if isinstance(node, functions):
        if is_property(node):
            return [f"{level} `{name}: {ast.unparse(node.returns)}`", text_of(doc)]
        word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
        return [f"{level} `{word}{name}{signature(node)}`", text_of(doc)]
    found = [f"{level} `class {name}`", text_of(doc)]
    short = name.rsplit(".", maxsplit=1)[-1]
    for member in node.body:
        if isinstance(member, functions) and not member.name.startswith("_") and ast.get_docstring(member):
            found += entries(member, f"{short}.{member.name}", level + "#")
    return found


def page() -> str:
    folder = PACKAGE / "python" / "kvasir"
    names = set(exported(ast.parse((folder / "__init__.py").read_text())))
    parts, seen = [HEAD.strip()], ""
    for file, prefix in FILES:
        tree = ast.parse((folder / file).read_text())
        wanted = names if prefix == "kvasir" else set(exported(tree))
        if prefix != seen:
            doc = ast.get_docstring(tree) if prefix != "kvasir" else ""
            parts += [f"## {prefix}"] + ([text_of(doc)] if doc else [])
            seen = prefix
        for node in tree.body:
            if getattr(node, "name", None) in wanted:
                parts += entries(node, f"{prefix}.{node.name}", "###")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        sys.exit(f"{PAGE.name} is not what the docstrings say: run python {sys.argv[0]}")
