"""Packs a sentencepiece model by columns, which compress better than its protobuf, and unpacks it to the same bytes.

    python columns.py spiece.model spiece.columns.zst        needs zstandard 0.25

The columns, before zstd, numbers little-endian: the count of pieces and of kinds (u32 each); the texts, each ended by a byte 255, which UTF-8 does
not have; the scores, as the bits of each f32 less those of the one before, zigzag, lowest bytes first, then the second ones, and so on; piece (u32) and
kind (u8) of each that has one; the rest of the file as it stands.
"""

import struct
import sys
from pathlib import Path


def _varint(data, place):
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place


def pack(model):
    """The columns of a spiece.model of which each piece has a text and a score, and comes before all else."""
    texts, scores, kinds, place = [], [], [], 0
    while model[place:place + 1] == b"\x0a":
        length, start = _varint(model, place + 1)
        piece, place = model[start:start + length], start + length
        size, at = _varint(piece, 1)
        texts.append(piece[at:at + size])
        scores.append(struct.unpack_from("<I", piece, at + size + 1)[0])
        if at + size + 5 < length:
            kinds.append((len(texts) - 1, piece[at + size + 6]))
    steps = [(now - before + (1 << 31)) % (1 << 32) - (1 << 31) for before, now in zip([0, *scores], scores)]
    zigzag = [(step << 1 ^ step >> 31) & 0xFFFFFFFF for step in steps]
    return b"".join([
        struct.pack("<II", len(texts), len(kinds)), *(text + b"\xff" for text in texts),
        *(bytes(value >> 8 * plane & 255 for value in zigzag) for plane in range(4)),
        *(struct.pack("<IB", *one) for one in kinds), model[place:],
    ])


def unpack(columns):
    """The spiece.model that `pack` was given."""
    count, kinds = struct.unpack_from("<II", columns)
    *texts, columns = columns[8:].split(b"\xff", count)
    listed = 4 * count
    kind_of = dict(struct.unpack_from("<IB", columns, listed + 5 * index) for index in range(kinds))
    model, score = [], 0
    for index, text in enumerate(texts):
        zigzag = sum(columns[plane * count + index] << 8 * plane for plane in range(4))
        score = (score + (zigzag >> 1 ^ -(zigzag & 1))) & 0xFFFFFFFF
        piece = _field(b"\x0a", text) + b"\x15" + struct.pack("<I", score)
        if index in kind_of:
            piece += bytes([0x18, kind_of[index]])
        model.append(_field(b"\x0a", piece))
    return b"".join(model) + columns[listed + 5 * kinds:]


def _field(key, content):
    length, coded = len(content), b""
    while length > 127:
        coded, length = coded + bytes([length & 127 | 128]), length >> 7
    return key + coded + bytes([length]) + content


if __name__ == "__main__":
    import zstandard

    model = Path(sys.argv[1]).read_bytes()
    columns = pack(model)
    assert unpack(columns) == model, "this model can't be packed by columns"
    Path(sys.argv[2]).write_bytes(zstandard.ZstdCompressor(level=22).compress(columns))
