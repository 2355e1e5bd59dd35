"""FORMAT.md §7: from pieces to rows."""

import struct
from operator import mul

from container import Bad, check
from entropy import decode_piece
from profiles import f32


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
            for layer, plane, head, size, gain, *_ in scope["members"]:
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
    for layer, plane, head, size, *_ in scope["members"]:
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
    for layer, plane, head, dim, *_ in scope["members"]:
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
