"""KV dumps for the console's tests: dumps.py FOLDER writes a long context and short ones for later, and tokens.json with their ids."""

import json
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy/stack"))

from synthetic import write  # noqa: E402

folder = Path(sys.argv[1])
spec = json.loads((ROOT / "tests/golden-buckets/2/plain/expected.json").read_text())["spec"]
tokens = {}
for name, count, seed in [("long", 2048, 11), *((f"late-{i}", 256, 12 + i) for i in range(5))]:
    dump = folder / f"{name}.safetensors"
    write(spec, dump, layers=1, tokens=count, heads=2, seed=seed)
    tokens[name] = list(struct.unpack(f"<{count}i", dump.read_bytes()[-4 * count:]))
(folder / "tokens.json").write_text(json.dumps(tokens))
