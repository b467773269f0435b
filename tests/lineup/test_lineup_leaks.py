"""Whether texts in a log tell its label."""

import random
from pathlib import Path

from lineup_samples import write_log

from bench.lineup import leak
from bench.make_logs import Fleet, Plan
from forensics.store import open_store


def runs_of(telling: str, count: int = 40) -> tuple[list[set[str]], list[str]]:
    """Runs of two kinds; `telling` is a word that those of the first kind have."""
    rng = random.Random(3)
    labels = [rng.choice("AB") for _ in range(count)]
    names = ["req.model:ranker", "req.model:reader", "req.model:tagger"]
    return [
        {rng.choice(names), "hello.argv:worker", *([telling] if telling and label == "A" else [])} for label in labels
    ], labels


def test_names_by_chance_tell_nothing() -> None:
    """Models are called at random, whatever happens in the run."""
    assert not leak.test(*runs_of("")).is_there


def test_a_word_that_goes_with_the_label_is_found() -> None:
    """And named, so that it can be removed."""
    found = leak.test(*runs_of("cfg.config:inject"))
    assert found.is_there
    assert found.accuracy == 1.0
    assert found.telling[0] == "cfg.config:inject"


def test_the_words_of_a_log_are_its_free_texts(tmp_path: Path) -> None:
    """Names and paths, but no ids, and not what the system tells as a fact."""
    Fleet(Plan(requests=300, per_s=600.0), tmp_path).run()
    with open_store([tmp_path]) as store:
        words = leak.words_of(store)
    assert any(word.startswith("req.model:") for word in words)
    assert any(word.startswith("batch.members:") for word in words) is False
    assert not any(word.startswith(("evt.kind", "req.close_reason", "req.error")) for word in words)


def test_logs_of_one_kind_have_the_same_words(tmp_path: Path) -> None:
    """A run with a fault and one without differ in numbers and facts alone."""
    found = []
    for name, gc in (("one", True), ("other", False)):
        write_log(tmp_path / name, gc=gc)
        with open_store([tmp_path / name]) as store:
            found.append({word for word in leak.words_of(store) if not word.startswith("evt.")})
    assert found[0] == found[1]
