"""Does a log tell its label? A classifier that sees only names, paths and other free texts must not beat chance.

Numbers are what a diagnosis works with, and some texts are facts that the system tells of itself (`EVIDENCE`): those
may differ. But no process, model, path or setting may be called other things in one kind of run than in another. Naive
Bayes over the words of all other texts, by cross-validation, against the same with the labels shuffled.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.schema import ENVELOPE, RECORDS
from forensics.store import Store, open_store

EVIDENCE = frozenset(
    {
        ("evt", "kind"), ("evt", "attrs"), ("req", "close_reason"), ("batch", "close_reason"), ("req", "error_code"),
        ("req", "error"), ("wreq", "error_code"), ("wreq", "error"), ("wreq", "outcome"), ("bye", "reason"),
    }
)  # fmt: skip
"""Texts by which the system itself tells what happened."""
RANDOM = re.compile(r"[0-9a-f]{7,}|[0-9]{3,}")
"""Ids and pids: new ones in every run, so nothing can be learned from them."""
FOLDS = 5
SHUFFLES = 200
P_MAX = 0.01
_WORD = re.compile(r"[A-Za-z_]{2,}|[0-9a-f]{2,}")

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Leak:
    """How often the label was guessed from texts alone, how often by chance, and the p-value of the difference."""

    accuracy: float
    by_chance: float
    p_value: float
    telling: tuple[str, ...]
    """The words that tell most, if any do."""

    @property
    def is_there(self) -> bool:
        """The texts tell more than chance would."""
        return self.p_value < P_MAX


def words_of(store: Store) -> set[str]:
    """Every word of the free texts of a log, with the field that it is in."""
    found: set[str] = set()
    for tag, columns in RECORDS.items():
        for column in (*ENVELOPE, *columns):
            if (tag, column.name) in EVIDENCE or column.name in ("t",):
                continue
            if column.type == "VARCHAR":
                texts: Iterable[str] = (row[0] for row in store.rows(f"SELECT DISTINCT {column.quoted} FROM raw.{tag}"))
            elif column.type == "VARCHAR[]":
                texts = (row[0] for row in store.rows(f"SELECT DISTINCT unnest({column.quoted}) FROM raw.{tag}"))
            elif column.type == "JSON":
                rows = store.rows(f"SELECT DISTINCT {column.quoted}::VARCHAR FROM raw.{tag}")
                texts = (text for row in rows for text in _texts(json.loads(row[0])))
            else:
                continue
            found.update(f"{tag}.{column.name}:{word}" for text in texts for word in _words(text))
    return found


def in_logs(folders: Mapping[str, Path]) -> dict[str, set[str]]:
    """The words of each recorded run."""
    found = {}
    for run, folder in folders.items():
        with open_store([folder]) as store:
            found[run] = words_of(store)
    return found


def test(words: Sequence[set[str]], labels: Sequence[str], *, seed: int = 0, shuffles: int = SHUFFLES) -> Leak:
    """Guess each run's label from the words of the others' runs."""
    vocabulary = sorted({word for own in words for word in own})
    matrix = np.array([[word in own for word in vocabulary] for own in words], np.float64).reshape(len(words), -1)
    # What is in one run only, or in all of them, tells nothing.
    count = matrix.sum(0)
    kept = (count >= 2) & (count < len(words))
    matrix, vocabulary = matrix[:, kept], [w for w, k in zip(vocabulary, kept, strict=True) if k]
    kinds, numbers = np.unique(np.array(labels), return_inverse=True)
    rng = np.random.default_rng(seed)
    fold = rng.permutation(len(words)) % FOLDS
    accuracy = _accuracy(matrix, numbers, fold, len(kinds))
    shuffled = np.array([_accuracy(matrix, rng.permutation(numbers), fold, len(kinds)) for _ in range(shuffles)])
    p_value = (1 + int(np.sum(shuffled >= accuracy))) / (1 + shuffles)
    return Leak(accuracy, float(shuffled.mean()), p_value, _telling(matrix, numbers, vocabulary, len(kinds)))


def _accuracy(matrix: Matrix, numbers: NDArray[np.intp], fold: NDArray[np.intp], kinds: int) -> float:
    """Share of the runs whose label Bernoulli naive Bayes guesses, by cross-validation."""
    right = 0
    for k in range(FOLDS):
        train, held = fold != k, fold == k
        log_one, log_none, prior = _fit(matrix[train], numbers[train], kinds)
        scores = matrix[held] @ (log_one - log_none).T + log_none.sum(1) + prior
        right += int(np.sum(scores.argmax(1) == numbers[held]))
    return right / len(numbers)


def _fit(matrix: Matrix, numbers: NDArray[np.intp], kinds: int) -> tuple[Matrix, Matrix, Matrix]:
    member = np.eye(kinds)[numbers]  # [runs, kinds]
    counts = member.sum(0)
    share = (member.T @ matrix + 1) / (counts[:, None] + 2)
    return np.log(share), np.log(1 - share), np.log((counts + 1) / (counts.sum() + kinds))


def _telling(matrix: Matrix, numbers: NDArray[np.intp], vocabulary: Sequence[str], kinds: int) -> tuple[str, ...]:
    """The words whose share differs most between one label and the rest."""
    if not len(vocabulary):
        return ()
    share = (np.eye(kinds)[numbers].T @ matrix) / np.maximum(1, np.bincount(numbers, minlength=kinds))[:, None]
    spread = np.abs(share - matrix.mean(0)).max(0)
    return tuple(vocabulary[i] for i in np.argsort(-spread)[:5])


def _words(text: Any) -> list[str]:
    return [word for word in _WORD.findall(str(text)) if not RANDOM.fullmatch(word)]


def _texts(value: Any) -> Iterable[str]:
    """The texts in a value of JSON, but no keys and no numbers."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value
