"""minilm with real lengths: a closed loop and open ones at tailrace, beside the bare model, in turns. See README.md.

The bare model runs sorted batches on all cores, with the numbers of processes, threads and texts that are best for it,
found at the beginning. Since a window of time meets only some texts, what is compared is tokens a second: of the bare
model by its own count, of tailrace by the events of its workers.
"""

import argparse
import asyncio
import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import uvloop
from rich.console import Console

from bench import bare, bare_cells, cells, patience
from bench.bare_cells import ONE, Way
from bench.bare_protocol import Setup
from bench.cells import Cell
from bench.measure import Settings, measure
from bench.stack import DTYPES, MINILM, ROOT, Serving, repository, serving, workers_of
from forensics.load import Logs
from forensics.report import print_to, segment_table
from forensics.requests import rows
from forensics.store import Store, open_store
from shared import humanlog
from shared.events import Req
from shared.vitals import usable_cores

TEXTS = ROOT / "tests/data/texts.jsonl"
MODEL = "minilm"
CLOSED, OPEN, BARE, ALONE = "closed", "open", "bare", "bare, one by one"
BARE_BATCHES = (4, 8, 16, 32)
_GOLDEN = (5**0.5 - 1) / 2


class Bare(NamedTuple):
    """The crew that runs the bare model, the model's label there, and the way and batch size that suit it best."""

    crew: bare.Crew
    label: str
    way: Way
    batch: int


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=TEXTS, help='lines of {"text": "..."}')
    parser.add_argument("--connections", type=int, default=64, help="of the closed loop")
    parser.add_argument(
        "--rates", nargs="*", default=["20", "45"], help="of open loops: texts a second, or N%% of the closed loop's"
    )
    parser.add_argument("--rounds", type=int, default=3, help="each round measures every cell once")
    parser.add_argument("--seconds", type=float, default=20, help="length of one measurement")
    parser.add_argument("--warmup", type=float, default=10, help="seconds before the first round, to learn the model")
    parser.add_argument("--workers", type=workers_of, default="auto", help="a number, or auto")
    parser.add_argument("--threads", type=int, default=0, help="torch threads of a worker; 0: what is usual")
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of minilm's weights")
    parser.add_argument(
        "--bare-batches", type=int, nargs="+", default=BARE_BATCHES, help="among which the best is taken"
    )
    parser.add_argument("--out", type=Path, help="where to write the JSON; default: nowhere")
    arguments = parser.parse_args()
    humanlog.configure("bench", level="warning")
    uvloop.run(_measure(arguments))


async def _measure(a: argparse.Namespace) -> None:
    console = cells.console()
    found: list[Cell] = []
    with TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        models = repository(folder / "models", {MODEL: MINILM}, dtype=a.dtype)
        setup = Setup(repository=str(models), models=(MODEL,), data=str(a.data.absolute()), order="sorted")
        async with bare.Crew(setup, cores=usable_cores()) as crew:
            best = await _best(crew, a.bare_batches)
            console.print(f"The bare model is best as {best.way} (workers x threads) with batches of {best.batch}.")
            async with serving(
                folder / "data", models, workers=a.workers, threads=a.threads, gateways=a.gateways
            ) as stack:
                await load(stack, a.data, connections=a.connections, seconds=a.warmup)
                for number in range(a.rounds):
                    for cell in await _round(stack, best, a, number):
                        found.append(cell | {"round": number})
                        console.print(f"round {number + 1}: {_shown(found[-1])}", markup=False)
                told = stack.told()
        add_tokens(found, stack.log_dir)
        waited = patience.of_logs([stack.log_dir], MODEL, patience.patience_ns_of(models / MODEL))
        logs = Logs.load([stack.log_dir], [Req])
    _print(console, found, best)
    console.print(str(waited), markup=False)
    console.print("Where the time of tailrace's requests went, all cells together:")
    print_to(console, segment_table(rows(logs)))
    told |= {"dtype": a.dtype, "data": a.data, "seconds": a.seconds, "rounds": a.rounds}
    told["bare"] = {"workers": best.way.workers, "threads": best.way.threads, "batch": best.batch}
    cells.finish(console, a.out, "bench.texts", told, found, patience=waited.to_json())


async def _best(crew: bare.Crew, batches: list[int]) -> Bare:
    """Where the bare model is quickest: measured once, since all that follows measures it again."""
    [model] = crew.models
    sizes = bare.batch_sizes(model, batches)
    found = await bare.measure(crew, model.label, bare_cells.ways(crew.cores), sizes, rounds=1, length_s=1.0)
    top = bare_cells.best_cell(found)
    return Bare(crew, model.label, top.way, top.batch)


