"""NumPy arrays in and out of safetensors, where NumPy is there
(https://github.com/huggingface/safetensors, "Format")."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from .errors import TilewrightError, one_line

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

#: Types by their names in files, little-endian.
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}

#: Kinds of NumPy's types that are real numbers; V are those of other packages, as bfloat16.
REAL = "biufV"

#: The largest header that is read.
LONGEST_HEADER = 100_000_000


def is_array(value: Any) -> bool:
    """True for what has NumPy's interface to its values, such as an array or a tensor of PyTorch on the CPU."""
    return hasattr(value, "__array__")


def to_safetensors(name: str, value: Any) -> bytes:
    """A file with one tensor, in f32, or f16 if the values are.

    Raises:
        TypeError: the values are no real numbers, or none that NumPy has, or beyond what a mask or picture is.
    """
    import numpy

    try:
        array: NDArray[Any] = numpy.asarray(value)
        if array.dtype.kind not in REAL:
            raise TypeError(f"real numbers were expected, not {array.dtype}")
        # A picture of bytes would be taken for one of huge values.
        if name == "sample" and array.dtype.kind in "biu":
            raise TypeError(f"a picture in −1…1 was expected, not {array.dtype}: of 0…255 it is x / 127.5 - 1")
        array = numpy.ascontiguousarray(array, dtype="<f2" if array.dtype == numpy.float16 else "<f4")
        if name == "mask" and array.size and not (0 <= array.min() and array.max() <= 1):
            raise ValueError(f"values in 0…1 were expected, not {array.min()}…{array.max()}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(one_line(f"{'image' if name == 'sample' else name}: {error}")) from None
    dtype = "F16" if array.dtype == numpy.float16 else "F32"
    header = json.dumps({name: {"dtype": dtype, "shape": array.shape, "data_offsets": [0, array.nbytes]}}).encode()
    header += b" " * (-len(header) % 8)
    # The values are copied once, however many they are.
    values: Any = array
    return b"".join((len(header).to_bytes(8, "little"), header, values.reshape(-1).view(numpy.uint8).data))


def from_safetensors(data: bytes | bytearray, names: tuple[str, ...]) -> NDArray[numpy.float32]:
    """The tensor of a file that has one of some names. Values in f32 stay where they are, in `data`.

    Raises:
        TilewrightError: it is no such file, or has no tensor of these names.
    """
    import numpy

    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(LONGEST_HEADER, len(data) - 8):
        raise TilewrightError("the result is no safetensors file: ask for format='safetensors' or 'latent'")
    try:
        header: dict[str, Any] = json.loads(data[8 : 8 + length])
        name = next((name for name in names if name in header), None)
        if name is None:
            raise TilewrightError(f"the result has no tensor named {' or '.join(names)}")
        facts = header[name]
        dtype = DTYPES.get(facts["dtype"])
        if dtype is None:
            raise TilewrightError(f"the result's tensor {name} is in {facts['dtype']}, which NumPy does not have")
        shape: tuple[int, ...] = tuple(facts["shape"])
        first, end = facts["data_offsets"]
        if min(first, *shape) < 0 or end - first != math.prod(shape) * numpy.dtype(dtype).itemsize:
            raise ValueError(f"{end - first} bytes are no {facts['dtype']} of {list(shape)}")
        # What lies beyond the end is refused.
        values: Any = numpy.frombuffer(data, dtype=dtype, count=math.prod(shape), offset=8 + length + first)
        return values.reshape(shape).astype(numpy.float32, copy=False)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, AttributeError) as error:
        raise TilewrightError(f"the result is a damaged safetensors file: {error}") from None
