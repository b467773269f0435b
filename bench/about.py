"""What every result carries: the command, the commit, the machine and the versions that it was measured with."""

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from shared import clock

HERE = Path(__file__).parent
PACKAGES = ("aiohttp", "redis", "torch", "uvloop", "msgspec")


def about(command: str, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """The circumstances of a measurement as a value ready for JSON; `unix_s` and `load_average` are of now."""
    return {
        "command": command,
        "commit": commit(),
        "tailrace": metadata.version("tailrace"),
        "unix_s": clock.wall_us() // 1_000_000,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in packages},
    }


def commit() -> str:
    """The commit of this code, `-dirty` behind it when it was changed since; empty when it is installed without git."""
    # Installed into a virtual environment it may lie within somebody else's repository, whose commit is not ours.
    if _git("ls-files", "--error-unmatch", Path(__file__).name):
        return _git("describe", "--always", "--dirty", "--exclude", "*")
    return ""


def _git(*words: str) -> str:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(["git", *words], cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_name() -> str:
    """The processor, as the kernel calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
