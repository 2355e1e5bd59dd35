#!/usr/bin/env python3
"""An educational decoder of chunk objects, written from FORMAT.md alone and from no other code.

    python3 crates/kvasir-codec/educational/decoder.py            check every golden file
    python3 crates/kvasir-codec/educational/decoder.py FILE.kvc   print what a chunk object holds

It is slow and plain on purpose: where it and the text differ, one of them has an erratum. Standard library only; the
tokens of a chunk need a zstd (the `zstandard` module, Python 3.14's `compression.zstd`, or the `zstd` command).
"""

import pathlib
import shutil
import struct
import subprocess
import sys
from operator import mul

M, L, LANES, ESC = 4096, 1 << 15, 32, 15


class Bad(Exception):
    """Bytes that the format forbids; `name` is the error of FORMAT.md §3.8 and of the golden files."""

    def __init__(self, name, text=""):
        super().__init__(f"{name}: {text}")
        self.name = name


def crc32c(data, table=[]):
    """§1: Castagnoli, reflected, initial value and final xor 0xFFFFFFFF."""
    if not table:
        for n in range(256):
            for _ in range(8):
                n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
            table.append(n)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# ---- §3 container -----------------------------------------------------------------------------------------------------


def unzstd(data, size):
    """Exactly `size` bytes, or Bad; None where no zstd is at hand."""
    try:
        try:
            from compression import zstd  # Python 3.14

            out = zstd.decompress(data)
        except ImportError:
            import zstandard

            out = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except ImportError:
        if not shutil.which("zstd"):
            return None
        run = subprocess.run(["zstd", "-dc"], input=data, capture_output=True)
        if run.returncode:
            raise Bad("Tokens", "no zstd frame")
        out = run.stdout
    except Exception as error:  # each library has its own class
        raise Bad("Tokens", str(error)) from error
    if len(out) != size:
        raise Bad("Tokens", f"{len(out)} bytes, not {size}")
    return out


def check(ok, field, actual):
    if not ok:
        raise Bad("Field", f"{field} is {actual}")


