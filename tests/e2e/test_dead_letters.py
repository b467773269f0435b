"""`tailrace dlq`: what was given up can be read, run again and thrown away, by whoever has only the command line."""

import json
from collections.abc import Iterator

import e2e_stack
import pytest
from e2e_stack import Stack

from shared.keys import Queue

STUBBORN, NEVER = 1007, 1004
TEMPER = Queue("temper", "1")


@pytest.fixture(scope="module")
def temper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker with the model `temper`, which counts how often it was asked."""
    models = {"temper": e2e_stack.OWN_MODELS / "temper"}
    running = e2e_stack.start_up(e2e_stack.make_repository(tmp_path_factory.mktemp("temper"), models))
    yield running
    e2e_stack.stop_all(running)


def dlq(stack: Stack, *args: str) -> str:
    """What `tailrace dlq` says; it must succeed."""
    command = e2e_stack.run_tailrace("dlq", *args, env={"TAILRACE_REDIS": stack.redis_url})
    assert command.returncode == 0, command.stderr
    return command.stdout


def letters(stack: Stack) -> list[dict[str, object]]:
    """The dead letters as the command lists them for machines."""
    return [json.loads(line) for line in dlq(stack, "list", "--json").splitlines()]


def ask(stack: Stack, n: int) -> e2e_stack.Answer:
    """Ask `temper` for one number."""
    body = e2e_stack.infer_json("n", "INT64", [1, 1], [n])
    return e2e_stack.ask(stack.url, "/v2/models/temper/infer", body=body)


def test_a_dead_letter_is_listed_shown_and_run_again(temper: Stack) -> None:
    """It failed three times; at the fourth, which an operator asks for, it has its result, under its old id."""
    failed = ask(temper, STUBBORN)
    assert failed.status == 500
    request_id = failed.headers["x-tailrace-request-id"]

    (letter,) = [x for x in letters(temper) if x["id"] == request_id]
    assert (letter["model"], letter["why"], letter["attempts"], letter["errors"]) == ("temper", "errors", 3, 3)
    assert "try 3 was too early" in str(letter["error"])
    assert letter["trace_id"] == failed.headers["traceparent"].split("-")[1]
    assert request_id in dlq(temper, "list")

    shown = dlq(temper, "show", request_id)
    assert f"n INT64 [1, 1]: [{STUBBORN}]" in shown
    body = json.loads(dlq(temper, "show", "--body", request_id))
    assert body["inputs"] == [{"name": "n", "shape": [1, 1], "datatype": "INT64", "data": [STUBBORN]}]

    assert "would run" in dlq(temper, "replay", request_id)
    assert [x["id"] for x in letters(temper)] == [request_id], "a dry run changes nothing"
    told = dlq(temper, "replay", "--yes", request_id)
    path = told.strip().rpartition("result: ")[2]
    done = e2e_stack.eventually(
        lambda: (a := e2e_stack.ask(temper.url, path)).status != 202 and a, within_s=10, what="the job ends"
    )
    assert done.json["outputs"][0]["data"] == [3.0 * STUBBORN + 1]
    assert letters(temper) == []


def test_dead_letters_are_thrown_away_only_on_demand(temper: Stack) -> None:
    """purge names what it would throw away, and does it with --yes; unknown ids are an error."""
    request_id = ask(temper, NEVER).headers["x-tailrace-request-id"]
    assert "would throw away" in dlq(temper, "purge", "--all", "--model", "temper")
    assert len(letters(temper)) == 1
    assert request_id in dlq(temper, "purge", "--all", "--why", "errors", "--yes")
    assert "no dead letters" in dlq(temper, "list")
    unknown = e2e_stack.run_tailrace("dlq", "show", "nobody", env={"TAILRACE_REDIS": temper.redis_url})
    assert unknown.returncode == 1
    assert "no dead letter of nobody" in unknown.stderr
    nothing = e2e_stack.run_tailrace("dlq", "purge", env={"TAILRACE_REDIS": temper.redis_url})
    assert nothing.returncode == 2
