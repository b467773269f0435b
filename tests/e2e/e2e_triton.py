"""The inputs of the test models as Triton's clients, both of them, build them."""

import numpy as np
from tritonclient import http as triton


def mlp_input(x: np.ndarray, *, binary: bool = True) -> triton.InferInput:
    """The input of `mlp`."""
    tensor = triton.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=binary)
    return tensor


def pair_inputs(names: list[str], numbers: list[list[int]], *, binary: bool = True) -> list[triton.InferInput]:
    """The inputs of `pair`, the BYTES one first."""
    name = triton.InferInput("name", [len(names), 1], "BYTES")
    texts = [[text.encode() if binary else text] for text in names]
    name.set_data_from_numpy(np.array(texts, dtype=object), binary_data=binary)
    number = triton.InferInput("numbers", [len(numbers), 2], "INT32")
    number.set_data_from_numpy(np.array(numbers, dtype=np.int32), binary_data=binary)
    return [name, number]
