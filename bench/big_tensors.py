"""Do large tensors stall small requests? mlp traffic alone, and beside 10 MiB tensors, in turns. See README.md.

Both are open loops with Poisson arrivals, by a generator process each; latencies count from the intended instants. The
one of mlp sends small JSON requests all the time that counts, the other one begins before it and ends after it. Both
models are served by the same stack, by the same workers.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
from rich.console import Console

from bench import cells
from bench.cells import Cell
from bench.stack import ECHO, MLP, ROOT, WEIGH, Serving, repository, serving
from shared import humanlog

ALONE, BESIDE = "alone", "beside"
SMALL, LARGE = "mlp", "large"
LEAD_S = 2.0
"""So long before the traffic that counts the large tensors begin; so long after it they end."""


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=500, help="of mlp, requests a second")
    parser.add_argument("--large-rate", type=float, default=20, help="of the large tensors")
    parser.add_argument("--large-mib", type=float, default=10, help="size of a large tensor")
    parser.add_argument("--echo", action="store_true", help="the large tensors come back; else their sum does")
    parser.add_argument("--rounds", type=int, default=3, help="each round measures mlp alone, then beside the tensors")
    parser.add_argument("--seconds", type=float, default=15, help="length of one measurement")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write the JSON; default: nowhere")
    a = parser.parse_args()
    humanlog.configure("bench", level="warning")
    uvloop.run(_measure(a))


async def _measure(a: argparse.Namespace) -> None:
    console = cells.console()
    found: list[Cell] = []
    with TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        models = repository(folder / "models", {SMALL: MLP, LARGE: ECHO if a.echo else WEIGH})
        async with serving(folder / "data", models, workers=a.workers, gateways=a.gateways) as stack:
            await _small(stack, a, folder, seconds=min(5, a.seconds), seed=0)  # warm
            for number in range(a.rounds):
                for turn in (ALONE, BESIDE):
                    for cell in await _turn(stack, a, folder, turn, seed=number + 1):
                        found.append(cell | {"round": number})
                        console.print(f"round {number + 1}: {_shown(cell)}")
            told = stack.told()
    _print(console, found)
    told |= {key: getattr(a, key) for key in ("rate", "large_rate", "large_mib", "echo", "seconds", "rounds")}
    cells.finish(console, a.out, "bench.big_tensors", told, found, p99_ratio=ratios(found, "p99_ms"))


async def _turn(stack: Serving, a: argparse.Namespace, folder: Path, turn: str, *, seed: int) -> list[Cell]:
    """One measurement of mlp, and of the tensors if they were beside it."""
    before = stack.cpu_s()
    if turn == ALONE:
        small = await _small(stack, a, folder, seconds=a.seconds, seed=seed)
        return [{"turn": turn, "model": SMALL} | small | stack.cost(before, small["requests"])]
    beside = asyncio.create_task(_large(stack, a, folder, seed=seed))
    await asyncio.sleep(LEAD_S)
    small = await _small(stack, a, folder, seconds=a.seconds, seed=seed)
    large = await beside
    return [{"turn": turn, "model": SMALL} | small, {"turn": turn, "model": LARGE} | large]


async def _small(stack: Serving, a: argparse.Namespace, folder: Path, *, seconds: float, seed: int) -> Cell:
    options = ["--model", SMALL, "--rate", a.rate, "--duration", seconds, "--seed", seed]
    return await generated(stack.url, options, folder / "small.json")


async def _large(stack: Serving, a: argparse.Namespace, folder: Path, *, seed: int) -> Cell:
    numbers = max(1, round(a.large_mib * (1 << 20) / 4))
    options = ["--model", LARGE, "--rate", a.large_rate, "--duration", a.seconds + 2 * LEAD_S, "--seed", seed]
    return await generated(stack.url, [*options, "--binary", "--dim", numbers, "--warmup", 0], folder / "large.json")


async def generated(url: str, options: Sequence[Any], file: Path) -> Cell:
    """What `tailrace bench` measures with these options, in a process of its own; `file` is for its figures.

    Raises RuntimeError with what it says when it could not measure.
    """
    words = [sys.executable, "-m", "tailrace", "bench", url, *map(str, options), "--json", str(file)]
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    results = await asyncio.to_thread(_taken, file)  # its status is 1 too when some requests failed
    if results is None:
        raise RuntimeError(f"tailrace bench ended with {process.returncode}: {said.decode('utf-8', 'replace')[-2000:]}")
    return cells.of_results(results)


def _taken(file: Path) -> dict[str, Any] | None:
    """The results in a file, which is then gone; None without one."""
    if not file.exists():
        return None
    results: dict[str, Any] = json.loads(file.read_bytes())["results"]
    file.unlink()
    return results


def ratios(found: Sequence[Cell], key: str) -> list[float]:
    """For each round a figure of mlp beside the tensors over the same alone."""
    alone, beside = (cells.of(found, turn=turn, model=SMALL) for turn in (ALONE, BESIDE))
    return [b[key] / a[key] for a, b in zip(alone, beside, strict=True)]


def _print(console: Console, found: Sequence[Cell]) -> None:
    table = cells.table("traffic", "requests/s", "p50 ms", "p99 ms", "sent late p99 ms", "errors")
    for title, wanted in {
        "mlp alone": {"turn": ALONE, "model": SMALL},
        "mlp beside large tensors": {"turn": BESIDE, "model": SMALL},
        "the large tensors": {"model": LARGE},
    }.items():
        own = cells.of(found, **wanted)
        row = [cells.shown(own, "per_s"), *(cells.spread(own, key) for key in ("p50_ms", "p99_ms"))]
        table.add_row(title, *row, cells.shown(own, "late_p99_ms"), str(cells.total(own, "errors")))
    console.print(table)
    for key, title in (("p50_ms", "p50"), ("p99_ms", "p99")):
        told = [{"ratio": ratio} for ratio in ratios(found, key)]
        console.print(f"mlp's {title} beside large tensors is {cells.spread(told, 'ratio')} times that alone.")
    cells.print_warnings(console, found)


def _shown(c: Cell) -> str:
    text = f"{c['model']} {c['turn']}: {c['per_s']:.1f}/s, p50 {c['p50_ms']:.2f} ms, p99 {c['p99_ms']:.2f} ms"
    return text + (f", {c['errors']} ERRORS" if c["errors"] else "")


if __name__ == "__main__":
    main()
