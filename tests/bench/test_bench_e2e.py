"""`tailrace bench` against a real `tailrace up`."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import e2e_stack
from e2e.e2e_stack import Process, Stack, eventually, run_tailrace

from shared.events import Req


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker with the small model."""
    models = {"mlp": e2e_stack.DEMO_MODELS / "mlp"}
    running = e2e_stack.start_up(e2e_stack.make_repository(tmp_path_factory.mktemp("bench-models"), models))
    yield running
    e2e_stack.stop_all(running)


def bench(stack: Stack, file: Path, *args: str) -> tuple[dict[str, Any], str]:
    """A run that must succeed: its figures, and what it printed."""
    done = run_tailrace("bench", stack.url, "--json", file, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return json.loads(file.read_text()), done.stdout


def test_a_closed_loop_agrees_with_the_servers_own_ledger(stack: Stack, tmp_path: Path) -> None:
    """Every answer has a ledger, which is never longer than what the client saw; the slowest can be explained."""
    told, text = bench(stack, tmp_path / "r.json", "--connections", "4", "--duration", "1", "--warmup", "0.2")
    r = told["results"]
    assert r["ok"] == r["requests"] == r["ledger_ns"]["total"]["count"] > 0
    assert (r["failed"], r["unfinished"], r["models"], r["server"]["name"]) == (0, 0, ["mlp"], "tailrace")
    parts = sum(r["ledger_ns"][name]["mean"] for name in ("queue", "compute", "transfer", "overhead", "outside"))
    late_ns = r["generator"]["late_ns"]["mean"]
    assert parts + late_ns == pytest.approx(r["latency_ns"]["mean"], abs=5_000)
    assert told["settings"]["connections"] == 4
    assert told["about"]["command"].startswith("tailrace bench http://")
    assert "\r" not in text  # no progress where no terminal is
    slowest = r["slowest"][0]["id"]
    assert f"tailrace explain {slowest}" in text
    explained = run_tailrace("explain", slowest, "--log-dir", stack.log_dir, "--json")
    assert json.loads(explained.stdout)["id"] == slowest


def test_what_was_sent_in_an_open_loop_can_be_replayed(stack: Stack, tmp_path: Path) -> None:
    """The same number of requests with the same rows, from the gateway's log."""
    told, _ = bench(
        stack, tmp_path / "a.json", "--rate", "50", "--arrivals", "bursty", "--rows", "3", "--binary",
        "--duration", "1", "--warmup", "0", "--header", "x-request-id: open-1",
    )  # fmt: skip
    sent = told["results"]["requests"] + 1  # and the one that asked whether it works

    # One process writes the log in order, so what ended earlier is there when these are.
    stack.logged(Req, lambda r: r.label == "open-1", count=sent)
    everything = [r for r in stack.records(Req) if r.rows]
    again, _ = bench(stack, tmp_path / "b.json", "--replay", str(stack.log_dir), "--model", "mlp", "--speed", "20")
    assert again["results"]["requests"] == len(everything)
    assert again["results"]["loop"] == "open"
    rows = sum(r.rows for r in everything)
    assert again["results"]["rows_per_s"] * again["results"]["elapsed_s"] == pytest.approx(rows)


def test_ctrl_c_ends_early_and_reports(stack: Stack, tmp_path: Path) -> None:
    """What was measured until then is not lost."""
    before = len(stack.records(Req))
    process = Process("bench", stack.url, "--duration", "600", "--warmup", "0", directory=tmp_path)
    try:
        eventually(lambda: len(stack.records(Req)) > before + 50, within_s=30, what="requests")
        process.signal(signal.SIGINT)
        assert process.wait_ended() == 0, process.text
    finally:
        process.stop()
    assert "broken off, 0 requests had not ended" in process.text
    assert "latency, ms" in process.text


def test_mistakes_are_one_line(stack: Stack) -> None:
    """An unknown model, an unknown version, too many rows."""
    for args, told in (
        (["--model", "nope"], "has no model 'nope'"),
        (["--model", "mlp", "--version", "9"], "has no model 'mlp' version 9"),
        (["--model", "mlp", "--rows", "257"], "has at most 256 rows"),
    ):
        done = run_tailrace("bench", stack.url, *args)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1
        assert told in done.stderr
