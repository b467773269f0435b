"""Puts tailrace among the servers of a peer benchmark: `python -m bench.as_peer DRIVER ARGUMENTS...`.

DRIVER is a folder with the two files of such a benchmark: `peers.py`, whose dict PEERS names for each server how it is
started, its path, its request and how to read its answer; and `run.py`, which starts, loads and stops them in turns.
The driver is run as it is, with one entry more and the rest of the command line. Nothing of it is needed otherwise.
"""

import importlib
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

NAME = "tailrace"
ROOT = Path(__file__).parents[1]
MODELS = {"W1": ROOT / "bench/peer_models/mlp", "W2": ROOT / "worker/models/demo/minilm"}
"""By workload: W1 the perceptron, W2 and what begins like it the sentence embeddings."""

Start = list[tuple[list[str], dict[str, str]]]


def main(argv: list[str]) -> None:
    """Register and run; `argv` is the driver's folder and its own arguments."""
    if not argv or not (Path(argv[0]) / "run.py").is_file():
        sys.exit("usage: python -m bench.as_peer DRIVER ARGUMENTS...; DRIVER is a folder with peers.py and run.py")
    driver = Path(argv[0]).absolute()
    sys.path.insert(0, str(driver))
    peers: Any = importlib.import_module("peers")

    def start(workload: str, threads: int, port: int) -> Start:
        return started(Path(peers.WORK) / NAME, workload, threads, port)

    peers.PEERS[NAME] = (start, "/v2/models/m/infer", peers.kserve, lambda reply: reply["outputs"][0]["data"])
    sys.argv = [str(driver / "run.py"), *argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


def started(folder: Path, workload: str, threads: int, port: int) -> Start:
    """The command and environment that serve a workload as model `m`; `folder` is emptied for its data."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(MODELS[workload[:2]], folder / "models/m", ignore=shutil.ignore_patterns("__pycache__"))
    # Of a model that computes for long, so many workers of one thread do more than one worker of so many threads.
    workers = threads if workload.startswith("W2") else 1
    options = {
        "--port": port,
        "--workers": workers,
        "--threads": threads // workers,
        "--model-repository": folder / "models",
        "--data-dir": folder,
    }
    words = [str(word) for option in options.items() for word in option]
    return [([sys.executable, "-m", "tailrace", "up", *words], {"PYTHONPATH": str(ROOT)})]


if __name__ == "__main__":
    main(sys.argv[1:])
