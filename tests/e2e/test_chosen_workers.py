"""`tailrace up --workers auto` as a user meets it: it measures once, tells what it chose, and serves with that."""

import re
from pathlib import Path

import e2e_stack
from e2e_stack import DEMO_MODELS, OWN_MODELS

from shared.vitals import usable_cores
from tailrace import cores
from tailrace.cores import Measured, Rate


def start(repository: Path, data_dir: Path, *more: str) -> e2e_stack.Process:
    command = ("up", "--workers", "auto", "--port", "0", "--data-dir", str(data_dir), "--model-repository", repository)
    return e2e_stack.Process(*command, *more, directory=data_dir)


def serves(up: e2e_stack.Process) -> None:
    """It is ready, and answers."""
    url = up.says(r"tailrace serves at (http://\S+)")[1]
    assert e2e_stack.ask(url, "/v2/models/slow/infer", body=e2e_stack.slow_body(5)).status == 200


def chosen(up: e2e_stack.Process) -> tuple[int, int, bool]:
    """Workers, threads, and whether they were remembered."""
    found = up.says(r"event=\"chose workers\" workers=(\d+) threads=(\d+) source=(\w+)")
    return int(found[1]), int(found[2]), found[3] == "remembered"


def test_it_measures_once_and_starts_what_it_chose(short_directory: Path) -> None:
    """The first start measures, the next one knows; as many workers run as were announced."""
    repository = e2e_stack.make_repository(short_directory / "models", {"slow": OWN_MODELS / "slow"})
    up = start(repository, short_directory / "data")
    try:
        workers, threads, remembered = chosen(up)
        assert not remembered
        assert 1 <= workers * threads <= usable_cores()
        serves(up)
        assert len(up.children_like("worker")) == workers
        assert len(up.children()) == workers + 2  # a gateway and Redis; nothing is left that measured
    finally:
        up.stop()
    again = start(repository, short_directory / "data")
    try:
        assert chosen(again) == (workers, threads, True)
    finally:
        again.stop()


def test_what_is_remembered_is_used_without_measuring(short_directory: Path) -> None:
    """The file in the data directory decides, here for three workers."""
    repository = e2e_stack.make_repository(short_directory / "models", {"slow": OWN_MODELS / "slow"})
    data_dir = short_directory / "data"
    data_dir.mkdir()
    key = cores.key_of(cores.repository_files(repository), (), threads=0, cores=usable_cores())
    rates = [Rate(1, 1, 10.0), Rate(3, 1, 30.0)]
    cores.write_kept(data_dir / cores.FILE, {key: Measured({"slow/1": rates}, 1 << 20)})
    up = start(repository, data_dir)
    try:
        assert chosen(up) == (3, 1, True)
        assert re.search(r"slow/1 30 requests/s \(1 x 1: 10\)", up.text)
        serves(up)
        assert len(up.children_like("worker")) == 3
    finally:
        up.stop()


def test_a_model_that_cannot_be_loaded_ends_it_with_the_reason(short_directory: Path) -> None:
    """No traceback, nothing left behind."""
    repository = e2e_stack.make_repository(short_directory / "models", {"mlp": DEMO_MODELS / "mlp"})
    (repository / "mlp" / "1" / "model.py").write_text("raise ValueError('not today')\n")
    up = start(repository, short_directory / "data")
    try:
        assert up.wait_ended(within_s=e2e_stack.START_S) == 1
        assert "--workers auto: model 'mlp'" in up.text or "ValueError: not today" in up.text
        assert "Traceback" not in up.text
        assert up.children() == []
    finally:
        up.stop()