async def _round(stack: Serving, best: Bare, a: argparse.Namespace, number: int) -> list[Cell]:
    """Everything once: the bare model, then the closed loop, the open ones, and the bare model text by text."""
    begin = number * _GOLDEN % 1.0
    found = [await _bare_cell(best, BARE, best.way, best.batch, a.seconds, begin)]
    closed = await load(stack, a.data, connections=a.connections, seconds=a.seconds)
    found.append({"what": CLOSED, "connections": a.connections} | closed)
    for text in a.rates:
        rate = rate_of(text, closed["per_s"])
        cell = await load(stack, a.data, rate=rate, seconds=a.seconds, seed=1 + number)
        found.append({"what": f"{OPEN}, {text}" + ("" if text.endswith("%") else "/s"), "rate_per_s": rate} | cell)
    found.append(await _bare_cell(best, ALONE, ONE, 1, a.seconds / 2, begin))
    return found


async def load(
    stack: Serving, data: Path, *, seconds: float, connections: int = 0, rate: float = 0.0, seed: int = 1
) -> Cell:
    """One loop of texts at tailrace: closed with so many connections, or open with that rate. Raises CannotMeasure."""
    settings = Settings(
        url=stack.url, model=MODEL, connections=connections, duration_s=seconds, rate_per_s=rate, data=data, seed=seed
    )
    results = await measure(settings, asyncio.Event(), lambda progress, tally: contextlib.nullcontext())
    window = {"from_ns": results.tally.from_ns, "until_ns": results.tally.from_ns + int(seconds * 1e9)}
    return cells.of_results(results.to_json()) | window


async def _bare_cell(best: Bare, what: str, way: Way, batch: int, seconds: float, begin: float) -> Cell:
    sample = await best.crew.sample(best.label, way, batch, length_s=seconds, begin=begin)
    one = bare_cells.Cell(way, batch, (sample,))
    return {
        "what": what,
        "per_s": sample.per_s,
        "tokens_per_s": sample.units_per_s,
        "p50_ms": one.pass_ms(50),
        "p99_ms": one.pass_ms(99),
        "cores": sample.cores,
    }


def rate_of(text: str, closed_per_s: float) -> float:
    """A rate a second as it is told: a number, or with % a share of what the closed loop did. Raises ValueError."""
    return float(text.removesuffix("%")) / 100 * closed_per_s if text.endswith("%") else float(text)


def add_tokens(found: list[Cell], log_dir: Path) -> None:
    """Complete the cells of tailrace by what its workers computed in their windows."""
    with open_store([log_dir]) as store:
        for cell in found:
            if "from_ns" in cell:
                cell["tokens_per_s"] = _tokens(store, cell) / ((cell["until_ns"] - cell["from_ns"]) / 1e9)


def _tokens(store: Store, cell: Cell) -> int:
    sql = "SELECT coalesce(sum(tokens_useful), 0)::BIGINT FROM batches WHERE model = ? AND w7 >= ? AND w7 < ?"
    return int(store.value(sql, [MODEL, cell["from_ns"], cell["until_ns"]]))


def _print(console: Console, found: list[Cell], best: Bare) -> None:
    table = cells.table("", "texts/s", "tokens/s", "p50 ms", "p99 ms", "errors")
    for what in dict.fromkeys(c["what"] for c in found):
        own = cells.of(found, what=what)
        errors = "" if what in (BARE, ALONE) else str(cells.total(own, "errors"))
        table.add_row(
            what,
            cells.spread(own, "per_s"), cells.spread(own, "tokens_per_s"),
            cells.shown(own, "p50_ms"), cells.shown(own, "p99_ms"), errors,
        )  # fmt: skip
    console.print(table)
    console.print(
        "p50 and p99 of the bare model are of its passes. Of tailrace's open loops from the intended instant."
    )
    share = cells.median(share_of_bare(found), "share")
    console.print(
        f"In the closed loop tailrace did {share:.0%} of the bare model's tokens a second (median of the rounds)."
    )
    cells.print_warnings(console, found)


def share_of_bare(found: list[Cell]) -> list[Cell]:
    """For each round the closed loop's tokens a second over those of the bare model in the same round."""
    return [
        {"share": closed["tokens_per_s"] / floor["tokens_per_s"]}
        for closed, floor in zip(cells.of(found, what=CLOSED), cells.of(found, what=BARE), strict=True)
    ]


def _shown(c: Cell) -> str:
    text = f"{c['what']}: {c['per_s']:.1f} texts/s, p50 {c['p50_ms']:.1f} ms, p99 {c['p99_ms']:.1f} ms"
    return text + (f", {c['errors']} ERRORS" if c.get("errors") else "")


if __name__ == "__main__":
    main()
