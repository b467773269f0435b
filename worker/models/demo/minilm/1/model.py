"""Text in, sentence embedding out: tokenised here in the worker, packed without padding."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from shared import humanlog
from worker.models import formats
from worker.models.convert import map_tensors
from worker.models.interface import LoadContext, Model, ModelInputError, ModelReply, ModelRequest
from worker.models.minilm import MiniLM, PackedBatch, estimate_tokens, load_encoder, load_tokens, pack, wheel_directory


class SentenceEmbeddings(Model):
    """`text` BYTES [1] -> `embedding` FP32 [384] of length 1; reply parameters `tokens` and `truncated` (rows)."""

    def load(self, context: LoadContext) -> None:
        wanted = formats.wanted_format(context.config.parameters)
        directory = wheel_directory()
        self._tokens = load_tokens(directory)
        if wanted == formats.AUTO:
            self._encoder = self._better_encoder(directory, context.device)
        else:
            self._encoder = load_encoder(directory, context.device, formats.DTYPES[wanted])

    def _better_encoder(self, directory: Path, device: str) -> MiniLM:
        """In bfloat16 where that was measured to be quicker, and alike on the examples; else in float32."""
        exact = load_encoder(directory, device)
        verdict = formats.Verdict(formats.FLOAT32, f"{device} has no instructions for bfloat16")
        encoders = {formats.FLOAT32: exact}
        if formats.has_bfloat16(device):
            quick = encoders[formats.BFLOAT16] = load_encoder(directory, device, formats.DTYPES[formats.BFLOAT16])
            batch = map_tensors(self.collate(self.examples()), lambda tensor: tensor.to(device))
            verdict = formats.choose(lambda b: exact(b).cpu(), lambda b: quick(b).cpu(), [batch])
        told = {"model": self.config.name, "dtype": verdict.format, "reason": verdict.reason}
        humanlog.get().info("number format chosen", **told)
        return encoders[verdict.format]

    def cost(self, request: ModelRequest) -> int:
        return sum(estimate_tokens(len(text)) for text in request.inputs["text"].ravel())

    def collate(self, requests: Sequence[ModelRequest]) -> PackedBatch:
        encoded = [self._tokens.encode(text) for request in requests for text in _texts(request)]
        return pack([ids for ids, _ in encoded], [truncated for _, truncated in encoded])

    def forward(self, batch: PackedBatch) -> Tensor:
        embeddings: Tensor = self._encoder(batch)
        return embeddings

    def split(self, outputs: Tensor, requests: Sequence[ModelRequest], batch: PackedBatch) -> Sequence[ModelReply]:
        replies = super().split(outputs, requests, batch)
        start = 0
        for request, reply in zip(requests, replies, strict=True):
            rows = slice(start, start + request.rows)
            reply.parameters = {"tokens": sum(batch.lengths[rows]), "truncated": sum(batch.truncated[rows])}
            start = rows.stop
        return replies

    def tokens(self, requests: Sequence[ModelRequest], batch: PackedBatch) -> tuple[int, int]:
        computed = sum(batch.lengths)
        return computed, computed

    def examples(self) -> Sequence[ModelRequest]:
        # Short, typical and cut-off texts, so that the memory for the longest is there before the first request.
        texts = ["warm up", "a sentence of a usual length " * 4, "words " * 400]
        return [ModelRequest({"text": np.array([[text.encode()]], dtype=object)}) for text in texts]


def _texts(request: ModelRequest) -> list[str]:
    if request.rows == 0:
        raise ModelInputError("input 'text' holds no text; send at least one")
    texts = []
    for i, element in enumerate(request.inputs["text"].ravel()):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as e:
            raise ModelInputError(
                f"input 'text': element {i} is not valid UTF-8 at byte {e.start}; encode texts as UTF-8"
            ) from e
    return texts
