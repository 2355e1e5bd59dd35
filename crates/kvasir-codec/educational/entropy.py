"""FORMAT.md §5: tables, streams, pieces."""

import struct

from container import Bad, check

M, L, LANES, ESC = 4096, 1 << 15, 32, 15


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
