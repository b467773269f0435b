"""The Open Inference Protocol from the client's side: what a model takes, and requests in JSON or with binary tensors.

Pure: no I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import orjson

from bench.errors import CannotMeasure
from shared.tensors import DATATYPES, DTYPES, Array, encode_bytes_elements, to_bytes

JSON_HEADERS = {"Content-Type": "application/json"}


class TensorSpec(NamedTuple):
    """An input or output as the metadata declare it; -1 in `shape` is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model. `rows_max` is 0 for a model without a batch dimension, None when the server does not say."""

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    rows_max: int | None = None

    @property
    def path(self) -> str:
        """Where it is, from `/v2` on."""
        return model_path(self.name, self.version)

    @property
    def must_be_binary(self) -> bool:
        """True when JSON cannot carry one of its tensors."""
        return any(t.datatype == "BF16" for t in (*self.inputs, *self.outputs))

    def has_rows(self, tensor: TensorSpec) -> bool:
        """True when the first dimension of an input is the batch."""
        return self.rows_max != 0 and tensor.shape[:1] == (-1,)


class Tensor(NamedTuple):
    """An input with its elements in C order: numbers in an array, or bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: Array | list[bytes]


def model_path(name: str, version: str) -> str:
    """The path of a model, of its default version when `version` is empty."""
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def model_spec(name: str, version: str, metadata: Any, config: Any = None) -> ModelSpec:
    """Read the replies of `GET v2/models/M` and, where the server has it, of `.../config`. Raises CannotMeasure."""
    try:
        inputs, outputs = (tuple(map(_tensor_spec, metadata[part])) for part in ("inputs", "outputs"))
    except (TypeError, KeyError, ValueError) as e:
        raise CannotMeasure(
            f"the metadata of model '{name}' are not those of the Open Inference Protocol: {e!r}"
        ) from None
    for tensor in inputs:
        if tensor.datatype not in DATATYPES:
            raise CannotMeasure(
                f"input '{tensor.name}' of model '{name}' is {tensor.datatype}, which is no known datatype"
            )
    rows_max = config.get("max_batch_size") if isinstance(config, Mapping) else None
    return ModelSpec(name, version, inputs, outputs, rows_max if isinstance(rows_max, int) else None)


def _tensor_spec(entry: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(str(entry["name"]), str(entry["datatype"]), tuple(int(size) for size in entry["shape"]))


def infer_body(tensors: Sequence[Tensor], *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """The body of an infer request, and the headers that say what it is."""
    if not binary:
        inputs = [
            {"name": t.name, "datatype": t.datatype, "shape": t.shape, "data": _json_elements(t)} for t in tensors
        ]
        return orjson.dumps({"inputs": inputs}), JSON_HEADERS
    raws = [_raw(t) for t in tensors]
    described = [
        {"name": t.name, "datatype": t.datatype, "shape": t.shape, "parameters": {"binary_data_size": len(raw)}}
        for t, raw in zip(tensors, raws, strict=True)
    ]
    head = orjson.dumps({"inputs": described, "parameters": {"binary_data_output": True}})
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return b"".join((head, *raws)), headers


def tensor_of_json(entry: Mapping[str, Any]) -> Tensor:
    """One of the `inputs` of a JSON body. Raises ValueError, TypeError, KeyError, OverflowError."""
    datatype, shape = str(entry["datatype"]), tuple(int(size) for size in entry["shape"])
    flat = _flat(entry["data"])
    if datatype == "BYTES":
        return Tensor(str(entry["name"]), datatype, shape, [str(text).encode() for text in flat])
    if datatype not in DTYPES or datatype == "BF16":
        raise ValueError(f"datatype {datatype} cannot be read from JSON")
    return Tensor(str(entry["name"]), datatype, shape, np.array(flat, DTYPES[datatype]))


def _flat(data: Any) -> list[Any]:
    while data and isinstance(data[0], list):
        data = [element for part in data for element in part]
    return list(data)


def _json_elements(t: Tensor) -> list[Any]:
    if isinstance(t.elements, list):
        return [text.decode() for text in t.elements]
    values: list[Any] = t.elements.ravel().tolist()
    return values


def _raw(t: Tensor) -> bytes:
    return (
        encode_bytes_elements(t.elements) if isinstance(t.elements, list) else bytes(to_bytes(t.elements, t.datatype))
    )
