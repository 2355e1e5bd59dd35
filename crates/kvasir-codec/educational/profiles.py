"""FORMAT.md §6: profiles."""

import struct

from container import Bad, crc32c
from entropy import parse_bank


def f32(x):
    """The nearest f32, ties to even."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Fields:
    """A run of fields."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, layout):
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def one(self, layout):
        return self.take(layout)[0]

    def text(self):
        return self.take(f"{self.one('H')}s")[0].decode()

    def codes(self, count, bits):
        """One row of codes."""
        packed = int.from_bytes(self.take(f"{-(-count * bits // 8)}s")[0], "little")
        return [packed >> bits * i & (1 << bits) - 1 for i in range(count)]


def parse_profile(data):
    """§6, of a file that is known to be good."""
    r = Fields(data)
    magic, version = r.take("8sH")
    if magic != b"KVSRPROF" or version not in (2, 3, 4):
        raise Bad("Version")
    p = dict(zip(("levels", "exact_tokens", "scope_count", "bytes"), r.take("BBIQ")))
    if p["bytes"] != len(data) or crc32c(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise Bad("Checksum")
    r.take("32s")
    p["recipe"], _note = r.text(), r.text()
    r.take("QQ")
    r.take(f"{3 * p['levels']}f")
    stages, trits = struct.unpack_from("<HH", data, r.at)
    size = 4 + 128 * stages + 8 * trits
    p["bank"] = parse_bank(data[r.at : r.at + size])
    r.at += size
    p["shifts"] = [r.take("8B") for _ in range(stages)]
    p["scopes"] = [parse_scope(r, p["levels"], version) for _ in range(p["scope_count"])]
    if version < 4 and any((scope["exact"] > 0) != (version == 3) for scope in p["scopes"]):
        raise Bad("Invalid", "exact")
    if r.at != len(data) - 4:
        raise Bad("Length")
    return p


def take_codings(r, rank):
    codings = [r.take("bBBB8B") for _ in range(rank)]
    return [dict(entry=c[0], stage=c[1], inner=c[2], trits=c[4:]) for c in codings]


def parse_scope(r, levels, version):
    s = dict(zip(("unrope", "basis", "predictor", "exact"), r.take("4B")))
    members, rank = r.take("II")
    # Behind the gain, from version 4 on: the power that errors are compared with, which no decoder needs.
    s["members"] = [r.take("HHIIff" if version >= 4 else "HHIIf") for _ in range(members)]
    elements = sum(m[3] for m in s["members"])
    s["loss"] = r.take(f"{levels}f")
    s["mean"] = r.take(f"{elements}f")
    s["coding"] = take_codings(r, rank)
    if s["exact"]:
        s["exact_elements"] = [r.take("BB") for _ in range(elements)]
    if s["predictor"] == 1:
        s["group"], s["ratio"] = r.take("II")
        s["anchors"] = take_codings(r, rank)
    if s["predictor"] == 2:
        vocabulary, k1, k2, bits1, bits2 = r.take("IHHBB")
        s["tables"] = [
            [[c - (1 << b - 1) for c in r.codes(k, b)] for _ in range(vocabulary)] for k, b in ((k1, bits1), (k2, bits2))
        ]
        s["shift"], widths = r.take(f"{rank}B"), r.take(f"{rank}B")
        s["weights"] = [[c - (1 << b - 1) for c in r.codes(k1 + k2, b)] if b else [0] * (k1 + k2) for b in widths]
    if s["basis"] in (1, 2):
        s["synthesis"] = [r.take(f"{elements}e") for _ in range(rank)]
    elif s["basis"] in (3, 4):
        widths, units = r.take(f"{rank}B"), r.take(f"{rank}f")
        rows = [[f32((2 * c + 1 - (1 << b)) * u) for c in r.codes(elements, b)] for b, u in zip(widths, units)]
        s["synthesis"] = [struct.unpack(f"<{elements}e", struct.pack(f"<{elements}e", *row)) for row in rows]
    if s["basis"] in (2, 4):
        r.take(f"{rank * elements}e")
    return s
