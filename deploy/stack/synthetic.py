"""A KV dump larger than the shipped model's, for features that only large chunks use, such as multipart uploads."""

import array
import json
import random
import struct
from pathlib import Path

HEADS, HEAD_DIM = 8, 64


def header(dump: Path) -> dict:
    """The header of a safetensors file."""
    with dump.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(length))


def spec_of(dump: Path) -> dict:
    """The model of a dump."""
    return json.loads(header(dump)["__metadata__"]["model_spec"])


def write(spec: dict, dump: Path, layers: int, tokens: int, heads: int = HEADS, seed: int = 0) -> None:
    """Random halves of size 1 to 2 for a model like `spec`, with other layers and heads; equal arguments give equal files."""
    spec = {**spec, "weights": "synthetic", "layers": [{"layout": {"kind": "gqa", "kv_heads": heads, "head_dim": HEAD_DIM}, "rope": 0}] * layers}
    chance, at, bodies = random.Random(layers * tokens + seed), 0, []
    head = {"__metadata__": {"model_spec": json.dumps(spec)}}
    for name in [f"{plane}.{layer}" for plane in "kv" for layer in range(layers)]:
        size = heads * tokens * HEAD_DIM * 2
        head[name] = {"dtype": "F16", "shape": [heads, tokens, HEAD_DIM], "data_offsets": [at, at + size]}
        words = array.array("H", chance.randbytes(size))
        bodies.append(array.array("H", (0x3C00 | (word & 0x83FF) for word in words)).tobytes())
        at += size
    head["tokens"] = {"dtype": "I32", "shape": [tokens], "data_offsets": [at, at + 4 * tokens]}
    bodies.append(struct.pack(f"<{tokens}i", *[chance.randrange(4000) for _ in range(tokens)]))
    text = json.dumps(head).encode()
    dump.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(bodies))
