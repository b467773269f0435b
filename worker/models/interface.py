"""What a model's author writes: one small class. Only `forward` is mandatory.

Theory of operation. The worker hands a model the requests of one batch. They walk through `collate` (requests to one
batch, on the host) -> `forward` (batch to outputs, on the device, under inference mode) -> `split` (outputs to one
reply per request, on the host again). The device moves every tensor it finds in the batch before `forward`, and every
tensor of the outputs back after it, so the author never writes `.to()` or `.cpu()`. If any step raises, the worker
halves the batch until the request at fault fails alone, so a method must not keep state between calls.

Importing this module does not import torch: the command line and the gateway may look at it too.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.errors import SettingsError
from shared.tensors import DTYPES
from shared.wire import ModelDescriptor, ModelTensor, Scalar

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]

VARIABLE_DIM_EXAMPLE = 4
"""What every variable dimension (-1) becomes in a made-up request; inputs often share one, so all are equal."""


class ModelInputError(ValueError):
    """The request is at fault, says the model's author: the client gets HTTP 400 with this text."""


class ModelRetry(Exception):
    """It may work later, says the model's author: the request is tried again after a while, some times, anywhere."""


class ModelLoadError(SettingsError):
    """A model cannot be loaded; the text says why and what to do."""


@dataclass(frozen=True)
class ModelConfig:
    """What model.toml says of one version of a model. Shapes are without the batch dimension; -1 = variable."""

    name: str
    version: str
    platform: str
    """"pytorch_python", "pytorch_torchscript" or "pytorch_export"."""
    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]
    path: Path
    """The directory DIR/NAME/VERSION."""
    max_batch_size: int = 0
    """Rows of one batch at most; 0 = the model has no batch dimension and answers one request a pass."""
    task: str = ""
    """What the model is good for beyond raw tensors: "embedding" opens the embeddings endpoint."""
    cost_max: int = 0
    """Budget of one batch in units of `Model.cost`; 0 = no budget."""
    linger_us: int = 0
    """How long an unfilled batch may wait for more requests while the device is free, microseconds."""
    preferred_batch_sizes: tuple[int, ...] = ()
    patience_ms: int = 100
    """How long the oldest request may be overtaken by others that fit a batch better, milliseconds."""
    pads: bool = False
    """`collate` pads all requests of a batch to the longest one, so that like should go with like."""
    finite: bool = False
    """Refuse outputs with NaN or infinity: such a request fails with its own error."""
    warm_up_rows: int = 8
    """Rows of the larger made-up batch that is run before the model takes requests; 0 = no warm-up."""
    graph_rows: tuple[int, ...] = ()
    """On CUDA: batches are filled up to the next of these numbers of rows, and replayed (`worker/graphs.py`)."""
    parameters: Mapping[str, Scalar] = field(default_factory=dict)

    def descriptor(self) -> ModelDescriptor:
        """What a gateway must know of this model."""
        return ModelDescriptor(
            name=self.name,
            version=self.version,
            platform=self.platform,
            max_batch_size=self.max_batch_size,
            inputs=list(self.inputs),
            outputs=list(self.outputs),
            task=self.task,
            parameters=dict(self.parameters),
        )


class ModelRequest(msgspec.Struct, frozen=True):
    """One request. Arrays are views into the message, not to be written to; BYTES are object arrays, BF16 is uint16.

    With a batch dimension each input is [rows, *declared shape]; without one, [*declared shape] and `rows` is 1.
    """

    inputs: Mapping[str, Array]
    parameters: Mapping[str, Scalar] = msgspec.field(default_factory=dict)
    rows: int = 1


