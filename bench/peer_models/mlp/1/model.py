"""Linear, ReLU, Linear as torch makes them with seed 0."""

import torch
from torch import Tensor, nn

from tailrace import LoadContext, Model


class Perceptron(Model):
    """`x` FP32 [64] -> `y` FP32 [8]."""

    def load(self, context: LoadContext) -> None:
        torch.manual_seed(0)
        self._layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(context.device).eval()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        y: Tensor = self._layers(batch["x"])
        return y
