"""Models that come as one file and need no code: TorchScript and programs of torch.export."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from worker.models.interface import LoadContext, Model


class Artefact(Model):
    """Calls the file's module with the declared inputs in order; its outputs are the declared outputs in order."""

    def load(self, context: LoadContext) -> None:
        if context.config.platform == "pytorch_torchscript":
            self._call = _torchscript(context.directory / "model.pt", context.device)
        else:
            self._call = _exported(context.directory / "model.pt2", context.device)

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        return self._call(*(batch[declared.name] for declared in self.config.inputs))


def _torchscript(path: Path, device: str) -> Any:
    with warnings.catch_warnings():
        # torch deprecates TorchScript but keeps loading it; whoever has such a file cannot change it any more.
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.load`", category=DeprecationWarning)
        return torch.jit.load(path, map_location=device).eval()  # type: ignore[no-untyped-call]


def _exported(path: Path, device: str) -> Any:
    with _no_pickle():
        program = torch.export.load(path)
    if device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    return program.module()


@contextmanager
def _no_pickle() -> Iterator[None]:
    """Make every torch.load refuse arbitrary objects.

    torch.export.load (seen in 2.13) calls torch.load with weights_only=False for some weights, and falls back to it for
    the sample inputs: a file could then run code. torch reads this variable at each call; it is the only way in.
    """
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
