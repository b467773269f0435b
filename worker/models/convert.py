"""Between arrays and torch tensors, and over every tensor inside a model's own batch type."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from worker.models.interface import Array


def to_torch(array: Array, datatype: str) -> torch.Tensor:
    """A tensor over the memory of `array`, which must be writable. BF16 arrives as uint16 bit patterns."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if datatype == "BF16" else tensor


def to_numpy(value: Any) -> Array:
    """An array over the memory of a host tensor; numpy has no bfloat16, so its bit patterns come back as uint16."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    tensor = value.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: Array = tensor.numpy()
    return array


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Rebuild `value` with every tensor in it changed; looks into mappings, sequences and dataclasses."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.init]
        return dataclasses.replace(value, **{name: map_tensors(getattr(value, name), change) for name in fields})
    return value
