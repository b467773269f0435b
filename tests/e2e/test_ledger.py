"""Real texts from many clients at once: everybody is answered, and every nanosecond of everybody is accounted for."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import e2e_stack
import numpy as np
import pytest
from e2e_stack import Stack

from forensics.load import Logs
from forensics.requests import RequestRow, rows
from shared.events import Batch, Req, Wreq

TEXTS = Path(__file__).parents[1] / "data" / "texts.jsonl"
CLIENTS = 64
LABEL = "ledger-"


@dataclass(frozen=True)
class Run:
    """What the clients saw, and a copy of the logs right after."""

    texts: Sequence[str]
    statuses: Sequence[int]
    vectors: np.ndarray
    ids: Sequence[str]
    log_dir: Path

    def logs(self) -> Logs:
        return Logs.load([self.log_dir])

    def requests(self, logs: Logs) -> list[Req]:
        """The gateway's records of this run."""
        return [line.record for line in logs.of(Req) if line.record.label.startswith(LABEL)]

    def ledger(self, logs: Logs) -> list[RequestRow]:
        """The accounts of this run."""
        return [row for row in rows(logs) if row.label.startswith(LABEL)]


@pytest.fixture(scope="module")
def run(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """300 real texts, embedded by 64 clients that send one after another."""
    texts = [json.loads(line)["text"] for line in TEXTS.read_text().splitlines()]
    answers = asyncio.run(embed_all(stack.url, texts))
    stack.logged(Req, lambda r: r.label.startswith(LABEL), count=len(texts))
    ids = {id for _, _, id in answers}
    stack.logged(Wreq, lambda w: w.id in ids, count=len(texts))
    copy = tmp_path_factory.mktemp("ledger") / "logs"
    shutil.copytree(stack.log_dir, copy)
    vectors = np.array([vector for _, vector, _ in answers], dtype=np.float32)
    return Run(texts, [status for status, _, _ in answers], vectors, [id for _, _, id in answers], copy)


async def embed_all(url: str, texts: Sequence[str]) -> list[tuple[int, list[float], str]]:
    """Status, vector and request id of each text."""
    answers: list[tuple[int, list[float], str]] = [(0, [], "")] * len(texts)
    todo = iter(range(len(texts)))

    async with e2e_stack.clients() as session:

        async def one_client() -> None:
            for i in todo:
                body = e2e_stack.infer_json("text", "BYTES", [1, 1], [texts[i]])
                headers = {"x-request-id": f"{LABEL}{i}"}
                async with session.post(f"{url}/v2/models/minilm/infer", data=body, headers=headers) as response:
                    answer = await response.json()
                    vector = answer["outputs"][0]["data"] if response.status == 200 else [0.0] * 384
                    answers[i] = (response.status, vector, response.headers["x-tailrace-request-id"])

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(one_client())
    return answers


def explain(run: Run, name: str, log_dir: Path) -> dict:
    """What `tailrace explain --json` says."""
    explained = e2e_stack.run_tailrace("explain", name, "--json", "--log-dir", log_dir)
    assert explained.returncode == 0, explained.stderr
    (line,) = explained.stdout.splitlines()
    return json.loads(line)


def test_every_text_of_a_crowd_is_answered_once(run: Run) -> None:
    """All 200; each has one record at the gateway and one at the worker, and nobody is answered twice."""
    assert set(run.statuses) == {200}
    assert len(set(run.ids)) == len(run.texts)
    logs = run.logs()
    assert sorted(r.id for r in run.requests(logs)) == sorted(run.ids)
    done = [line.record.id for line in logs.of(Wreq) if line.record.id in set(run.ids)]
    assert sorted(done) == sorted(run.ids)
    assert {line.record.outcome for line in logs.of(Wreq) if line.record.id in set(run.ids)} == {"DONE"}


def test_every_text_of_a_crowd_gets_its_own_vector(run: Run, stack: Stack) -> None:
    """Spot checks: what a text got in the crowd is what it gets alone, to 1e-6."""
    for i in range(0, len(run.texts), 30):
        alone, *_ = asyncio.run(embed_all(stack.url, [run.texts[i]]))
        np.testing.assert_allclose(run.vectors[i], alone[1], atol=1e-6, rtol=0)


def test_a_crowd_is_batched(run: Run) -> None:
    """The mean batch has more than one request, and every batch is within the model's limit."""
    logs = run.logs()
    ids = set(run.ids)
    batches = [line.record for line in logs.of(Batch) if ids & set(line.record.members)]

    assert fmean(batch.requests for batch in batches) > 1
    assert max(batch.rows for batch in batches) <= 64
    assert sum(len(ids & set(batch.members)) for batch in batches) == len(ids)


def test_the_segments_of_every_request_sum_to_its_time_to_the_nanosecond(run: Run) -> None:
    """For all of them: the sum of the segments is the last stamp less the first, exactly; none is negative."""
    logs = run.logs()
    took_ns = {r.id: r.g8 - r.g0 for r in run.requests(logs)}
    ledger = run.ledger(logs)

    assert len(ledger) == len(run.texts)
    for row in ledger:
        assert sum(segment.ns for segment in row.segments) == row.e2e_ns == took_ns[row.id]
        assert all(segment.ns > 0 for segment in row.segments), row
        assert sum(row.classes.values()) == row.e2e_ns


def test_at_most_one_percent_of_all_time_is_unexplained(run: Run) -> None:
    """On one host the clocks agree, so nothing should be."""
    ledger = run.ledger(run.logs())
    unexplained_ns = sum(s.ns for row in ledger for s in row.segments if s.name == "unexplained")

    assert unexplained_ns <= 0.01 * sum(row.e2e_ns for row in ledger)


def test_explain_accounts_for_a_request_as_json_and_as_text(run: Run) -> None:
    """By its id (complaint 7): segments, classes, batch and mates; as text a waterfall that sums exactly."""
    request_id = run.ids[len(run.ids) // 2]

    told = explain(run, request_id, run.log_dir)
    text = e2e_stack.run_tailrace("explain", request_id, "--log-dir", run.log_dir).stdout

    assert told["id"] == request_id
    assert told["complete"] is True
    assert sum(segment["ns"] for segment in told["segments"]) == told["e2e_ns"]
    assert sum(told["classes"].values()) == told["e2e_ns"]
    assert told["batch"]["requests"] == len(told["batch"]["mates"]) + 1
    assert request_id in text
    assert "= e2e, exactly" in text
    assert "forward" in text and "#" in text


def test_what_a_request_waited_for_is_told_to_the_nanosecond(run: Run) -> None:
    """The pieces of what the worker did meanwhile sum to the waiting, and nearly all of it is known."""
    logs = run.logs()
    slowest = max(run.ledger(logs), key=lambda row: row.e2e_ns)

    told = explain(run, slowest.id, run.log_dir)

    waited_ns = sum(s["ns"] for s in told["segments"] if s["name"] in ("stream_wait", "batch_wait"))
    assert sum(piece["ns"] for piece in told["waited_behind"]) == waited_ns > 0


def test_requests_lists_the_slowest_first(run: Run) -> None:
    """`requests --slowest 5` shows the five slowest of the logs, as a table and as JSON."""
    as_json = e2e_stack.run_tailrace("requests", "--slowest", "5", "--json", "--log-dir", run.log_dir)
    as_text = e2e_stack.run_tailrace("requests", "--slowest", "5", "--log-dir", run.log_dir)

    listed = [json.loads(line) for line in as_json.stdout.splitlines()]
    slowest = sorted((row.e2e_ns for row in rows(run.logs())), reverse=True)[:5]
    assert [one["e2e_ns"] for one in listed] == slowest
    assert len(as_text.stdout.splitlines()) == 6
    assert all(one["id"][-8:] in as_text.stdout for one in listed)


def test_the_gateways_log_alone_has_the_whole_timeline(run: Run, tmp_path: Path) -> None:
    """With every worker's log gone, the segments are the same; what is missing is said."""
    request_id = run.ids[7]
    whole = explain(run, request_id, run.log_dir)
    shutil.copytree(run.log_dir, tmp_path / "logs", ignore=shutil.ignore_patterns("worker-*"))

    told = explain(run, request_id, tmp_path / "logs")

    assert told["segments"] == whole["segments"]
    assert told["e2e_ns"] == whole["e2e_ns"]
    assert told["complete"] is False
    assert told["notes"]


def test_the_workers_log_alone_has_the_workers_part(run: Run, tmp_path: Path) -> None:
    """With the gateway's log gone, the worker's stamps still tell of queue, batch and computation."""
    request_id = run.ids[7]
    whole = {s["name"]: s["ns"] for s in explain(run, request_id, run.log_dir)["segments"]}
    shutil.copytree(run.log_dir, tmp_path / "logs", ignore=shutil.ignore_patterns("gateway-*"))

    told = explain(run, request_id, tmp_path / "logs")

    parts = {s["name"]: s["ns"] for s in told["segments"]}
    assert told["partial"] is True
    assert told["status"] is None
    assert told["notes"]
    assert sum(parts.values()) == told["e2e_ns"]
    for name in ("pull", "batch_wait", "dispatch", "collate", "forward", "post"):
        assert parts.get(name, 0) == whole.get(name, 0)
