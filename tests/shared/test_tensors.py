"""Tensors: bytes to arrays and back without a copy, and clear words about bytes that do not fit."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared import tensors
from shared.errors import BadRequest

NUMERIC = sorted(tensors.DTYPES)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def numeric(draw: st.DrawFn) -> tuple[str, Any]:
    """A datatype and an array of it, of any shape, the empty and the scalar included."""
    datatype = draw(st.sampled_from(NUMERIC))
    return datatype, draw(hnp.arrays(tensors.DTYPES[datatype], draw(shapes)))


@st.composite
def byte_arrays(draw: st.DrawFn) -> Any:
    """An array of byte strings."""
    shape = draw(shapes)
    elements = draw(st.lists(st.binary(max_size=20), min_size=math.prod(shape), max_size=math.prod(shape)))
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


@given(numeric())
def test_numbers_come_back_bit_for_bit(example: tuple[str, Any]) -> None:
    """Every datatype, every shape, every bit pattern: not-a-number and negative zero included."""
    datatype, array = example
    raw = tensors.to_bytes(array, datatype)
    assert len(raw) == tensors.byte_size(datatype, array.shape)
    back = tensors.from_bytes(raw, datatype, array.shape, name="x")
    assert (back.dtype, back.shape) == (tensors.DTYPES[datatype], array.shape)
    assert back.tobytes() == array.tobytes()


@given(byte_arrays())
def test_byte_strings_come_back_as_they_were(array: Any) -> None:
    """Empty ones and those with zeros in them too."""
    raw = tensors.to_bytes(array, "BYTES")
    back = tensors.from_bytes(raw, "BYTES", array.shape, name="x")
    assert back.shape == array.shape
    assert back.tolist() == array.tolist()


@given(numeric())
def test_decoded_numbers_are_a_view_of_the_bytes(example: tuple[str, Any]) -> None:
    """No copy: the array shares the message's memory, and cannot be written to."""
    datatype, array = example
    raw = array.tobytes()
    back = tensors.from_bytes(raw, datatype, array.shape, name="x")
    if array.size:
        assert np.shares_memory(back, np.frombuffer(raw, np.uint8))
    assert not back.flags.writeable


@pytest.mark.parametrize("datatype", NUMERIC)
def test_encoding_copies_only_when_it_must(datatype: str) -> None:
    """A contiguous little-endian array is sent from where it lies; others are put in order first."""
    array = np.arange(24).astype(tensors.DTYPES[datatype]).reshape(4, 6)
    assert np.shares_memory(np.frombuffer(tensors.to_bytes(array, datatype), np.uint8), array)
    for other in (array.T, array[:, ::2], array[::-1], array.astype(array.dtype.newbyteorder(">"))):
        raw = tensors.to_bytes(other, datatype)
        assert not np.shares_memory(np.frombuffer(raw, np.uint8), array)
        back = tensors.from_bytes(raw, datatype, other.shape, name="x")
        assert back.tolist() == other.tolist()


def test_bytes_are_little_endian_on_the_wire() -> None:
    """As the Open Inference Protocol says, whatever machine we are on."""
    assert bytes(tensors.to_bytes(np.array([1, 258], ">i4"), "INT32")) == b"\x01\0\0\0\x02\x01\0\0"
    assert bytes(tensors.to_bytes(np.array([1.0], "f4"), "FP32")) == b"\0\0\x80\x3f"
    assert tensors.encode_bytes_elements([b"ab", b""]) == b"\x02\0\0\0ab\0\0\0\0"


@given(numeric(), st.integers(-9, 9).filter(bool))
def test_bytes_of_another_length_are_refused_by_name(example: tuple[str, Any], off: int) -> None:
    """The message says which tensor, what its shape takes and what came."""
    datatype, array = example
    raw = array.tobytes()
    wrong = raw + b"\0" * off if off > 0 else raw[:off]
    if len(wrong) == len(raw):
        return  # there was nothing to cut off
    with pytest.raises(BadRequest) as raised:
        tensors.from_bytes(wrong, datatype, array.shape, name="tokens")
    for part in ("'tokens'", datatype, f"{len(raw)} bytes", f"{len(wrong)} came"):
        assert part in raised.value.message


@given(byte_arrays(), st.data())
def test_byte_strings_that_end_too_early_or_too_late_are_refused(array: Any, data: st.DataObject) -> None:
    """Cut anywhere, or with anything behind: nothing is guessed."""
    raw = bytes(tensors.to_bytes(array, "BYTES"))
    cut = raw[: data.draw(st.integers(0, max(0, len(raw) - 1)))]
    for wrong in (cut, raw + b"\0"):
        if wrong != raw:
            with pytest.raises(BadRequest, match="'x'"):
                tensors.from_bytes(wrong, "BYTES", array.shape, name="x")


@given(
    st.binary(max_size=64),
    st.sampled_from(sorted(tensors.DATATYPES)),
    st.lists(st.integers(-3, 5), max_size=4),
)
def test_any_bytes_and_any_shape_are_an_array_or_a_bad_request(raw: bytes, datatype: str, shape: list[int]) -> None:
    """No other error comes out, also of a shape with a negative size: two of those once reached numpy."""
    try:
        array = tensors.from_bytes(raw, datatype, shape, name="x")
    except BadRequest as e:
        assert "'x'" in e.message
    else:
        assert list(array.shape) == shape


def test_a_huge_shape_is_refused_before_memory_is_taken() -> None:
    """A few bytes cannot make the receiver allocate a terabyte."""
    for datatype in sorted(tensors.DATATYPES):
        with pytest.raises(BadRequest, match="unexpected size"):
            tensors.from_bytes(b"\0" * 16, datatype, [1 << 40], name="x")


def test_byte_strings_have_no_fixed_size() -> None:
    """Asking for it is a defect of the caller."""
    with pytest.raises(ValueError, match="no fixed size"):
        tensors.byte_size("BYTES", [1])
    assert tensors.byte_size("FP16", [2, 3]) == 12
