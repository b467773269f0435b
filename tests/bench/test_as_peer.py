"""tailrace among the servers of somebody else's benchmark."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.as_peer import ROOT, started
from worker.models import repository

PEERS = """
from pathlib import Path
WORK = Path(__file__).parent / "work"
PEERS = {"other": None}
def kserve(workload, value):
    return f"{workload} {value}"
"""
RUN = """
import sys
import peers
start, path, body, pull = peers.PEERS["tailrace"]
((command, environment),) = start("W1", 2, 18800)
print(sorted(peers.PEERS), sys.argv[1:], path, body("W1", 5), pull({"outputs": [{"data": [1.5]}]}), command[2:7])
"""


def test_the_driver_finds_one_more_server(tmp_path: Path) -> None:
    """Its own files stay as they are; what follows the folder is its command line."""
    (tmp_path / "peers.py").write_text(PEERS)
    (tmp_path / "run.py").write_text(RUN)
    done = subprocess.run(
        [sys.executable, "-m", "bench.as_peer", tmp_path, "closed", "--w", "W1"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == (
        "['other', 'tailrace'] ['closed', '--w', 'W1'] /v2/models/m/infer W1 5 [1.5] "
        "['tailrace', 'up', '--port', '18800', '--workers']\n"
    )


@pytest.mark.parametrize(("workload", "name"), [("W1", "x"), ("W2", "text"), ("W2b", "text")])
def test_each_workload_is_a_model_that_a_worker_finds(tmp_path: Path, workload: str, name: str) -> None:
    """Served as `m`, as the other servers do."""
    started(tmp_path / "tailrace", workload, 1, 18800)
    (config,) = repository.scan(tmp_path / "tailrace/models")
    assert (config.name, config.version, config.inputs[0].name) == ("m", "1", name)


def test_without_a_driver_the_usage_is_told() -> None:
    """One line."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.as_peer", "/nowhere"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python -m bench.as_peer DRIVER")
