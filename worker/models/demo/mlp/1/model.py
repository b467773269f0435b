"""Linear, ReLU, Linear with the same made-up weights everywhere."""

import torch
from torch import Tensor, nn

from worker.models.interface import LoadContext, Model

SEED = 20261130


class Perceptron(Model):
    """`x` FP32 [64] -> `y` FP32 [8]."""

    def load(self, context: LoadContext) -> None:
        self._layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        generator = torch.Generator().manual_seed(SEED)
        for parameter in self._layers.parameters():
            parameter.requires_grad_(False).normal_(std=0.1, generator=generator)
        self._layers.to(context.device).eval()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        y: Tensor = self._layers(batch["x"])
        return y
