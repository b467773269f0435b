"""What a bare model is measured with: requests as the worker would decode them, and batches of them."""

import json
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.bare_protocol import Order
from bench.errors import CannotMeasure
from bench.workload import Texts, lines_of
from worker.models.interface import Model, ModelConfig, ModelRequest, made_up_request

TEXTS_COUNT = 512
"""Lengths vary a hundredfold: so many make a fair mixture, and can be sorted well."""
WORDS_MEDIAN = 12.0
WORDS_MAX = 250
TEXTS_FROM_FILE_MAX = 4096
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Inputs:
    """Requests of one row each, and in words what they are."""

    requests: Sequence[ModelRequest]
    told: str


def own_examples(model: Model) -> Inputs:
    """What the model is warmed up with."""
    return Inputs(list(model.examples()), "the model's own examples")


def made_up(model: Model, seed: int) -> Inputs:
    """Texts of real words for a model that takes texts, else the model's examples.

    The author knows better which texts go with other inputs, so then examples of his own come first.
    """
    config = model.config
    wants_texts = any(t.datatype == "BYTES" for t in config.inputs)
    if not wants_texts or (len(config.inputs) > 1 and type(model).examples is not Model.examples):
        return own_examples(model)
    texts = Texts(random.Random(seed), WORDS_MEDIAN, WORDS_MAX)
    told = f"{TEXTS_COUNT} made-up texts, median {WORDS_MEDIAN:.0f} words, at most {WORDS_MAX}"
    return Inputs([_with_texts(config, texts.passage) for _ in range(TEXTS_COUNT)], told)


def _with_texts(config: ModelConfig, passage: Callable[[], bytes]) -> ModelRequest:
    blank = made_up_request(config)
    inputs = dict(blank.inputs)
    for declared in config.inputs:
        if declared.datatype == "BYTES":
            elements = np.empty(inputs[declared.name].shape, dtype=object)
            for i in range(elements.size):
                elements.flat[i] = passage()
            inputs[declared.name] = elements
    return ModelRequest(inputs, rows=blank.rows)


def from_file(config: ModelConfig, path: Path) -> Inputs:
    """A request for each line {"text": ...}. Raises CannotMeasure, naming the line, or what the model takes instead."""
    declared = config.inputs[0]
    if len(config.inputs) != 1 or declared.datatype != "BYTES" or any(size > 1 for size in declared.shape):
        takes = ", ".join(f"{t.name} {t.datatype} {t.shape}" for t in config.inputs)
        raise CannotMeasure(f"--data: {path} has texts, but model '{config.name}' takes {takes}")
    shape = [1] * (len(declared.shape) + (config.max_batch_size > 0))
    requests = []
    for number, line in lines_of(path):
        try:
            text = json.loads(line)["text"].encode()
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CannotMeasure(f'--data: {path}, line {number} is not {{"text": "..."}}') from None
        element = np.empty(shape, dtype=object)
        element.flat[0] = text
        requests.append(ModelRequest({declared.name: element}))
        if len(requests) == TEXTS_FROM_FILE_MAX:
            break
    if not requests:
        raise CannotMeasure(f'--data: {path} has no texts: it needs lines such as {{"text": "a cat"}}')
    return Inputs(requests, f"{len(requests)} texts of {path.name}")


def batches(model: Model, requests: Sequence[ModelRequest], size: int, order: Order) -> list[list[ModelRequest]]:
    """All requests in batches of exactly `size`, such as the model allows; where they do not suffice, they repeat.

    They stand in such an order that any run of them holds cheap and dear ones in about the right proportion: a
    measurement sees only so many, and should not depend on which.
    """
    groups: dict[Hashable, list[ModelRequest]] = {}
    for request in requests:
        groups.setdefault(model.batch_key(request), []).append(request)
    made = []
    for group in groups.values():
        if order == "sorted":
            group.sort(key=lambda request: _weight(model, request))
        begins = range(0, max(1, len(group) - size + 1), size)
        made += [[group[(begin + i) % len(group)] for i in range(size)] for begin in begins]
    made.sort(key=lambda batch: sum(model.cost(request) for request in batch))
    return [made[i] for i in _spread(len(made))]


def _weight(model: Model, request: ModelRequest) -> tuple[int, int]:
    """The work of a request as the model estimates it, then its bytes."""
    arrays = request.inputs.values()
    return model.cost(request), sum(sum(map(len, a.flat)) if a.dtype == object else a.nbytes for a in arrays)


def _spread(count: int) -> list[int]:
    """The numbers below `count`, so that every run of them covers the range evenly: by steps of the golden section."""
    places = [((i + 1) * _GOLDEN % 1.0, i) for i in range(count)]
    order = [0] * count
    for rank, (_, i) in enumerate(sorted(places)):
        order[i] = rank
    return order
