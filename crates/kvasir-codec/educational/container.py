"""FORMAT.md §1 and §3: checksums, header, directory, extensions, tokens."""

import shutil
import struct
import subprocess


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
    # Bit 1 is an opaque object (§3.9): it holds no cache, and there is nothing to decode.
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


def check_measured(data, level_count):
    """§3.4, kind 1: it decodes to nothing."""
    check(len(data) >= 4, "measured", len(data))
    _beneath, _hops, levels, reserved = data[:4]
    check(level_count - 1 <= levels <= level_count, "measured.levels", levels)
    check(reserved == 0, "measured.reserved", reserved)
    planes = (len(data) - 4) // max(levels, 1)
    check(planes * levels == len(data) - 4 and (planes > 0) == (levels > 0), "measured.errors", len(data) - 4)


def parse_extensions(data, at, end, level_count):
    """§3.4: (kind, data) of each."""
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
    for kind, measured in found:
        if kind == 1:
            check_measured(measured, level_count)
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
    h["extension_list"] = parse_extensions(data, h["extensions_at"], h["tokens_at"], h["levels"])
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
