"""What a bare model is measured with: real texts, and batches whose order favours none."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from bench import bare_inputs
from bench.errors import CannotMeasure
from shared.wire import ModelTensor
from worker.models.interface import LoadContext, Model, ModelConfig, ModelRequest

CONFIG = ModelConfig(
    name="m",
    version="1",
    platform="pytorch_python",
    inputs=(ModelTensor("text", "BYTES", [1]),),
    outputs=(ModelTensor("y", "FP32", [1]),),
    path=Path(),
    max_batch_size=8,
)
NUMBERS = dataclasses.replace(CONFIG, inputs=(ModelTensor("x", "FP32", [2]),))


class Plain(Model):
    """Costs are rows, as by default."""


class Costly(Model):
    """As costly as its text is long; long and short texts may not meet."""

    def cost(self, request: ModelRequest) -> int:
        return len(request.inputs["text"].item())

    def batch_key(self, request: ModelRequest) -> bool:
        return self.cost(request) > 50


def model(kind: type[Model] = Plain, config: ModelConfig = CONFIG) -> Model:
    made = kind()
    made.context = LoadContext(config, config.path, "cpu")
    return made


def text(length: int) -> ModelRequest:
    return ModelRequest({"text": np.array([[b"x" * length]], dtype=object)})


def lengths(batches: list[list[ModelRequest]]) -> list[list[int]]:
    return [[len(request.inputs["text"].item()) for request in batch] for batch in batches]


def test_texts_have_the_lengths_of_real_ones() -> None:
    """Log-normal numbers of words, median 12, 250 at most; the same for the same seed."""
    inputs = bare_inputs.made_up(model(), 1)
    counts = [len(r.inputs["text"].item().split()) for r in inputs.requests]
    assert 9 <= np.median(counts) <= 15
    assert max(counts) == 250 and min(counts) >= 1
    again = bare_inputs.made_up(model(), 1).requests
    assert all((a.inputs["text"] == b.inputs["text"]).all() for a, b in zip(inputs.requests, again, strict=True))


def test_models_without_texts_are_measured_with_their_examples() -> None:
    """Those of the warm-up."""
    inputs = bare_inputs.made_up(model(config=NUMBERS), 1)
    assert inputs.told == "the model's own examples"
    assert {r.inputs["x"].shape for r in inputs.requests} == {(1, 2)}


def test_texts_of_a_file_become_requests(tmp_path: Path) -> None:
    """A line each."""
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": t}) for t in ("a", "größer")))
    inputs = bare_inputs.from_file(CONFIG, file)
    assert [r.inputs["text"].tolist() for r in inputs.requests] == [[[b"a"]], [["größer".encode()]]]


@pytest.mark.parametrize(
    ("content", "config", "told"),
    [
        ('{"text": "a"}\n{"text": 5}', CONFIG, "line 2 is not"),
        ("[1]", CONFIG, "line 1 is not"),
        ("{", CONFIG, "line 1 is not"),
        ("\n", CONFIG, "has no texts"),
        ('{"text": "a"}', NUMBERS, r"model 'm' takes x FP32 \[2\]"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_the_place(
    content: str, config: ModelConfig, told: str, tmp_path: Path
) -> None:
    """In one line."""
    file = tmp_path / "texts.jsonl"
    file.write_text(content)
    with pytest.raises(CannotMeasure, match=told):
        bare_inputs.from_file(config, file)


def test_sorted_batches_hold_requests_of_like_size() -> None:
    """By order of arrival they hold any."""
    requests = [text(n) for n in (9, 1, 8, 2, 7, 3)]
    assert sorted(lengths(bare_inputs.batches(model(), requests, 2, "sorted"))) == [[1, 2], [3, 7], [8, 9]]
    assert sorted(lengths(bare_inputs.batches(model(), requests, 2, "arrival"))) == [[7, 3], [8, 2], [9, 1]]


def test_only_requests_that_may_share_a_batch_do() -> None:
    """Too few of a kind repeat."""
    requests = [text(n) for n in (1, 2, 3, 60)]
    assert sorted(lengths(bare_inputs.batches(model(Costly), requests, 2, "sorted"))) == [[1, 2], [60, 60]]
    assert sorted(lengths(bare_inputs.batches(model(), [text(4)], 3, "arrival"))) == [[4, 4, 4]]


@pytest.mark.parametrize("count", [1, 2, 7, 64, 500])
def test_any_run_of_batches_is_a_fair_sample(count: int) -> None:
    """Each is there once, and any eighth in a row has a mean cost near that of all."""
    order = bare_inputs._spread(count)
    assert sorted(order) == list(range(count))
    length = count // 8
    for begin in range(0, count - length, 5) if length >= 8 else []:
        assert np.mean(order[begin : begin + length]) == pytest.approx((count - 1) / 2, rel=0.15)
