"""How long a request waited although a device could have taken it: arithmetic on given instants."""

from pathlib import Path

import pytest

from bench.errors import CannotMeasure
from bench.make_logs import Fleet, Plan
from bench.patience import PATIENCE_MS, Pass, Patience, Request, look, of_logs, patience_ns_of
from bench.stack import MINILM


def waits(requests: list[Request], passes: list[Pass]) -> dict[str, int]:
    return look(requests, passes, 100).waits_ns


def test_the_wait_for_older_requests_is_no_wait() -> None:
    """The younger goes as soon as the pass of the older has ended: the queue was long, nobody was overtaken."""
    passes = [Pass("w", 10, 60), Pass("w", 60, 90)]
    assert waits([Request("old", 5, 10), Request("young", 6, 60)], passes) == {"old": 5, "young": 0}


def test_the_wait_while_younger_ones_go_first_counts() -> None:
    """The old one could have gone at 9, and went at 60; the young one is not to blame for its own haste."""
    passes = [Pass("w", 10, 60), Pass("w", 60, 90)]
    assert waits([Request("old", 9, 60), Request("young", 10, 10)], passes) == {"old": 51, "young": 0}


def test_nothing_could_have_been_taken_while_all_devices_were_busy() -> None:
    """Whichever is free first could have: there the wait begins."""
    passes = [Pass("v", 0, 100), Pass("w", 0, 40), Pass("v", 100, 120)]
    assert waits([Request("r", 10, 100)], passes) == {"r": 60}
    assert waits([Request("r", 10, 40)], [Pass("v", 0, 100), Pass("w", 0, 40), Pass("w", 40, 50)]) == {"r": 0}


def test_who_goes_with_an_older_one_has_not_waited_for_anything_else() -> None:
    """The wait is that of the oldest of the pass."""
    passes = [Pass("w", 10, 60), Pass("w", 60, 90)]
    requests = [Request("old", 5, 60), Request("with it", 7, 60), Request("before both", 8, 10)]
    assert waits(requests, passes) == {"old": 55, "with it": 0, "before both": 2}


def test_what_is_beyond_the_patience_and_a_pass_is_counted() -> None:
    """The promise is patience plus one pass; the report says how far from it the worst was."""
    found = Patience({"a": 149, "b": 151, "c": 3}, longest_pass_ns=50, patience_ns=100)
    assert found.worst == ("b", 151)
    assert found.beyond_ns == 51
    assert found.broken_count == 1
    assert Patience({}, 0, 100).beyond_ns == -100
    assert "none waited more than" in str(found)


def test_the_logs_of_a_machine_say_it_and_those_of_two_cannot(tmp_path: Path) -> None:
    """A fleet in order of arrival overtakes nobody: what is left is what the way to the worker takes."""
    for hosts in (1, 2):
        Fleet(Plan(requests=300, hosts=hosts, crashed=0), tmp_path / str(hosts)).run()
    found = of_logs([tmp_path / "1"], "minilm", 100_000_000)
    assert len(found.waits_ns) > 250
    assert found.broken_count == 0
    with pytest.raises(CannotMeasure, match="2 machines"):
        of_logs([tmp_path / "2"], "minilm", 100_000_000)


def test_the_patience_is_the_models(tmp_path: Path) -> None:
    """Of its highest version, as its model.toml says, else what is usual."""
    assert patience_ns_of(MINILM) == PATIENCE_MS * 1_000_000
    for version, more in (("2", ""), ("10", "[batching]\npatience_ms = 7\n")):
        folder = tmp_path / "m" / version
        folder.mkdir(parents=True)
        tensors = "".join(f'[[{k}]]\nname = "a"\ndatatype = "FP32"\nshape = [1]\n' for k in ("inputs", "outputs"))
        (folder / "model.toml").write_text(tensors + more)
        (folder / "model.py").write_text("")
    assert patience_ns_of(tmp_path / "m") == 7_000_000
