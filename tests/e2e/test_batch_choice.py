"""Batches are chosen by what passes were measured to take: of a model that has to pad, like goes with like."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import e2e_stack
import pytest
from e2e_stack import Stack

from shared.events import Batch

TEXTS = [json.loads(line)["text"] for line in (Path(__file__).parents[1] / "data/texts.jsonl").read_text().splitlines()]
ROUNDS = 4
WASTE_MAX = 0.15


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker with the model `padded`, which knows nothing yet."""
    models = {"padded": e2e_stack.OWN_MODELS / "padded"}
    learned = tmp_path_factory.mktemp("learned")
    repository = e2e_stack.make_repository(tmp_path_factory.mktemp("padded"), models)
    running = e2e_stack.start_up(repository, env={"TAILRACE_LEARNED_DIR": str(learned)})
    yield running
    e2e_stack.stop_all(running)
    kept = [json.loads(file.read_bytes()) for file in learned.glob("padded-1-*.json")]
    assert [k["form"] for k in kept] == ["padded"], "the next worker need not learn it again"


async def ask_all(url: str, texts: list[str], at_once: int) -> list[list[float]]:
    """Each text in a request of its own; the answers in their order."""
    gate = asyncio.Semaphore(at_once)

    async def one(text: str) -> list[float]:
        body = e2e_stack.infer_json("text", "BYTES", [1, 1], [text])
        async with gate, session.post(f"{url}/v2/models/padded/infer", data=body) as response:
            told = json.loads(await response.text())
            assert response.status == 200, told
            answer: list[float] = told["outputs"][0]["data"]
            return answer

    async with e2e_stack.clients() as session:
        return await asyncio.gather(*map(one, texts))


async def test_a_model_that_pads_wastes_little_under_load(padded: Stack) -> None:
    """Real lengths, 64 clients: less than 15 % of what is computed is padding, and every answer is the lone one's."""
    alone = await ask_all(padded.url, TEXTS, at_once=1)
    for _ in range(ROUNDS):
        together = await ask_all(padded.url, TEXTS, at_once=64)
        for a, b in zip(alone, together, strict=True):
            assert b == pytest.approx(a, abs=1e-5)

    batches = padded.logged(Batch, lambda b: b.predicted > 0, count=1)
    useful, computed = sum(b.tokens_useful for b in batches), sum(b.tokens_padded for b in batches)
    requests = sum(b.requests for b in batches)
    assert requests > len(TEXTS), "the law was known for the most part of the load"
    assert requests > 1.5 * len(batches), "they did share passes"
    assert computed <= (1 + WASTE_MAX) * useful
    assert all(b.w7 > b.w3 for b in batches)