def parse_header(data):
    """§3.1."""
    if len(data) < 256:
        raise Bad("Truncated", "header")
    if data[:4] != b"KVSC":
        raise Bad("Magic")
    if data[4] != 1 or data[5] < 1:
        raise Bad("Version", f"{data[4]}.{data[5]}")
    if crc32c(data[:252]) != struct.unpack_from("<I", data, 252)[0]:
        raise Bad("Checksum", "header")
    h = dict(model_id=data[16:48], profile_hash=data[48:80], parent_hash=data[80:112], seq_hash=data[112:144])
    h["chain_key"] = data[192:224]
    h["sections"], h["flags"], h["tokens"] = struct.unpack_from("<HII", data, 6)
    h["first"], h["preceding"], kl_bits, h["spans"], h["levels"], h["exact"] = struct.unpack_from("<QIIHBB", data, 144)
    h["tokens_bytes"], h["directory_crc"], h["tokens_crc"], h["object_bytes"], h["extension_bytes"], reserved = struct.unpack_from(
        "<IIIQII", data, 164
    )
    h["kl"] = struct.unpack("<f", struct.pack("<I", kl_bits))[0]
    check(h["flags"] & 1 or h["preceding"] == 0, "preceding_token", h["preceding"])
    check(reserved == 0 and not any(data[224:252]), "reserved", reserved)
    check(h["flags"] & 0xFFFE == 0, "flags", h["flags"])
    check(1 <= h["tokens"] <= 16384, "token_count", h["tokens"])
    check(h["sections"] <= 16384, "section_count", h["sections"])
    check(h["first"] + h["tokens"] < 1 << 64, "first_position", h["first"])
    check(kl_bits >> 31 == 0 and kl_bits >> 23 & 255 != 255, "kl_beneath", h["kl"])
    check(h["spans"] == -(-h["tokens"] // 256), "span_count", h["spans"])
    check(1 <= h["levels"] <= 8, "level_count", h["levels"])
    check(h["exact"] <= min(16, h["tokens"]), "exact_tokens", h["exact"])
    check(h["tokens_bytes"] <= 4 * h["tokens"] + 1024, "tokens_bytes", h["tokens_bytes"])
    h["blocks"] = -(-h["tokens"] // 16)
    check(h["extension_bytes"] <= 65536, "extension_bytes", h["extension_bytes"])
    h["directory_at"] = 256 + 8 * h["blocks"]
    h["extensions_at"] = h["directory_at"] + h["sections"] * (6 + 8 * h["spans"])
    h["tokens_at"] = h["extensions_at"] + h["extension_bytes"]
    h["head"] = h["tokens_at"] + h["tokens_bytes"]
    check(h["head"] <= h["object_bytes"] <= 5 << 30, "object_bytes", h["object_bytes"])
    return h


def parse_directory(data, h):
    """§3.3: sections, and (offset, bytes, crc) of each (section, span)."""
    at, sections, pieces, level, seen = h["directory_at"], [], [], 0, set()
    for _ in range(h["sections"]):
        scope, band, lvl, flags, reserved = struct.unpack_from("<HBBBB", data, at)
        check(reserved == 0, "section.reserved", reserved)
        sections.append((scope, band, lvl, flags))
        at += 6
    for scope, band, lvl, _ in sections:
        if not level <= lvl < h["levels"] or (scope, band, lvl) in seen:
            raise Bad("SectionOrder")
        level = lvl
        seen.add((scope, band, lvl))
    offset = h["head"]
    for _ in range(h["sections"] * h["spans"]):
        size, crc = struct.unpack_from("<II", data, at)
        check(size <= 1 << 26, "piece.bytes", size)
        check(size or crc == 0, "piece.crc32c", crc)
        pieces.append((offset, size, crc))
        offset += size
        at += 8
    check(offset == h["object_bytes"], "object_bytes", h["object_bytes"])
    return sections, pieces


def parse_extensions(data, at, end):
    """§3.4: (kind, data) of each; no kind is known."""
    found = []
    while at < end:
        check(end - at >= 8, "extension", end - at)
        kind, flags, reserved, size = struct.unpack_from("<HBBI", data, at)
        check(not found or found[-1][0] < kind, "extension.kind", kind)
        check(flags & 0xFE == 0, "extension.flags", flags)
        check(reserved == 0, "extension.reserved", reserved)
        check(size <= end - at - 8, "extension.bytes", size)
        if flags & 1:
            raise Bad("Extension", str(kind))
        found.append((kind, data[at + 8 : at + 8 + size]))
        at += 8 + size
    return found


def parse_object(data):
    """§3: verifies a whole object in the order of §3.8."""
    h = parse_header(data)
    if len(data) < h["tokens_at"]:
        raise Bad("Truncated", "directory")
    if crc32c(data[256 : h["tokens_at"]]) != h["directory_crc"]:
        raise Bad("Checksum", "directory")
    if len(data) < h["head"]:
        raise Bad("Truncated", "tokens")
    packed = data[h["tokens_at"] : h["head"]]
    if crc32c(packed) != h["tokens_crc"]:
        raise Bad("Checksum", "tokens")
    h["section_list"], h["piece_list"] = parse_directory(data, h)
    h["extension_list"] = parse_extensions(data, h["extensions_at"], h["tokens_at"])
    n = h["tokens"]
    planes = unzstd(packed, 4 * n)
    h["token_list"] = planes and [sum(planes[p * n + i] << 8 * p for p in range(4)) for i in range(n)]
    for offset, size, crc in h["piece_list"]:
        if offset + size > len(data):
            raise Bad("Truncated", "piece")
        if size and crc32c(data[offset : offset + size]) != crc:
            raise Bad("Checksum", "piece")
    if len(data) > h["object_bytes"]:
        raise Bad("Trailing")
    return h


# ---- §5 entropy stage -------------------------------------------------------------------------------------------------


def parse_stage_table(data):
    """§5.2: slot -> (symbol, frequency, offset), refused unless it is a bijection."""
    words = struct.unpack("<32I", data)
    slots, frequency, seen = [], {}, set()
    for bucket in range(16):
        a, b = words[2 * bucket], words[2 * bucket + 1]
        div = a >> 12
        if div > 256 or (div == 0 and a) or (div == 256 and b) or b & 0xF0000:
            raise Bad("Reserved")
    for s in range(M):
        bucket, r = s >> 8, s & 255
        a, b = words[2 * bucket], words[2 * bucket + 1]
        if r < a >> 12:
            symbol, f, offset = bucket, (a & 4095) + 1, r
        else:
            symbol, f, offset = b >> 12 & 15, (b & 4095) + 1, r + (b >> 20)
        if frequency.setdefault(symbol, f) != f or offset >= f or (symbol, offset) in seen:
            raise Bad("Bijection")
        seen.add((symbol, offset))
        slots.append((symbol, f, offset))
    if sum(frequency.values()) != M:
        raise Bad("Sum")
    return slots


def parse_trit_table(data):
    """§5.3."""
    a0, b0, a1, b1 = struct.unpack("<4H", data)
    if not (a0 <= b0 <= M and a1 <= b1 <= M):
        raise Bad("Thresholds")
    return ((a0, b0), (a1, b1))


def parse_bank(data):
    """§5.4."""
    if len(data) < 4:
        raise Bad("Length")
    stages, trits = struct.unpack_from("<HH", data)
    if stages > 128 or trits > 256:
        raise Bad("Count")
    if len(data) < 4 + 128 * stages + 8 * trits:
        raise Bad("Length")
    at = 4 + 128 * stages
    return (
        [parse_stage_table(data[4 + 128 * i : 132 + 128 * i]) for i in range(stages)],
        [parse_trit_table(data[at + 8 * i : at + 8 + 8 * i]) for i in range(trits)],
    )


class Stream:
    """§5.5: the coders of one stream."""

    def __init__(self, states, words):
        self.x, self.words, self.at = states, words, 0

    def refill(self, lanes):
        for lane in lanes:
            if self.x[lane] < L:
                if self.at == len(self.words):
                    raise Bad("Underrun")
                self.x[lane] = self.x[lane] << 16 | self.words[self.at]
                self.at += 1

    def stage(self, table, lanes):
        symbols = {}
        for lane in lanes:
            symbols[lane], f, offset = table[self.x[lane] % M]
            self.x[lane] = f * (self.x[lane] // M) + offset
        self.refill(lanes)
        values = {lane: symbol - 7 for lane, symbol in symbols.items()}
        escaped = [lane for lane in lanes if symbols[lane] == ESC]
        if escaped:
            v = self.bypass(escaped)
            long = [lane for lane in escaped if v[lane] >= 254]
            lo = self.bypass(long)
            hi = self.bypass(long)
            for lane in escaped:
                magnitude = 127 + lo[lane] + 256 * hi[lane] if lane in lo else v[lane] // 2
                values[lane] = -magnitude if v[lane] % 2 else magnitude
        return values

    def bypass(self, lanes):
        taken = {}
        for lane in lanes:
            taken[lane] = self.x[lane] % 256
            self.x[lane] //= 256
        self.refill(lanes)
        return taken

    def trit(self, table, lanes, values):
        for lane in lanes:
            q = values[lane]
            a, b = table[1 if q else 0]
            s = self.x[lane] % M
            digit, start, f = (-1, 0, a) if s < a else (0, a, b - a) if s < b else (1, b, M - b)
            self.x[lane] = f * (self.x[lane] // M) + s - start
            values[lane] = 3 * q + (-digit if q < 0 else digit)
        self.refill(lanes)


def decode_piece(bank, codings, tokens, data, before):
    """§5.6: values[coefficient][token]; `before` holds the values that trit coefficients refine."""
    stages, trits = bank
    for coding in codings:
        if coding[0] == "stage":
            _, table, count, trit_table = coding
            known = table < len(stages) and count <= 7 and (count == 0 or trit_table < len(trits))
        else:
            known = coding[1] < len(trits)
        if not known:
            raise Bad("Coding")
    values = [[0] * tokens if c[0] == "stage" else list(row) for c, row in zip(codings, before)]
    active, raw = 0, False
    if data:
        if len(data) < 2:
            raise Bad("Length")
        field = struct.unpack_from("<H", data)[0]
        active, raw = field & 0x7FFF, field >> 15 == 1
        if not 1 <= active <= len(codings):
            raise Bad("Active")
    for c in range(active, len(codings)):
        values[c] = [0 if codings[c][0] == "stage" else 3 * q for q in values[c]]
    if raw:
        decode_raw(codings[:active], tokens, data, values)
    elif active:
        decode_streams(bank, codings[:active], tokens, data, values)
    return values


def decode_streams(bank, codings, tokens, data, values):
    n, lanes_stored = len(codings), min(LANES, tokens)
    count = -(-n // 128)
    states_at = -(-(2 + 2 * count) // 4) * 4
    words_at = states_at + 4 * count * lanes_stored
    if len(data) < states_at:
        raise Bad("Length")
    lengths = struct.unpack_from(f"<{count}H", data, 2)
    if len(data) != words_at + 2 * sum(lengths):
        raise Bad("Length")
    if any(data[2 + 2 * count : states_at]):
        raise Bad("Field", "fill")
    for i in range(count):
        states = list(struct.unpack_from(f"<{lanes_stored}I", data, states_at + 4 * i * lanes_stored))
        if any(not L <= x < 1 << 31 for x in states):
            raise Bad("State")
        stream = Stream(states, struct.unpack_from(f"<{lengths[i]}H", data, words_at))
        words_at += 2 * lengths[i]
        decode_stream(bank, codings, range(i * n // count, (i + 1) * n // count), tokens, stream, values)


def decode_stream(bank, codings, coefficients, tokens, stream, values):
    stages, trits = bank
    for row in range(0, tokens, LANES):
        lanes = range(min(LANES, tokens - row))
        for c in coefficients:
            kind, *numbers = codings[c]
            if kind == "stage":
                table, count, trit_table = numbers
                current = stream.stage(stages[table], lanes)
            else:
                trit_table, count = numbers[0], 1
                current = {lane: values[c][row + lane] for lane in lanes}
            for _ in range(count):
                stream.trit(trits[trit_table], lanes, current)
            for lane in lanes:
                values[c][row + lane] = current[lane]
    if stream.at != len(stream.words) or any(x != L for x in stream.x):
        raise Bad("FinalState")


def decode_raw(codings, tokens, data, values):
    n = len(codings)
    if len(data) < 2 + n:
        raise Bad("Length")
    widths = data[2 : 2 + n]
    for (kind, *_), width in zip(codings, widths):
        check(width <= (25 if kind == "stage" else 2), "width", width)
    if len(data) != 2 + n + -(-sum(widths) * tokens // 8):
        raise Bad("Length")
    bits = int.from_bytes(data[2 + n :], "little")
    for c, width in enumerate(widths):
        for t in range(tokens):
            code = bits & ((1 << width) - 1)
            bits >>= width
            number = code // 2 if code % 2 == 0 else -(code + 1) // 2
            if codings[c][0] == "stage":
                values[c][t] = number
            else:
                check(code <= 2, "digit", code)
                values[c][t] = 3 * values[c][t] + number
    check(bits == 0, "fill", bits)


# ---- §6 profile -------------------------------------------------------------------------------------------------------


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
    if magic != b"KVSRPROF" or version not in (2, 3):
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
    p["scopes"] = [parse_scope(r, p["levels"]) for _ in range(p["scope_count"])]
    if any((scope["exact"] > 0) != (version == 3) for scope in p["scopes"]):
        raise Bad("Invalid", "exact")
    if r.at != len(data) - 4:
        raise Bad("Length")
    return p


def take_codings(r, rank):
    codings = [r.take("bBBB8B") for _ in range(rank)]
    return [dict(entry=c[0], stage=c[1], inner=c[2], trits=c[4:]) for c in codings]


def parse_scope(r, levels):
    s = dict(zip(("unrope", "basis", "predictor", "exact"), r.take("4B")))
    members, rank = r.take("II")
    s["members"] = [r.take("HHIIf") for _ in range(members)]
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


# ---- §7 transforms ----------------------------------------------------------------------------------------------------

S = [f32(x) for x in (1.5707964, -0.6459641, 0.07969263, -0.004681754, 0.00016044118)]
C = [f32(x) for x in (1, -1.2337005, 0.2536695, -0.02086348, 0.00091926026)]


def polynomial(coefficients, u):
    value = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        value = f32(c + f32(u * value))
    return value


def sin_cos(position, freq):
    """§7.4."""
    p = (position * freq >> 32) & 0xFFFFFFFF
    k = (p + (1 << 29)) % (1 << 32) >> 30
    r = p - (k << 30)
    r = r - (1 << 32) if r >= 1 << 31 else r
    x = f32(f32(r) * 2.0**-30)
    u = f32(x * x)
    s, c = f32(x * polynomial(S, u)), polynomial(C, u)
    return ((s, c), (c, -s), (-s, -c), (-c, s))[k]


def rotate(row, position, rope):
    """Pairs of a head under a rope of half pairing."""
    pairs = len(rope["freqs"])
    for i, freq in enumerate(rope["freqs"]):
        sin, cos = sin_cos(position, freq)
        a, b = row[rope["offset"] + i], row[rope["offset"] + i + pairs]
        row[rope["offset"] + i] = f32(f32(f32(a * cos) - f32(b * sin)) * rope["factor"])
        row[rope["offset"] + i + pairs] = f32(f32(f32(b * cos) + f32(a * sin)) * rope["factor"])


def piece_of(h, data, key, span):
    """The bytes of a piece; none where it is absent, or its section."""
    sections = [s[:3] for s in h["section_list"]]
    if key not in sections:
        return b""
    index = sections.index(key)
    offset, size, _ = h["piece_list"][index * h["spans"] + span]
    return data[offset : offset + size]


def predictions(h, scope, span, tokens, anchors):
    """§7.2: [coefficient][token] in finest steps."""
    if scope["predictor"] == 1:
        group, ratio = scope["group"], scope["ratio"]
        return [[(row[t // group] + ratio // 2) // ratio for t in range(tokens)] for row in anchors]
    if scope["predictor"] == 0:
        return [[0] * tokens for _ in scope["coding"]]
    rows = []
    for t in range(256 * span, 256 * span + tokens):
        before = h["token_list"][t - 1] if t else (h["preceding"] if h["flags"] & 1 else None)
        factors = []
        for table, token in zip(scope["tables"], (h["token_list"][t], before)):
            known = token is not None and token < len(table)
            factors += table[token] if known else [0] * len(table[0])
        rows.append(factors)
    out = []
    for shift, weights in zip(scope["shift"], scope["weights"]):
        half = 1 << shift - 1 if shift else 0
        out.append([sum(f * w for f, w in zip(factors, weights)) + half >> shift for factors in rows])
    return out


def section(codings, level):
    """§6: which coefficients the section of a level codes, and how."""
    plan = []
    for c, coding in enumerate(codings):
        first = max(coding["entry"], 0)
        if coding["entry"] != 127 and first == level:
            plan.append((c, ("stage", coding["stage"], max(-coding["entry"], 0), coding["inner"])))
        elif coding["entry"] != 127 and first < level:
            plan.append((c, ("trit", coding["trits"][level])))
    return plan


def refine(bank, plan, tokens, piece, values):
    """§7.1: one level more, in place."""
    rows = decode_piece(bank, [coding for _, coding in plan], tokens, piece, [values[c] for c, _ in plan])
    for (c, _), row in zip(plan, rows):
        values[c] = row


def coefficients(h, data, profile, number, span, tokens, level, lossy):
    """§7.1 to §7.3: [coefficient][token]."""
    scope = profile["scopes"][number]
    is_anchor = [scope["predictor"] == 1 and t % scope["group"] == 0 for t in range(tokens)]
    main = [t for t in range(tokens) if not is_anchor[t]]
    values, anchors = [[0] * len(main) for _ in scope["coding"]], None
    for at in range(level + 1):
        refine(profile["bank"], section(scope["coding"], at), len(main), piece_of(h, data, (number, 0, at), span), values)
    if scope["predictor"] == 1:
        anchors = [[0] * sum(is_anchor) for _ in scope["coding"]]
        refine(profile["bank"], section(scope["anchors"], 0), sum(is_anchor), piece_of(h, data, (number, 1, 0), span), anchors)
    predicted = predictions(h, scope, span, tokens, anchors)
    up = 3 ** (lossy - 1 - level) if lossy else 1
    out = []
    for c, coding in enumerate(scope["coding"]):
        shift = 0
        if coding["entry"] <= level:
            shift = profile["shifts"][coding["stage"]][min(level - coding["entry"], 7)]
        inward = (shift * up + 128) >> 8
        row = [0.0] * tokens
        for t, q in zip(main, values[c]):
            row[t] = f32(up * q - ((q > 0) - (q < 0)) * inward + predicted[c][t])
        if anchors:
            for i, a in enumerate(anchors[c]):
                row[i * scope["group"]] = f32(f32(a) / f32(scope["ratio"]))
        out.append(row)
    return out


def decode_rows(h, data, profile, rope, level):
    """§7, of f16 caches: {(layer, plane, head): rows}. Sums of a basis are in double precision."""
    out = {}
    lossy = profile["levels"] - (1 if profile["scopes"][0]["exact"] else 0)
    for number, scope in enumerate(profile["scopes"]):
        for span in range(h["spans"]):
            tokens = min(256, h["tokens"] - 256 * span)
            elements = coefficients(h, data, profile, number, span, tokens, min(level, lossy - 1), lossy)
            if scope["basis"]:
                columns = list(zip(*scope["synthesis"]))
                sums = [[sum(map(mul, token, column)) for token in zip(*elements)] for column in columns]
                elements = [[f32(x) for x in row] for row in sums]
            start = 0
            for layer, plane, head, size, gain in scope["members"]:
                rows = out.setdefault((layer, plane, head), [])
                for t in range(tokens):
                    row = [f32(f32(elements[start + i][t] * gain) + scope["mean"][start + i]) for i in range(size)]
                    if scope["unrope"] and plane == 0:
                        rotate(row, h["first"] + 256 * span + t, rope)
                    rows.append(row)
                start += size
            known = exact_tokens(scope, span, piece_of(h, data, (number, 2, 0), span), out)
            if level == lossy and known < tokens:
                decode_exact(h, data, profile, number, span, (known, tokens), out)
    return out


def exact_tokens(scope, span, piece, out):
    """§7.5, in place: how many tokens of the span are as they were cached."""
    if not piece:
        return 0
    mode, zero, tokens = struct.unpack_from("<BBH", piece)
    check((mode, zero) == (0, 0), "mode", mode)
    values = iter(struct.unpack(f"<{(len(piece) - 4) // 2}e", piece[4:]))
    for layer, plane, head, size, _ in scope["members"]:
        for t in range(tokens):
            out[(layer, plane, head)][256 * span + t] = [next(values) for _ in range(size)]
    return tokens


def fields(pattern):
    """Biased exponent and mantissa of an f16."""
    return pattern >> 10 & 31, pattern & 1023


def cell_of(pattern, floor):
    """§7.7, for f16."""
    e, m = fields(pattern)
    if e < floor:
        cell = 0
    elif e <= floor + 10:
        cell = (1024 + m) >> (10 - e + floor)
    else:
        cell = 1024 * (1 + e - floor - 10) + m
    return -1 - cell if pattern >> 15 else cell


class Bits:
    """Fields, least significant bit first."""

    def __init__(self, data):
        self.value, self.left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, width):
        if width > self.left:
            raise Bad("Exact", "too few bits")
        field = self.value & (1 << width) - 1
        self.value >>= width
        self.left -= width
        return field


def pattern_of(cell, floor, raw):
    """The inverse of `cell_of`, with the raw bits."""
    sign, cell = (1, -1 - cell) if cell < 0 else (0, cell)
    if cell == 0:
        g = 0
        while g < min(floor - 1, 8) and raw.take(1) == 0:
            g += 1
        e = raw.take(5) if g == 8 else floor - 1 - g
        if floor == 0 or g == 8 and e > floor - 9:
            raise Bad("Exact")
        m = raw.take(10)
    elif cell < 2048:
        above = cell.bit_length() - 1
        e = floor + above
        m = cell - (1 << above) << 10 - above | raw.take(10 - above)
    else:
        e, m = floor + cell // 1024 - 1 + 10, cell % 1024
    if e > 31:
        raise Bad("Exact")
    return sign << 15 | e << 10 | m


def decode_exact(h, data, profile, number, span, known_and_tokens, out):
    """§7.7 for f16, in place; the first `known` tokens are known."""
    known, tokens = known_and_tokens
    scope = profile["scopes"][number]
    piece = piece_of(h, data, (number, 3, profile["levels"] - 1), span)
    size = struct.unpack_from("<I", piece)[0]
    if 4 + size > len(piece):
        raise Bad("Exact", "coded part")
    codings = [("stage", table, 0, 0) for table, _ in scope["exact_elements"]]
    cells = decode_piece(profile["bank"], codings, tokens, piece[4 : 4 + size], [None] * len(codings))
    raw = Bits(piece[4 + size :])
    start = 0
    for layer, plane, head, dim, _ in scope["members"]:
        rows = out[(layer, plane, head)]
        for i in range(dim):
            _, floor = scope["exact_elements"][start + i]
            for t in range(known, tokens):
                r = struct.unpack("<H", struct.pack("<e", rows[256 * span + t][i]))[0]
                bits = pattern_of(cells[start + i][t] + cell_of(r, floor), floor, raw)
                rows[256 * span + t][i] = struct.unpack("<e", struct.pack("<H", bits))[0]
        start += dim
    if raw.value or raw.left >= 8:
        raise Bad("Exact", "bits are left")


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
    for name in ("direct", "exact", "exact-only", "anchors"):
        profile = parse_profile((folder / f"{name}.kvp").read_bytes())
        data = (folder / f"{name}.kvc").read_bytes()
        h = parse_object(data)
        expected = (folder / f"{name}.rows.txt").read_text().split()
        for level in range(profile["levels"]):
            rows = decode_rows(h, data, profile, rope, level)
            flat = [x for key in sorted(rows) for row in rows[key] for x in row]
            yield folder / f"{name}.kvc", f"{crc32c(struct.pack(f'<{len(flat)}f', *flat)):08x}", expected[level]


# ---- §9 golden files --------------------------------------------------------------------------------------------------


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
