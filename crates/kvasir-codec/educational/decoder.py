#!/usr/bin/env python3
"""An educational decoder of chunk objects, written from FORMAT.md alone and from no other code.

    python3 crates/kvasir-codec/educational/decoder.py            check every golden file
    python3 crates/kvasir-codec/educational/decoder.py FILE.kvc   print what a chunk object holds

It is slow and plain on purpose: where it and the text differ, one of them has an erratum. Standard library only; the
tokens of a chunk need a zstd (the `zstandard` module, Python 3.14's `compression.zstd`, or the `zstd` command).
"""

import pathlib
import struct
import sys

from container import Bad, crc32c, parse_object
from entropy import decode_piece, parse_bank
from profiles import parse_profile
from transforms import decode_rows


def check_profiles(folder):
    """Objects to the last bit of every row at every level; of bases, whose sums may be in any order, to 1e-4 of sums of rows."""
    kind, offset, factor, *freqs = (folder / "model.txt").read_text().split()
    rope = dict(offset=int(offset), factor=float(factor), freqs=list(map(int, freqs)))
    assert kind == "half"
    for name in ("basis", "packed"):
        profile = parse_profile((folder / f"{name}.kvp").read_bytes())
        data = (folder / f"{name}.kvc").read_bytes()
        h = parse_object(data)
        for level, line in enumerate((folder / f"{name}.sums.txt").read_text().splitlines()):
            rows = decode_rows(h, data, profile, rope, level)
            found = [sum(column) for key in sorted(rows) for column in zip(*rows[key])]
            found.append(sum(x * x for key in rows for row in rows[key] for x in row))
            expected = list(map(float, line.split()))
            close = all(abs(x - y) <= 1e-4 * (1 + abs(y)) for x, y in zip(found, expected, strict=True))
            yield folder / f"{name}.kvc", "close" if close else found, "close"
    profile = parse_profile((folder / "exact-only.kvp").read_bytes())
    for path in sorted(folder.glob("exact-*-*.kvc")):
        data = path.read_bytes()
        try:
            found = decode_rows(parse_object(data), data, profile, rope, 0) and "rows"
        except Bad as bad:
            found = bad.name
        yield path, found, "Exact"
    for name in ("direct", "exact", "exact-only", "anchors", "starter"):
        profile = parse_profile((folder / f"{name}.kvp").read_bytes())
        data = (folder / f"{name}.kvc").read_bytes()
        h = parse_object(data)
        expected = (folder / f"{name}.rows.txt").read_text().split()
        for level in range(profile["levels"]):
            rows = decode_rows(h, data, profile, rope, level)
            flat = [x for key in sorted(rows) for row in rows[key] for x in row]
            yield folder / f"{name}.kvc", f"{crc32c(struct.pack(f'<{len(flat)}f', *flat)):08x}", expected[level]




def read_piece_file(text):
    items = dict(codings=[])
    for line in text.splitlines():
        key, _, rest = line.partition(" ")
        if key == "coding":
            kind, *numbers = rest.split()
            items["codings"].append((kind, *map(int, numbers)))
        else:
            items[key] = rest
    return items


def check_piece_file(path):
    items = read_piece_file(path.read_text())
    tokens, codings = int(items["tokens"]), items["codings"]
    flat = list(map(int, items.get("before", "").split())) or [0] * tokens * len(codings)
    before = [flat[c * tokens : (c + 1) * tokens] for c in range(len(codings))]
    try:
        bank = parse_bank(bytes.fromhex(items["bank"]))
        rows = decode_piece(bank, codings, tokens, bytes.fromhex(items["piece"]), before)
    except Bad as bad:
        return bad.name, items.get("error")
    values = [v for row in rows for v in row]
    if "values_crc32c" in items:
        return f"{crc32c(struct.pack(f'<{len(values)}i', *values)):08x}", items["values_crc32c"]
    return values, list(map(int, items.get("values", "").split()))


def describe(h):
    """The line of `ok/index.txt`."""
    tokens = h["token_list"]
    crc = f"{crc32c(struct.pack(f'<{len(tokens)}I', *tokens)):08x}" if tokens else "unknown"
    spans = h["spans"]
    pieces = [f"{i // spans}.{i % spans}@{at}+{n}" for i, (at, n, _) in enumerate(h["piece_list"]) if n]
    sections = [".".join(map(str, s)) for s in h["section_list"]]
    extensions = [f"{kind}+{len(data)}" for kind, data in h["extension_list"]]
    return (
        f"link_crc32c={crc32c(h['chain_key'] + h['parent_hash']):08x} extensions={','.join(extensions)} "
        f"tokens={h['tokens']} tokens_crc32c={crc} preceding={h['preceding'] if h['flags'] & 1 else 'none'} "
        f"first={h['first']} exact={h['exact']} kl={h['kl']:g} head={h['head']} "
        f"sections={','.join(sections)} pieces={','.join(pieces)}"
    )


def check_object_file(path, expected):
    try:
        found = describe(parse_object(path.read_bytes()))
    except Bad as bad:
        found = bad.name
    if "tokens_crc32c=unknown" in found:
        print(f"{path.name}: no zstd at hand, tokens not checked")
        if expected == "Tokens":
            return expected, expected
        expected = " ".join("tokens_crc32c=unknown" if w.startswith("tokens_crc") else w for w in expected.split(" "))
    return found, expected


def check_golden(folder):
    results = []
    for path in sorted(folder.glob("*/*.piece")):
        results.append((path, *check_piece_file(path)))
    for verdict in ("ok", "err"):
        for line in (folder / verdict / "index.txt").read_text().splitlines():
            name, _, expected = line.partition(" ")
            path = folder / verdict / name
            results.append((path, *check_object_file(path, expected)))
    results += check_profiles(folder / "profile")
    wrong = [(path, found, expected) for path, found, expected in results if found != expected]
    for path, found, expected in wrong:
        print(f"{path}: found {str(found)[:200]}, expected {str(expected)[:200]}")
    print(f"{len(results) - len(wrong)} of {len(results)} golden files read as FORMAT.md says")
    return not wrong and bool(results)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(describe(parse_object(pathlib.Path(sys.argv[1]).read_bytes())))
    elif not check_golden(pathlib.Path(__file__).parent.parent / "tests" / "golden"):
        sys.exit(1)
