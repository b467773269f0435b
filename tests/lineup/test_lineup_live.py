"""The recorder, live: takes about a minute, so `make soak` runs it."""

from pathlib import Path

import pytest
import uvloop
from lineup_samples import verdict

from bench.lineup import calibration, labels, recorder, runs, score
from bench.lineup.runs import Seconds


@pytest.mark.slow
def test_a_fault_is_recorded_with_the_truth_beside_it(tmp_path: Path) -> None:
    """The log is whole, tells of the fault as numbers, and of its name nowhere; what is there is not recorded again."""
    wanted = [run for run in runs.development(["B1"], seconds=Seconds(4, 8, 2)) if run.share == 1.0][:1]
    speed = calibration.measure()
    said: list[str] = []
    assert uvloop.run(recorder.record_all(wanted, tmp_path, speed, say=said.append)) == 0
    assert uvloop.run(recorder.record_all(wanted, tmp_path, speed, say=said.append)) == 0
    assert said[-1] == "1 runs, 1 of them recorded before"
    (truth,) = labels.read_all(tmp_path)
    assert truth.cause == truth.expected == "B1"
    assert truth.window.fault_us <= truth.started_unix_us < truth.window.recovery_us
    assert truth.culprit_ids and all("-" in inst for inst in truth.culprit_ids)
    assert truth.facts["failed"] == 0
    files = sorted((tmp_path / "logs" / truth.run).iterdir())
    assert {file.suffix for file in files} == {".parquet"}
    assert not any(b"lineup" in file.read_bytes() for file in files)
    told = score.to_json(score.score(tmp_path, lambda _: verdict("B1"), with_flagged=True))
    assert told["additivity_ns_max"] == 0
