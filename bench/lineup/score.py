"""Score a recorded set: each log is diagnosed, each verdict judged, the baselines beside it, all in one table."""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.lineup import baselines, labels
from bench.lineup.ablate import ablate
from bench.lineup.adapter import Diagnose, NoVerdict, Verdict
from bench.lineup.judge import CONFIDENT, Judgement, by_cause, figures, judge
from bench.lineup.labels import Labels
from forensics.segments_sql import SEGMENTS
from forensics.store import Store, open_store

TAIL = 0.99
OURS = "tailrace diagnose"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the log's views say by themselves: how far the segments are off the whole, at most, and how much of the
    tail's time they leave unexplained."""

    additivity_ns: int
    unexplained_share: float


@dataclass(frozen=True, slots=True)
class Scores:
    """The judgements of each way to diagnose, by its name, and the facts of each run."""

    judgements: Mapping[str, Sequence[Judgement]]
    facts: Mapping[str, Facts]
    left_out: Sequence[str]
    failed: Mapping[str, str]


def facts_of(store: Store) -> Facts:
    """Ask the views."""
    total = " + ".join(f"{name}_ns" for name in SEGMENTS)
    row = store.rows(
        f"WITH r AS (SELECT *, {total} AS total_ns FROM requests WHERE route = 'infer'),"
        f" edge AS (SELECT quantile_cont(e2e_ns, {TAIL}) AS ns FROM r)"
        " SELECT max(abs(total_ns - e2e_ns)), coalesce(sum(unexplained_ns) FILTER (e2e_ns >= ns)"
        " / nullif(sum(e2e_ns) FILTER (e2e_ns >= ns), 0), 0) FROM r, edge"
    )[0]
    return Facts(int(row[0] or 0), float(row[1] or 0.0))


def measured_deltas(found: Iterable[Labels]) -> dict[str, float]:
    """By run: how much its fault raised p99, ms, against a run of the same traffic in which nothing happened."""
    calm = {}
    for one in found:
        if one.twin or one.scenario == "clean_steady":
            calm[one.pair] = one.impact["p99"]["during_ms"]
    return {
        one.run: one.impact["p99"]["during_ms"] - calm[one.pair]
        for one in found
        if one.is_fault and one.pair in calm and not one.twin
    }


