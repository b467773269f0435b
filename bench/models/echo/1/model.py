"""Gives back what it gets."""

from torch import Tensor

from tailrace import Model, ModelRequest


class Echo(Model):
    """`x` FP32 [any] -> `y`, the same."""

    def cost(self, request: ModelRequest) -> int:
        return request.inputs["x"].nbytes >> 10

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": batch["x"]}
