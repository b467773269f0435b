"""Text in, sentence embedding out: tokenised here in the worker, packed without padding."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from worker.models.interface import LoadContext, Model, ModelInputError, ModelReply, ModelRequest
from worker.models.minilm import PackedBatch, estimate_tokens, load_encoder, load_tokens, pack, wheel_directory


class SentenceEmbeddings(Model):
    """`text` BYTES [1] -> `embedding` FP32 [384] of length 1; reply parameters `tokens` and `truncated` (rows)."""

    def load(self, context: LoadContext) -> None:
        directory = wheel_directory()
        self._encoder = load_encoder(directory, context.device)
        self._tokens = load_tokens(directory)

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