def score(
    directory: Path,
    diagnose: Diagnose | None,
    *,
    with_flagged: bool = False,
    confident: float = CONFIDENT,
    only: Sequence[str] = (),
    without: Collection[str] = (),
    procs: Collection[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Scores:
    """Score the set in `directory`. Without `diagnose`, only the baselines. Runs in which others used the machine are
    left out unless `with_flagged`; `only`: causes, or ids of runs. `without` types of record, and of some kinds of
    process only (`procs`): what is diagnosed is then a copy of the log with less in it."""
    everything = labels.read_all(directory)
    deltas = measured_deltas(everything)
    wanted = [one for one in everything if not one.twin and (not only or one.cause in only or one.run in only)]
    kept = [one for one in wanted if with_flagged or not one.flags]
    rules: dict[str, baselines.Rule] = {"B0 majority": baselines.majority(kept), **baselines.RULES}
    judgements: dict[str, list[Judgement]] = {name: [] for name in ((OURS, *rules) if diagnose else rules)}
    facts: dict[str, Facts] = {}
    failed: dict[str, str] = {}
    for number, truth in enumerate(kept, 1):
        with _less(directory / "logs" / truth.run, without, procs) as logs:
            with open_store([logs]) as store:
                facts[truth.run] = facts_of(store)
                verdicts = {name: rule(store) for name, rule in rules.items()}
            if diagnose:
                verdicts[OURS] = Verdict()
                try:
                    verdicts[OURS] = diagnose(logs)
                except NoVerdict as e:
                    failed[truth.run] = str(e)
        for name, verdict in verdicts.items():
            if name == OURS and verdict.unexplained_share is None:
                verdict = replace(verdict, unexplained_share=facts[truth.run].unexplained_share)
            judgements[name].append(judge(truth, verdict, measured_delta_ms=deltas.get(truth.run), confident=confident))
        if diagnose:
            last = judgements[OURS][-1]
            say(f"[{number}/{len(kept)}] {truth.run} {truth.scenario}: {last.named or 'nothing'} {last.confidence:.2f}")
    left_out = [f"{one.run} {one.scenario}: {'; '.join(one.flags)}" for one in wanted if one not in kept]
    return Scores(judgements, facts, left_out, failed)


@contextlib.contextmanager
def _less(logs: Path, without: Collection[str], procs: Collection[str]) -> Iterator[Path]:
    """The log, or a copy with less in it."""
    if not without and not procs:
        yield logs
        return
    with TemporaryDirectory(prefix="lineup-") as folder:
        ablate(logs, Path(folder) / logs.name, without=without, procs=procs)
        yield Path(folder) / logs.name


def to_json(scores: Scores) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "runs": len(scores.facts),
        "left_out": list(scores.left_out),
        "failed": dict(scores.failed),
        "additivity_ns_max": max((f.additivity_ns for f in scores.facts.values()), default=None),
        "table": {name: figures(own) for name, own in scores.judgements.items()},
        "by_cause": {name: by_cause(own) for name, own in scores.judgements.items()},
        "judgements": {name: [asdict(j) for j in own] for name, own in scores.judgements.items()},
    }


_ROWS = (
    ("precision@1", "precision_at_1"), ("precision@3", "precision_at_3"), ("family@1", "family_at_1"),
    ("segment@1", "segment_at_1"), ("culprit@1", "culprit_at_1"), ("coverage", "coverage"),
    ("precision of answered", "precision_of_answered"), ("change within 2 s", "change_within_2_s"),
    ("false alarms on clean runs", "false_alarms"), ("decoys blamed", "decoys_blamed"),
)  # fmt: skip


def to_markdown(told: Mapping[str, Any]) -> str:
    """The tables for people, from `to_json`'s value."""
    table: Mapping[str, Any] = told["table"]
    lines = [f"{told['runs']} runs; segments are off their sum by at most {told['additivity_ns_max']} ns.", ""]
    lines += [f"| | {' | '.join(table)} |", f"|---|{'---|' * len(table)}"]
    for title, key in _ROWS:
        lines.append(f"| {title} | {' | '.join(_share(own[key]) for own in table.values())} |")
    lines.append(
        f"| change-time error, s: median, p90 | {' | '.join(_pair(o['change_error_s']) for o in table.values())} |"
    )
    for title, key in (("error of the predicted Δp99, median", "delta_p99_error"),
                       ("unexplained share of the tail, median", "unexplained_share")):  # fmt: skip
        cells = (_number(own[key]["median"]) for own in table.values())
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines.append(f"| Brier | {' | '.join(_number(own['brier']) for own in table.values())} |")
    name, causes = next(iter(told["by_cause"].items()))
    lines += ["", f"By cause, {name}:", "", "| cause | right | of | instead |", "|---|---|---|---|"]
    for cause, row in causes.items():
        instead = ", ".join(f"{count} {what}" for what, count in sorted(row["instead"].items()))
        lines.append(f"| {cause} | {row['right']} | {row['runs']} | {instead} |")
    if told["left_out"]:
        lines += ["", f"Left out, by the rules for busy machines: {len(told['left_out'])} runs."]
    if told["failed"]:
        lines += ["", f"No verdict: {len(told['failed'])} runs."]
    return "\n".join(lines) + "\n"


def write(told: Mapping[str, Any], out: Path) -> None:
    """OUT.json and OUT.md."""
    with contextlib.suppress(FileExistsError):
        out.parent.mkdir(parents=True)
    out.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
    out.with_suffix(".md").write_text(to_markdown(told))


def _share(told: Mapping[str, Any]) -> str:
    if told["share"] is None:
        return "-"
    low, high = told["wilson95"]
    return f"{told['share']:.2f} ({low:.2f} to {high:.2f}) of {told['of']}"


def _pair(told: Mapping[str, Any]) -> str:
    return "-" if told["median"] is None else f"{told['median']:.2f}, {told['p90']:.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
