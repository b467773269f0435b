"""OpenAI's own client gets embeddings: right ones, in order, counted, and the same whoever shares the batch."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import e2e_stack
import numpy as np
import openai
import pytest

from worker.models import minilm

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
SIMILARITY = {(0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411}
"""Published with the model: https://www.sbert.net/docs/quickstart.html"""
TEXTS = Path(__file__).parents[1] / "data" / "texts.jsonl"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """The client as people create it, but without retries: an error must be seen."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Real texts of many lengths."""
    return [json.loads(line)["text"] for line in TEXTS.read_text().splitlines()]


@pytest.fixture(scope="session")
def tokens() -> minilm.Tokens:
    """The model's own tokeniser."""
    return minilm.load_tokens(minilm.wheel_directory())


def test_openai_client_embeds_one_string_and_is_told_the_tokens(client: openai.OpenAI, tokens: minilm.Tokens) -> None:
    """A vector of length 1, and the usage that the tokeniser counts."""
    reply = client.embeddings.create(model="minilm", input=SENTENCES[0])

    assert reply.model == "minilm"
    assert [entry.index for entry in reply.data] == [0]
    assert len(reply.data[0].embedding) == 384
    assert np.linalg.norm(reply.data[0].embedding) == pytest.approx(1, abs=1e-5)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == len(tokens.encode(SENTENCES[0])[0])


def test_openai_client_gets_the_published_similarities(client: openai.OpenAI) -> None:
    """The three sentences of the model's documentation, to 1e-4."""
    reply = client.embeddings.create(model="minilm", input=SENTENCES)
    vectors = np.array([entry.embedding for entry in reply.data])

    for one, other in itertools.combinations(range(3), 2):
        assert vectors[one] @ vectors[other] == pytest.approx(SIMILARITY[one, other], abs=1e-4)


def test_openai_client_gets_the_same_numbers_as_base64_and_as_floats(client: openai.OpenAI) -> None:
    """base64 is what the client asks for by itself."""
    default = client.embeddings.create(model="minilm", input=SENTENCES)
    floats = client.embeddings.create(model="minilm", input=SENTENCES, encoding_format="float")
    base64 = client.embeddings.create(model="minilm", input=SENTENCES, encoding_format="base64")

    assert isinstance(base64.data[0].embedding, str)
    for a, b in zip(default.data, floats.data, strict=True):
        np.testing.assert_allclose(a.embedding, b.embedding, atol=1e-6, rtol=0)


def test_openai_clients_hundred_texts_are_split_and_come_back_in_order(
    client: openai.OpenAI, texts: list[str], tokens: minilm.Tokens
) -> None:
    """More texts than a batch of the model holds (64): each place has its own text's vector, tokens add up."""
    hundred = texts[:100]

    together = client.embeddings.create(model="minilm", input=hundred)
    alone = {i: client.embeddings.create(model="minilm", input=hundred[i]) for i in (0, 63, 64, 99)}

    assert [entry.index for entry in together.data] == list(range(100))
    assert together.usage.prompt_tokens == sum(len(tokens.encode(text)[0]) for text in hundred)
    for i, reply in alone.items():
        np.testing.assert_allclose(together.data[i].embedding, reply.data[0].embedding, atol=1e-6, rtol=0)


async def test_an_embedding_is_the_same_alone_and_among_forty_neighbours(url: str, texts: list[str]) -> None:
    """Batching with others changes nothing, to 1e-6."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:

        async def embed(text: str) -> np.ndarray:
            reply = await client.embeddings.create(model="minilm", input=text)
            return np.array(reply.data[0].embedding)

        alone = await embed(SENTENCES[0])
        neighbours = [embed(text) for text in texts[:40]]
        among, *_ = await asyncio.gather(embed(SENTENCES[0]), *neighbours)

    np.testing.assert_allclose(among, alone, atol=1e-6, rtol=0)


def test_a_text_beyond_256_tokens_is_cut_and_the_reply_says_so(url: str) -> None:
    """The reply's parameters tell how many tokens were read and how many texts were cut."""
    body = e2e_stack.infer_json("text", "BYTES", [2, 1], ["word " * 1000, "short"])

    answer = e2e_stack.ask(url, "/v2/models/minilm/infer", body=body)

    assert answer.status == 200
    assert answer.json["parameters"]["truncated"] == 1
    assert answer.json["parameters"]["tokens"] == 256 + 3


def test_openai_client_sees_typed_errors_with_a_text_to_act_on(client: openai.OpenAI) -> None:
    """404 and 400 become the client's own exceptions, with message, type and code."""
    with pytest.raises(openai.NotFoundError, match="unknown model 'ada'") as unknown:
        client.embeddings.create(model="ada", input="x")
    with pytest.raises(openai.BadRequestError, match="empty") as empty:
        client.embeddings.create(model="minilm", input=[])
    with pytest.raises(openai.BadRequestError, match="no embedding model"):
        client.embeddings.create(model="mlp", input="x")
    with pytest.raises(openai.BadRequestError, match="token ids"):
        client.embeddings.create(model="minilm", input=[[1, 2, 3]])
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="minilm", input="x", dimensions=64)

    assert unknown.value.code == "not_found"
    assert empty.value.type == "invalid_request_error"
    assert empty.value.request_id


def test_openai_client_lists_the_embedding_models(client: openai.OpenAI) -> None:
    """Only what the embeddings route can be asked for."""
    assert [model.id for model in client.models.list()] == ["minilm"]
