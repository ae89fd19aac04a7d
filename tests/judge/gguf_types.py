"""The bytes of a matrix in GGUF's types, those of the K kinds and IQ4 included, which gguf can expand but not make.

Used by tests/fixtures/make_quantized_sample_fixtures.py and tests/fixtures/pack.py; host/fixtures does the same for the tests. Needs
numpy 2.4.6 and gguf 0.19.0.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

# The length of a block of the K types and of IQ4_XS.
BLOCK = 256

# K types, which gguf can expand but not make. Scales are by the largest values alone.


def divided(values, by):
    return np.divide(values, by, out=np.zeros_like(values), where=by != 0)


def half(values):
    """Values as f16 holds them, and the bytes of that."""
    stored = values.astype(np.float16)
    return stored.astype(np.float32), stored.view(np.uint8).reshape(len(values), 2)


def levels(values, least, most):
    return np.clip(np.rint(values), least, most).astype(np.int32)


def with_minimum(values, group, bits, scale_bits):
    """x = d·s·q − m·t in groups: bytes of d and of m, s, t, and q."""
    values = values.reshape(len(values), -1, group)
    low = np.maximum(-values.min(-1), 0)
    step = (np.maximum(values.max(-1), 0) + low) / np.float32(2 ** bits - 1)
    most = np.float32(2 ** scale_bits - 1)
    d, d_bytes = half(step.max(-1, keepdims=True) / most)
    m, m_bytes = half(low.max(-1, keepdims=True) / most)
    s, t = (levels(divided(of, np.broadcast_to(by, of.shape)), 0, most)
            for of, by in ((step, d), (low, m)))
    scale = np.broadcast_to((d * s)[..., None], values.shape)
    q = levels(divided(values + (m * t)[..., None], scale), 0, 2 ** bits - 1)
    return d_bytes, m_bytes, s, t, q.reshape(len(values), -1)


def signed_scales(values, group, reach, least, most):
    """d and s in groups, so that each group's largest value is d·s·reach: bytes of d, s, d·s."""
    values = values.reshape(len(values), -1, group)
    at = np.abs(values).argmax(-1)[..., None]
    step = np.take_along_axis(values, at, -1)[..., 0] / np.float32(reach)
    d, d_bytes = half(np.abs(step).max(-1, keepdims=True) / np.float32(most))
    s = levels(divided(step, np.broadcast_to(d, step.shape)), least, most)
    return d_bytes, s, np.broadcast_to((d * s)[..., None], values.shape), values


def centred(values, group, bits, least, most):
    """x = d·s·q in groups, where q reaches further down than up: bytes of d, s, and q."""
    reach = -2 ** (bits - 1)
    d_bytes, s, scale, values = signed_scales(values, group, reach, least, most)
    return d_bytes, s, levels(divided(values, scale), reach, -reach - 1).reshape(len(s), -1)


def by_table(values, group, least, most):
    """x = d·s·table[q] in groups: bytes of d, s, and q."""
    table = np.array(gguf.quants.IQ4_NL.kvalues, dtype=np.float32)
    d_bytes, s, scale, values = signed_scales(values, group, table[0], least, most)
    q = np.abs(divided(values, scale)[..., None] - table).argmin(-1)
    return d_bytes, s, q.reshape(len(s), -1)


def packed(parts, shifts):
    """Bytes of parts [.., number, n], each shifted left by its bits."""
    shifts = np.array(shifts).reshape(-1, 1)
    return np.bitwise_or.reduce(parts << shifts, axis=-2).reshape(len(parts), -1).astype(np.uint8)


def low_bits(q, bits, run):
    """Runs of `run` values beside each other in the bits of as many bytes."""
    per = 8 // bits
    return packed((q & (2 ** bits - 1)).reshape(len(q), -1, per, run), range(0, 8, bits))


def pairs_of_six(s, t):
    """Eight scales and eight minima of six bits in twelve bytes."""
    ends = [of[:, :4] | of[:, 4:] >> 4 << 6 for of in (s, t)]
    return np.concatenate([*ends, s[:, 4:] & 15 | (t[:, 4:] & 15) << 4], axis=1).astype(np.uint8)


def q2_k(values):
    d, m, s, t, q = with_minimum(values, 16, 2, 4)
    return [(s | t << 4).astype(np.uint8), low_bits(q, 2, 32), d, m]


def q3_k(values):
    d, s, q = centred(values, 16, 3, -32, 31)
    s, q = s + 32, q + 4
    high = packed((q >> 2).reshape(len(q), 8, 32), range(8))
    scales = [packed((s & 15).reshape(-1, 2, 8), (0, 4)),
              packed((s >> 4).reshape(-1, 4, 4), (0, 2, 4, 6))]
    return [high, low_bits(q, 2, 32), *scales, d]


def q4_k(values):
    d, m, s, t, q = with_minimum(values, 32, 4, 6)
    return [d, m, pairs_of_six(s, t), low_bits(q, 4, 32)]


def q5_k(values):
    d, m, s, t, q = with_minimum(values, 32, 5, 6)
    high = packed((q >> 4).reshape(len(q), 8, 32), range(8))
    return [d, m, pairs_of_six(s, t), high, low_bits(q, 4, 32)]


def q6_k(values):
    d, s, q = centred(values, 16, 6, -128, 127)
    q = q + 32
    return [low_bits(q, 4, 64), low_bits(q >> 4, 2, 32), s.astype(np.int8).view(np.uint8), d]


def iq4_nl(values):
    d, s, q = by_table(values, 32, 1, 1)
    assert (s == 1).all()
    return [d, low_bits(q, 4, 16)]


def iq4_xs(values):
    d, s, q = by_table(values, 32, -32, 31)
    s = s + 32
    high = (s >> 4 << np.arange(0, 16, 2)).sum(-1).astype("<u2").view(np.uint8).reshape(-1, 2)
    return [d, high, packed((s & 15).reshape(-1, 4, 2).swapaxes(1, 2), (0, 4)), low_bits(q, 4, 16)]


BLOCKS = {Type.Q2_K: q2_k, Type.Q3_K: q3_k, Type.Q4_K: q4_k, Type.Q5_K: q5_k, Type.Q6_K: q6_k,
          Type.IQ4_NL: iq4_nl, Type.IQ4_XS: iq4_xs}


def in_type(values, kind):
    """A matrix' bytes in a type, by rows."""
    if kind not in BLOCKS:
        return gguf.quants.quantize(values, kind)
    length, size = gguf.GGML_QUANT_SIZES[kind]
    assert values.shape[-1] % length == 0, (values.shape, kind)
    blocks = np.concatenate(BLOCKS[kind](values.reshape(-1, length)), axis=1)
    assert blocks.dtype == np.uint8 and blocks.shape[1] == size, (kind, blocks.shape)
    return blocks.reshape(*values.shape[:-1], -1)
