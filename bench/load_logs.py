"""How long a million requests take to load and rebuild, and how much memory: `python -m bench.load_logs --out FILE`.

The logs are made (`make_logs.py`), then the commands run on them as a user runs them, each a process of its own, so the
memory told is the most that process ever held. The first query adds up every segment of every request.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.about import about
from bench.make_logs import Fleet, Plan
from forensics.segments_sql import SEGMENTS
from shared import clock

REBUILD = (
    "SELECT count(*) AS requests, count_if(e2e_ns <> "
    + " + ".join(f"{name}_ns" for name in SEGMENTS)
    + ") AS wrong_sums FROM requests"
)
PERCENTILES = (
    "SELECT model, count(*) AS requests, quantile_disc(e2e_ns, [0.5, 0.99]) AS ns FROM requests GROUP BY model"
)


def main() -> None:
    """Make the logs, run the commands, print and write what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--logs", type=Path, help="logs of make_logs.py; default: made anew, and thrown away")
    parser.add_argument("--out", type=Path, help="where to write the JSON; default: nowhere")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-") as folder:
        logs, archive = a.logs or Path(folder, "logs"), Path(folder, "archive")
        if a.logs is None:
            Fleet(Plan(requests=a.requests, per_s=3_000.0), logs).run()
        steps = [run(name, *words) for name, *words in _steps(logs, archive)]
        sizes = {"logs_bytes": _bytes(logs), "archive_bytes": _bytes(archive)}
    for step in steps:
        print("{name:24} {wall_s:6.1f} s  {cpu_s:6.1f} s of CPU  {rss_mb:5.0f} MB".format(**step))
    print(sizes)
    if a.out:
        result = about(" ".join(["python -m bench.load_logs", *sys.argv[1:]]), ("duckdb",))
        a.out.write_text(json.dumps(result | sizes | {"steps": steps}, indent=1) + "\n")


def _steps(logs: Path, archive: Path) -> Iterator[tuple[str, ...]]:
    yield "load, rebuild all", "sql", str(logs), REBUILD
    yield "diagnose", "diagnose", str(logs), "--json"
    yield "check", "logs", "check", str(logs)
    yield "compact", "logs", "compact", str(logs), "-o", str(archive)
    yield "archive: rebuild all", "sql", str(archive), REBUILD
    yield "archive: percentiles", "sql", str(archive), PERCENTILES
    yield "archive: diagnose", "diagnose", str(archive), "--json"
    yield "archive: check", "logs", "check", str(archive)


def run(name: str, *words: str) -> dict[str, Any]:
    """Run a command of ours; returns its time, its CPU time and the most memory it held, and what it printed."""
    begun_ns, load = clock.now_ns(), os.getloadavg()[0]
    with subprocess.Popen([sys.executable, "-m", "tailrace", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"tailrace {' '.join(words)} ended with {process.returncode}")
    return {
        "name": name,
        "wall_s": round((clock.now_ns() - begun_ns) / 1e9, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "rss_mb": round(usage.ru_maxrss / 1024),
        "load_before": load,
        "printed": printed.splitlines(),
    }


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


if __name__ == "__main__":
    main()
