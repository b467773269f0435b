"""What a diagnosis tells, read by the one place that knows its form."""

import json
import sys
from pathlib import Path

import pytest

from bench.lineup.adapter import ByCommand, NoVerdict, parse

TOLD = {
    "findings": [
        {
            "cause": "B1", "confidence": 0.91, "family": "B", "segment": "post", "started_us": 1234,
            "culprits": {"workers": ["w-1"], "event": {"id": "e-9"}}, "delta_p99_ms": 241.0,
        },
        {"cause": "D2"},
    ],
    "verdict": "garbage collection in w-1",
}  # fmt: skip


def test_a_verdict_is_read_with_all_it_tells() -> None:
    """Culprits are names, in whatever tables and lists they come."""
    first, second = parse(TOLD).findings
    assert (first.cause, first.confidence, first.segment, first.started_unix_us) == ("B1", 0.91, "post", 1234)
    assert (first.culprits, first.delta_p99_ms) == ({"w-1", "e-9"}, 241.0)
    assert (second.family, second.confidence, second.delta_p99_ms) == ("D", 0.0, None)


@pytest.mark.parametrize("cause", ["unknown", "", "clean"])
def test_no_cause_is_an_abstention(cause: str) -> None:
    """The first finding may still tell the place."""
    told = parse({"findings": [{"cause": cause, "segment": "forward"}]})
    assert told.top is None
    assert told.place is not None and told.place.segment == "forward"
    assert parse({"findings": []}).place is None


def test_a_command_is_asked_for_each_log(tmp_path: Path) -> None:
    """`{logs}` in its words is the folder; what it prints is read."""
    program = f"import sys; print({json.dumps(TOLD)!r} if sys.argv[1] == {str(tmp_path)!r} else '')"
    told = ByCommand((sys.executable, "-c", program, "{logs}"))(tmp_path)
    assert told.text == "garbage collection in w-1"
    assert told.took_s > 0


@pytest.mark.parametrize("program", ["print('{}')", "print('no JSON')", "import sys; sys.exit('cannot say')"])
def test_what_is_no_verdict_is_told_with_what_was_said(tmp_path: Path, program: str) -> None:
    """A diagnosis that fails is counted, not taken for a clean bill."""
    with pytest.raises(NoVerdict, match="it said"):
        ByCommand((sys.executable, "-c", program))(tmp_path)