@dataclass(slots=True)
class ModelReply:
    """The answer to one request: arrays shaped like those of `ModelRequest`; BYTES elements may be bytes or str."""

    outputs: dict[str, Array]
    parameters: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Where a model is loaded from, and for which device ("cpu", "cuda:0")."""

    config: ModelConfig
    directory: Path
    device: str


class Model:
    """Subclass this once in model.py and write `forward`; override the other methods where the default does not fit."""

    context: LoadContext
    """Set by the repository before `load` is called, so that `load` needs no call of super()."""

    @property
    def config(self) -> ModelConfig:
        """What model.toml says."""
        return self.context.config

    def load(self, context: LoadContext) -> None:
        """Read weights (safetensors, or torch.load with weights_only=True) and put them on `context.device`."""

    def cost(self, request: ModelRequest) -> int:
        """Work of the request in the units of `cost_max`; called on the event loop, so estimate, do not compute."""
        return request.rows

    def batch_key(self, request: ModelRequest) -> Hashable:
        """Only requests with equal keys share a batch.

        The default `collate` concatenates, so by default the shapes behind the batch dimension must be equal. A class
        with a `collate` of its own takes any mix unless it says otherwise here.
        """
        if type(self).collate is not Model.collate:
            return None
        return tuple(request.inputs[t.name].shape[1:] for t in self.config.inputs)

    def collate(self, requests: Sequence[ModelRequest]) -> Any:
        """Make one batch on the host. Default: dict of input name -> tensor [sum of rows, *shape].

        BYTES inputs stay object arrays. Without a batch dimension there is exactly one request, and no concatenation.
        """
        from worker.models.convert import to_torch

        if self.config.max_batch_size == 0 and len(requests) != 1:
            raise ValueError(
                f"model '{self.config.name}' has no batch dimension; {len(requests)} requests came at once"
            )
        batch: dict[str, Any] = {}
        for declared in self.config.inputs:
            arrays = [request.inputs[declared.name] for request in requests]
            if self.config.max_batch_size > 0:
                _check_rows(declared.name, arrays, requests)
            if len(arrays) == 1 and arrays[0].flags.writeable and arrays[0].flags.aligned:
                whole = arrays[0]
            else:
                # A single array is copied as well: torch refuses to promise not to write into a read-only view.
                whole = np.concatenate(arrays)
            batch[declared.name] = whole if declared.datatype == "BYTES" else to_torch(whole, declared.datatype)
        return batch

    def forward(self, batch: Any) -> "Mapping[str, Tensor] | Tensor | Sequence[Tensor]":
        """Compute the outputs: by name, in the declared order, or the tensor itself if one output is declared."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(self, batch)")

    def split(self, outputs: Any, requests: Sequence[ModelRequest], batch: Any) -> Sequence[ModelReply]:
        """Cut the outputs (on the host by now) into one reply per request. Default: along dim 0, by rows, no copy."""
        from worker.models.convert import to_numpy

        arrays = {name: to_numpy(value) for name, value in self.named(outputs).items()}
        if self.config.max_batch_size == 0:
            return [ModelReply(arrays)]
        rows_sum = sum(request.rows for request in requests)
        for name, array in arrays.items():
            if array.shape[:1] != (rows_sum,):
                raise ValueError(
                    f"output '{name}' has shape {list(array.shape)} for a batch of {rows_sum} rows; "
                    f"its first dimension must be the batch dimension"
                )
        replies, start = [], 0
        for request in requests:
            end = start + request.rows
            replies.append(ModelReply({name: array[start:end] for name, array in arrays.items()}))
            start = end
        return replies

    def tokens(self, requests: Sequence[ModelRequest], batch: Any) -> tuple[int, int]:
        """(useful, computed) units of the batch, for the accounting of padding; the difference is padding.

        Default: rows, and no padding.
        """
        rows_sum = sum(request.rows for request in requests)
        return rows_sum, rows_sum

    def examples(self) -> Sequence[ModelRequest]:
        """Requests for the warm-up: the first is run alone, then all in one batch. Default: zeros and short texts."""
        count = min(self.config.warm_up_rows, self.config.max_batch_size) or 1
        return [made_up_request(self.config) for _ in range(count)]

    def named(self, outputs: Any) -> Mapping[str, Any]:
        """Give the outputs of `forward` their declared names."""
        names = [t.name for t in self.config.outputs]
        if isinstance(outputs, Mapping):
            if missing := [name for name in names if name not in outputs]:
                raise ValueError(f"forward returned no output '{missing[0]}'; it returned {sorted(map(str, outputs))}")
            return {name: outputs[name] for name in names}
        values = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        if len(values) != len(names):
            raise ValueError(f"forward returned {len(values)} outputs; model.toml declares {len(names)}: {names}")
        return dict(zip(names, values, strict=True))


def _check_rows(name: str, arrays: Sequence[Array], requests: Sequence[ModelRequest]) -> None:
    # Were the rows of two inputs to differ, one request could be computed with a neighbour's data.
    for array, request in zip(arrays, requests, strict=True):
        if array.shape[:1] != (request.rows,):
            raise ModelInputError(
                f"input '{name}' has shape {list(array.shape)}; all inputs need one first dimension, {request.rows}"
            )


def made_up_request(config: ModelConfig, rows: int = 1) -> ModelRequest:
    """A request that fits the declared inputs: zeros, and a short text in every BYTES element."""
    inputs: dict[str, Array] = {}
    for declared in config.inputs:
        shape = [VARIABLE_DIM_EXAMPLE if size == -1 else size for size in declared.shape]
        if config.max_batch_size > 0:
            shape = [rows, *shape]
        if declared.datatype == "BYTES":
            inputs[declared.name] = np.full(shape, b"a short text", dtype=object)
        else:
            inputs[declared.name] = np.zeros(shape, DTYPES[declared.datatype])
    return ModelRequest(inputs, rows=rows)
