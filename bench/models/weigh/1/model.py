"""Adds up what it gets: much in, little out."""

from torch import Tensor

from tailrace import Model, ModelRequest


class Weigh(Model):
    """`x` FP32 [any] -> `y` FP32 [1], the sum."""

    def cost(self, request: ModelRequest) -> int:
        return request.inputs["x"].nbytes >> 10

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": batch["x"].sum(dim=1, keepdim=True)}
