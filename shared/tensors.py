"""Tensors as raw little-endian bytes and back, without copying where the layout allows.

Datatypes are those of the Open Inference Protocol; sizes in bytes. BF16 has no numpy type, so it travels as uint16
bit patterns. BYTES elements are a 4-byte little-endian length and the bytes, concatenated.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadRequest

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
DATATYPES = frozenset(DTYPES) | {"BYTES"}

Array = NDArray[np.generic]


def byte_size(datatype: str, shape: Sequence[int]) -> int:
    """Bytes of a fixed-size tensor. BYTES has no fixed size: ValueError."""
    if datatype == "BYTES":
        raise ValueError("a BYTES tensor has no fixed size")
    return math.prod(shape) * DTYPES[datatype].itemsize


def from_bytes(data: memoryview | bytes, datatype: str, shape: Sequence[int], *, name: str) -> Array:
    """View `data` as an array of `shape`; numeric types share memory with `data` (read-only), BYTES become objects.

    Raises BadRequest, naming the tensor, when the bytes do not fit the shape.
    """
    if shape and min(shape) < 0:
        raise BadRequest(f"input '{name}': the shape {list(shape)} has a negative size; send what each axis really has")
    if datatype == "BYTES":
        return _bytes_elements(data, shape, name)
    dtype = DTYPES[datatype]
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise BadRequest(
            f"input '{name}': unexpected size for input: {datatype} {list(shape)} takes {expected} bytes, "
            f"{len(data)} came; send exactly the tensor's bytes, little-endian, in C order"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def to_bytes(array: Array, datatype: str) -> memoryview:
    """The raw bytes of `array`: a view when it is contiguous and little-endian already, else a copy."""
    if datatype == "BYTES":
        return memoryview(encode_bytes_elements(array.ravel().tolist()))
    contiguous = np.ascontiguousarray(array, dtype=DTYPES[datatype])
    # A memoryview refuses to cast what has no elements.
    return contiguous.data.cast("B") if contiguous.size else memoryview(b"")


def encode_bytes_elements(elements: Sequence[bytes]) -> bytes:
    """Concatenate length-prefixed elements."""
    parts: list[bytes] = []
    for element in elements:
        parts += (len(element).to_bytes(4, "little"), element)
    return b"".join(parts)


def _bytes_elements(data: memoryview | bytes, shape: Sequence[int], name: str) -> Array:
    view = memoryview(data)
    count = math.prod(shape)
    # Each element takes at least its length prefix: refuse before a huge shape makes us allocate.
    if count * 4 > len(view):
        raise BadRequest(
            f"input '{name}': unexpected size for input: BYTES {list(shape)} holds {count} elements of 4 bytes length "
            f"and content each, only {len(view)} bytes came"
        )
    array = np.empty(count, dtype=object)
    at = 0
    for i in range(count):
        if at + 4 > len(view):
            raise BadRequest(
                f"input '{name}': unexpected size for input: the bytes end inside the length of element {i}"
            )
        length = int.from_bytes(view[at : at + 4], "little")
        at += 4
        if at + length > len(view):
            raise BadRequest(
                f"input '{name}': unexpected size for input: element {i} announces {length} bytes, "
                f"{len(view) - at} are left"
            )
        array[i] = bytes(view[at : at + length])
        at += length
    if at != len(view):
        raise BadRequest(
            f"input '{name}': unexpected additional input data: {len(view) - at} bytes after element {count - 1}"
        )
    return array.reshape(shape)
