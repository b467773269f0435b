"""What was learned of a model's passes outlives its worker, and damage to it costs nothing else."""

from pathlib import Path

import pytest

from shared.keys import Queue
from shared.policy.service_time import Form, ServiceTime, Shape
from worker.learned import Learned

QUEUE = Queue("m", "1")


def taught() -> ServiceTime:
    """One that has seen passes enough."""
    learned = ServiceTime(Form.PACKED)
    for n in range(64):
        rows = 1 + n % 8
        units = rows * (10 + n)
        learned.observe(Shape(rows, units, units * units / rows, 10 + n), 1_000_000 + 20_000 * units)
    return learned


def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    """For the same model on the same device with as many threads, and for nothing else."""
    learned = taught()
    Learned(str(tmp_path / "kept"), device="cpu", threads=1).keep(QUEUE, learned)
    again = Learned(str(tmp_path / "kept"), device="cpu", threads=1)
    assert again.load(QUEUE, Form.PACKED).to_dict() == learned.to_dict()
    empty = ServiceTime(Form.PACKED).to_dict()
    assert again.load(Queue("m", "2"), Form.PACKED).to_dict() == empty
    assert Learned(str(tmp_path / "kept"), device="cpu", threads=2).load(QUEUE, Form.PACKED).to_dict() == empty
    assert Learned(str(tmp_path / "kept"), device="cuda:0", threads=1).load(QUEUE, Form.PACKED).to_dict() == empty


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 0}', "null", '{"version": 1, "form": "packed"}'])
def test_a_damaged_file_is_learned_anew(tmp_path: Path, text: str) -> None:
    """And written over."""
    learned = Learned(str(tmp_path), device="cpu", threads=1)
    learned.keep(QUEUE, taught())
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert learned.load(QUEUE, Form.PACKED).to_dict() == ServiceTime(Form.PACKED).to_dict()
    learned.keep(QUEUE, taught())
    assert learned.load(QUEUE, Form.PACKED).law(8) == taught().law(8)


def test_a_model_that_now_pads_is_learned_anew(tmp_path: Path) -> None:
    """Another law."""
    learned = Learned(str(tmp_path), device="cpu", threads=1)
    learned.keep(QUEUE, taught())
    assert learned.load(QUEUE, Form.PADDED).to_dict() == ServiceTime(Form.PADDED).to_dict()


def test_nowhere_to_keep_it_is_no_reason_to_stop(tmp_path: Path) -> None:
    """A directory that cannot be made, and none at all."""
    (tmp_path / "file").write_text("")
    for directory in ("", str(tmp_path / "file" / "kept")):
        learned = Learned(directory, device="cpu", threads=1)
        learned.keep(QUEUE, taught())
        assert learned.load(QUEUE, Form.PACKED).to_dict() == ServiceTime(Form.PACKED).to_dict()
