"""What the scripts share that start a whole tailrace to measure it: `tailrace up` as a context, and what it serves.

Its gateways, workers and embedded Redis are processes of their own, so what they use is counted by process.
"""

import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tailrace.supervise import Child
from tailrace.up import Stack, UpOptions, running

ROOT = Path(__file__).parents[1]
MLP = ROOT / "bench/peer_models/mlp"
ECHO = ROOT / "bench/models/echo"
WEIGH = ROOT / "bench/models/weigh"
MINILM = ROOT / "worker/models/demo/minilm"
DTYPES = ("float32", "bfloat16")
AUTO = 0
"""Instead of a number of workers: as many as suit the models on this machine, found by measurement."""
CpuSeconds = dict[str, float]
_DTYPE = re.compile(r'(?m)^dtype = ".*"$')


@dataclass(frozen=True, slots=True)
class Serving:
    """A stack that is ready. `processes` are all of its own, by what they are."""

    stack: Stack
    processes: dict[str, list[psutil.Process]]

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.stack.url

    @property
    def log_dir(self) -> Path:
        """Where its events are logged."""
        return self.stack.log_dir

    def cpu_s(self) -> CpuSeconds:
        """CPU time so far, by what used it: gateway, worker, redis."""
        return {kind: float(sum(sum(p.cpu_times()[:2]) for p in of)) for kind, of in self.processes.items()}

    def cost(self, before: CpuSeconds, requests: int) -> dict[str, float]:
        """CPU seconds for 1,000 requests, in all and by kind, if there were so many since `cpu_s` was `before`."""
        now_s = self.cpu_s()
        per_1000 = {f"{kind}_s_per_1000": (s - before[kind]) / max(1, requests) * 1000 for kind, s in now_s.items()}
        return {"cpu_s_per_1000": sum(per_1000.values())} | per_1000

    def told(self) -> dict[str, Any]:
        """How it runs, ready for JSON."""
        o = self.stack.options
        words = list(self.stack.workers[0].command) if self.stack.workers else []
        threads = int(words[words.index("--threads") + 1]) if words else 0
        return {"workers": o.workers, "threads": threads, "gateways": o.gateways}


@contextlib.asynccontextmanager
async def serving(
    folder: Path, repository: Path | None = None, *, workers: int = 1, gateways: int = 1, threads: int = 0
) -> AsyncIterator[Serving]:
    """A ready stack with its data and logs in `folder`. Raises GaveUp, NoRedis.

    Its models are those of `repository`, else the demo models; `workers` may be AUTO. The logs are whole afterwards.
    """
    options = UpOptions(
        port=0,
        workers=workers or 1,
        choose_workers=workers == AUTO,
        gateways=gateways,
        threads=threads,
        model_repository=str(repository or ""),
        data_dir=folder,
    )
    async with running(options) as stack:
        yield Serving(
            stack, {"gateway": _processes(stack.gateways), "worker": _processes(stack.workers), "redis": _redis()}
        )


def _processes(children: Iterable[Child]) -> list[psutil.Process]:
    return [psutil.Process(child.process.pid) for child in children if child.process]


def _redis() -> list[psutil.Process]:
    """The embedded Redis, which is a child of ours."""
    return [p for p in psutil.Process().children() if "redis-server" in " ".join(p.cmdline())]


def repository(folder: Path, models: Mapping[str, Path], *, dtype: str = "") -> Path:
    """A model repository of copies by name, made in `folder`; with `dtype`, models that have this parameter get it."""
    for name, source in models.items():
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for manifest in (folder / name).glob("*/model.toml") if dtype else ():
            manifest.write_text(with_dtype(manifest.read_text(), dtype))
    return folder


def workers_of(text: str) -> int:
    """What `--workers` says: a number, or `auto`. Raises ValueError."""
    return AUTO if text == "auto" else max(1, int(text))


def with_dtype(manifest: str, dtype: str) -> str:
    """The text of a model.toml with another `dtype`, where it has one."""
    return _DTYPE.sub(f'dtype = "{dtype}"', manifest)
