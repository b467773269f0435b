"""tailrace: serves PyTorch models through Redis Streams, and accounts for every millisecond of every request.

A model's author imports from here: `Model`, and what its methods receive and return. The names are resolved on first
use, so that the command line starts without loading anything it does not need.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.models.interface import (
        LoadContext,
        Model,
        ModelConfig,
        ModelInputError,
        ModelReply,
        ModelRequest,
        ModelRetry,
    )

__all__ = ["LoadContext", "Model", "ModelConfig", "ModelInputError", "ModelReply", "ModelRequest", "ModelRetry"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from worker.models import interface

        return getattr(interface, name)
    raise AttributeError(f"module 'tailrace' has no attribute '{name}'")
