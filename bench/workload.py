"""What is sent: inputs made up from what the model declares, or taken from a file.

Requests are finished bytes before the run begins, as many different ones as fit into a bound, and are sent in turns:
while it measures the generator only writes.
"""

import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from bench.connections import Target
from bench.errors import CannotMeasure
from bench.oip import JSON_HEADERS, ModelSpec, Tensor, TensorSpec, infer_body, tensor_of_json
from bench.responses import request_bytes
from shared.tensors import DTYPES, Array

REQUESTS_MAX = 256
TEXT_REQUESTS_MAX = 1024
"""Lengths of texts vary a hundredfold, so more of them are needed for a fair mixture."""
REQUESTS_BYTES_MAX = 64 << 20
WORDS_SIGMA = math.log(200 / 12) / 2.3263
"""Spread of the log-normal numbers of words: the 99th percentile is 17 times the median."""
WORDS_MAX = 2000
_MARKUP = re.compile(r"[*`=\-~^]{2,}|[*`|]")


class Request(NamedTuple):
    """A request ready to be sent."""

    message: bytes
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How inputs are made up. `free` is the size of a dimension that the model leaves open, beside the batch."""

    rows: int = 1
    free: int = 16
    words_median: float = 12.0
    integers_below: int = 100


class Texts:
    """Passages of Python's language reference, which every Python has: real words in a real order."""

    def __init__(self, rng: random.Random, words_median: float, words_max: int = WORDS_MAX) -> None:
        from pydoc_data.topics import topics

        self._rng = rng
        self._words = [word for name in sorted(topics) for word in _MARKUP.sub(" ", topics[name]).split()]
        self._median = words_median
        self._max = words_max

    def passage(self) -> bytes:
        """A text with a log-normal number of words."""
        count = round(self._rng.lognormvariate(math.log(self._median), WORDS_SIGMA))
        return " ".join(self._from(max(1, min(self._max, count)))).encode()

    def sized(self, size_bytes: int) -> bytes:
        """A text of exactly so many bytes, also when it is written as JSON."""
        # A word and its space have six bytes on average. JSON would write quotes and backslashes as two bytes.
        text = " ".join(self._from(size_bytes // 3 + 1)).encode("ascii", "ignore").translate(None, b'"\\')
        return text[:size_bytes].rstrip().ljust(size_bytes, b".")

    def _from(self, count: int) -> list[str]:
        at = self._rng.randrange(len(self._words))
        found = self._words[at : at + count]
        while len(found) < count:
            found += self._words[: count - len(found)]
        return found


@dataclass(slots=True)
class Maker:
    """Makes valid inputs for a model, the same for the same seed."""

    model: ModelSpec
    shape: Shape
    seed: int
    _numbers: np.random.Generator = field(init=False)
    _texts: Texts | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._numbers = np.random.default_rng(self.seed)
        if any(t.datatype == "BYTES" for t in self.model.inputs):
            self._texts = Texts(random.Random(self.seed), self.shape.words_median)

    def tensors(self, rows: int, *, free: int = 0, text_bytes: int = -1) -> list[Tensor]:
        """One request's inputs; `free` 0 and `text_bytes` -1 (of each text) stand for what `shape` says."""
        return [self._tensor(t, rows, free or self.shape.free, text_bytes) for t in self.model.inputs]

    def text_count(self, rows: int) -> int:
        """How many texts a request has."""
        return sum(math.prod(self._sizes(t, rows, self.shape.free)) for t in self.model.inputs if t.datatype == "BYTES")

    @property
    def has_free_sizes(self) -> bool:
        """True when the model leaves a dimension open beside the batch."""
        return any(-1 in t.shape[1 if self.model.has_rows(t) else 0 :] for t in self.model.inputs)

    def _sizes(self, t: TensorSpec, rows: int, free: int) -> tuple[int, ...]:
        sizes = [free if size < 0 else size for size in t.shape]
        if self.model.has_rows(t):
            sizes[0] = rows
        return tuple(sizes)

    def _tensor(self, t: TensorSpec, rows: int, free: int, text_bytes: int) -> Tensor:
        sizes = self._sizes(t, rows, free)
        if t.datatype == "BYTES":
            assert self._texts is not None
            made = [
                self._texts.passage() if text_bytes < 0 else self._texts.sized(text_bytes)
                for _ in range(math.prod(sizes))
            ]
            return Tensor(t.name, t.datatype, sizes, made)
        return Tensor(t.name, t.datatype, sizes, self._random(t.datatype, sizes))

    def _random(self, datatype: str, sizes: Sequence[int]) -> Array:
        """Standard normal numbers with four decimals, integers from 0 to below the limit, or booleans."""
        if datatype == "BOOL":
            return self._numbers.integers(0, 2, sizes).astype(np.bool_)
        if datatype.startswith("FP"):
            return np.round(self._numbers.standard_normal(sizes), 4).astype(DTYPES[datatype])
        if datatype == "BF16":
            # The upper half of a float32 is that number in BF16.
            whole = self._numbers.standard_normal(sizes).astype("<f4")
            return (whole.view("<u4") >> 16).astype("<u2")
        highest = min(self.shape.integers_below, int(np.iinfo(DTYPES[datatype]).max) + 1)
        return self._numbers.integers(0, highest, sizes).astype(DTYPES[datatype])


@dataclass(frozen=True, slots=True)
class Sender:
    """Turns inputs and bodies into messages for one server and model."""

    target: Target
    model: ModelSpec
    binary: bool
    headers: Mapping[str, str]

    def of_tensors(self, tensors: Sequence[Tensor], rows: int, **more: str) -> Request:
        """An infer request with these inputs; `more` are headers, with _ for -."""
        body, own = infer_body(tensors, binary=self.binary)
        return self.of_body(body, own | {name.replace("_", "-"): value for name, value in more.items()}, rows)

    def of_body(self, body: bytes, own: Mapping[str, str], rows: int) -> Request:
        """An infer request with this body."""
        headers = {"Host": self.target.authority, **own, **self.headers}
        path = f"{self.target.base}{self.model.path}/infer"
        return Request(request_bytes("POST", path, headers, body), rows)


def made_up(maker: Maker, sender: Sender) -> list[Request]:
    """Different requests of `maker.shape.rows` rows, as many as fit."""
    rows = maker.shape.rows
    count_max = TEXT_REQUESTS_MAX if maker.text_count(rows) else REQUESTS_MAX
    made: list[Request] = []
    size_bytes = 0
    while len(made) < count_max and size_bytes < REQUESTS_BYTES_MAX:
        made.append(sender.of_tensors(maker.tensors(rows), rows))
        size_bytes += len(made[-1].message)
    return made


def from_file(path: Path, sender: Sender, rows: int) -> list[Request]:
    """The requests of a file of JSON lines: `{"inputs": [...]}` bodies, or `{"text": ...}`, `rows` lines a request.

    Raises CannotMeasure, naming the line.
    """
    requests: list[Request] = []
    texts: list[bytes] = []
    for number, line in lines_of(path):
        try:
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("inputs"), list):
                requests.append(_of_body(entry, line, sender))
            elif isinstance(entry, dict) and isinstance(entry.get("text"), str):
                texts.append(entry["text"].encode())
            else:
                raise ValueError('neither {"inputs": [...]} nor {"text": "..."}')
        except (ValueError, TypeError, KeyError, OverflowError) as e:
            raise CannotMeasure(f"{path}, line {number}: {type(e).__name__}: {e}") from None
    if texts:
        requests += _of_texts(texts, sender, rows, path)
    if not requests:
        raise CannotMeasure(f'{path} has no requests: it needs lines such as {{"text": "a cat"}}')
    return requests


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers from 1. Raises CannotMeasure."""
    try:
        with path.open("rb") as file:
            yield from ((i, line.strip()) for i, line in enumerate(file, 1) if line.strip())
    except OSError as e:
        raise CannotMeasure(f"{path} cannot be read: {e.strerror}") from None


def _of_body(entry: Mapping[str, Any], line: bytes, sender: Sender) -> Request:
    shape = entry["inputs"][0]["shape"] if entry["inputs"] else []
    rows = int(shape[0]) if shape and sender.model.rows_max != 0 else 1
    if sender.binary:
        return sender.of_tensors([tensor_of_json(i) for i in entry["inputs"]], rows)
    return sender.of_body(line, JSON_HEADERS, rows)


def _of_texts(texts: Sequence[bytes], sender: Sender, rows: int, path: Path) -> list[Request]:
    inputs = sender.model.inputs
    if len(inputs) != 1 or inputs[0].datatype != "BYTES":
        declared = ", ".join(f"{t.name} {t.datatype} {list(t.shape)}" for t in inputs)
        raise CannotMeasure(f"{path} has texts, but model '{sender.model.name}' takes {declared}")
    if len(texts) < rows:
        raise CannotMeasure(f"{path} has {len(texts)} texts, too few for one request of --rows {rows}")
    (spec,) = inputs
    requests = []
    for at in range(0, len(texts) - rows + 1, rows):
        batch = list(texts[at : at + rows])
        sizes = (rows, *(1 for _ in spec.shape[1:])) if sender.model.has_rows(spec) else tuple(1 for _ in spec.shape)
        requests.append(sender.of_tensors([Tensor(spec.name, "BYTES", sizes, batch)], rows))
    return requests


def looks_like_inference(body: bytes, *, binary: bool) -> bool:
    """True for the body of a successful infer response."""
    if binary:
        return body.startswith(b"{")
    try:
        reply = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(reply, dict) and isinstance(reply.get("outputs"), list)
