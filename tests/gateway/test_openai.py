"""OpenAI's own client gets its embeddings, whatever form it asks for."""

import base64
import json
from collections.abc import Iterator

import numpy as np
import openai
import pytest

from gateway.openai import EmbeddingsCall, parse_embeddings, render_embeddings, render_error, to_requests
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.tensors import from_bytes
from shared.wire import ModelDescriptor, ModelTensor, ReplyBody, RequestBody, Tensor

try:  # The client's own HTTP library: httpx2 in newer releases, httpx before.
    import httpx2 as httpx
except ImportError:
    import httpx

MODEL = ModelDescriptor(
    "minilm",
    "1",
    "pytorch",
    2,
    [ModelTensor("text", "BYTES", [1])],
    [ModelTensor("embedding", "FP32", [3])],
    "embedding",
)


def words_of(request: RequestBody) -> list[str]:
    tensor = request.inputs[0]
    return [word.decode() for word in from_bytes(tensor.data, "BYTES", tensor.shape, name="text").ravel()]


def vector(word: str) -> list[float]:
    return [len(word), 0.1, -ord(word[0])]


def answer(request: RequestBody) -> ReplyBody:
    """A worker whose embedding of a word is its length, 0.1 and its first letter."""
    array = np.array([vector(word) for word in words_of(request)], dtype="<f4")
    return ReplyBody([Tensor("embedding", "FP32", list(array.shape), memoryview(array.tobytes()))], {"tokens": 4})


def serve(body: bytes) -> bytes:
    call = parse_embeddings(body)
    return render_embeddings(call, MODEL, [answer(request) for request in to_requests(call, MODEL)])


def body_of(**fields: object) -> bytes:
    return json.dumps({"model": "minilm", "input": "a"} | fields).encode()


def handle(request: httpx.Request) -> httpx.Response:
    try:
        return httpx.Response(200, content=serve(request.content), headers={"content-type": "application/json"})
    except TailraceError as error:
        return httpx.Response(error.kind.status, content=render_error(error))


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    with httpx.Client(transport=httpx.MockTransport(handle)) as transport:
        yield openai.OpenAI(api_key="none", base_url="http://tailrace/v1", http_client=transport, max_retries=0)


@pytest.mark.parametrize("form", [None, "float", "base64"])
def test_openais_client_reads_the_vectors(client: openai.OpenAI, form: str | None) -> None:
    """Five texts in parts of two rows, in order; by default the client asks for base64 and decodes it."""
    words = ["eins", "zwei", "drei", "größe", "ω"]
    options = {} if form is None else {"encoding_format": form}
    reply = client.embeddings.create(model="minilm", input=words, **options)
    assert [entry.index for entry in reply.data] == [0, 1, 2, 3, 4]
    expected = np.array([vector(word) for word in words], dtype="f4")
    if form == "base64":
        got = [np.frombuffer(base64.b64decode(entry.embedding), "<f4") for entry in reply.data]
    else:
        got = [np.array(entry.embedding, dtype="f4") for entry in reply.data]
    assert np.array(got).tobytes() == expected.tobytes()
    assert (reply.model, reply.usage.prompt_tokens, reply.usage.total_tokens) == ("minilm", 12, 12)


def test_openais_client_shows_our_error(client: openai.OpenAI) -> None:
    """A refusal arrives as the client's own exception with text and code."""
    with pytest.raises(openai.BadRequestError, match="token ids") as caught:
        client.embeddings.create(model="minilm", input=[1, 2, 3])
    assert (caught.value.code, caught.value.type) == ("bad_request", "invalid_request_error")


def test_one_string_is_one_text() -> None:
    """A bare string needs no list; the optional fields are kept."""
    assert parse_embeddings(body_of(user="u", dimensions=3, later=[1])) == EmbeddingsCall(
        "minilm", ["a"], "float", 3, "u"
    )


def test_texts_are_split_into_parts_of_the_models_batch() -> None:
    """No request has more rows than the model takes; order is kept; only the embedding is asked for."""
    requests = to_requests(parse_embeddings(body_of(input=["a", "b", "c"])), MODEL)
    assert [words_of(request) for request in requests] == [["a", "b"], ["c"]]
    assert [request.inputs[0].shape for request in requests] == [[2, 1], [1, 1]]
    assert requests[0].outputs == ["embedding"]


def test_a_model_without_a_batch_gets_one_text_a_request() -> None:
    """max_batch_size 0: the shape is the declared one."""
    flat = ModelDescriptor("f", "1", "p", 0, [ModelTensor("t", "BYTES", [-1])], [ModelTensor("v", "FP32", [2])])
    call = parse_embeddings(body_of(input=["a", "b"]))
    requests = to_requests(call, flat)
    assert [request.inputs[0].shape for request in requests] == [[1], [1]]
    one = ReplyBody([Tensor("v", "FP32", [2], memoryview(np.ones(2, "<f4").tobytes()))])
    tree = json.loads(render_embeddings(call, flat, [one, one]))
    assert [entry["embedding"] for entry in tree["data"]] == [[1, 1], [1, 1]]
    assert tree["usage"]["total_tokens"] == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": ""}, "empty string"),
        ({"input": []}, "empty list"),
        ({"input": ["a", ""]}, "`input` 1 is an empty string"),
        ({"input": [1, 2]}, "token ids"),
        ({"input": [[1, 2], [3]]}, "token ids"),
        ({"input": ["a"] * 2049}, "2049 strings, at most 2048"),
        ({"input": None}, "got `null`"),
        ({"input": {"a": 1}}, "got `object`"),
        ({"model": 5}, "got `int`"),
        ({"encoding_format": "int8"}, "encoding_format is 'int8'"),
        ({"dimensions": "3"}, "got `str`"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(fields: dict[str, object], words: str) -> None:
    """A 400 that says what to send."""
    with pytest.raises(BadRequest, match=words):
        parse_embeddings(body_of(**fields))


def test_other_dimensions_than_the_models_are_refused() -> None:
    """The model's own number is accepted, any other cannot be served."""
    assert to_requests(parse_embeddings(body_of(dimensions=3)), MODEL)
    with pytest.raises(BadRequest, match=r"dimensions is 2, model 'minilm' gives 3 dimensions"):
        to_requests(parse_embeddings(body_of(dimensions=2)), MODEL)


@pytest.mark.parametrize(
    "model",
    [
        ModelDescriptor("m", "1", "p", 1, [ModelTensor("x", "FP32", [1])], [ModelTensor("y", "FP32", [1])]),
        ModelDescriptor("m", "1", "p", 1, [ModelTensor("x", "BYTES", [2])], [ModelTensor("y", "FP32", [1])]),
        ModelDescriptor("m", "1", "p", 1, [ModelTensor("x", "BYTES", [1])], [ModelTensor("y", "INT64", [1])]),
        ModelDescriptor("m", "1", "p", 1, [], [ModelTensor("y", "FP32", [1])]),
    ],
)
def test_a_model_that_does_not_embed_text_is_refused(model: ModelDescriptor) -> None:
    """The client named the wrong model."""
    with pytest.raises(BadRequest, match="'m' does not embed text"):
        to_requests(parse_embeddings(body_of()), model)


def test_vectors_that_are_not_finite_are_refused_as_numbers_and_fine_as_base64() -> None:
    """JSON has no NaN; the text names the way out."""
    nan = ReplyBody([Tensor("embedding", "FP32", [1, 3], memoryview(np.full(3, np.nan, "<f4").tobytes()))])
    with pytest.raises(BadRequest, match="base64"):
        render_embeddings(parse_embeddings(body_of()), MODEL, [nan])
    assert render_embeddings(parse_embeddings(body_of(encoding_format="base64")), MODEL, [nan])


@pytest.mark.parametrize(
    "body",
    [
        ReplyBody(),
        ReplyBody([Tensor("embedding", "FP32", [1, 3], memoryview(b"abc"))]),
        ReplyBody([Tensor("embedding", "FP32", [0, 3], memoryview(b""))]),
    ],
)
def test_a_model_that_answers_wrongly_is_at_fault(body: ReplyBody) -> None:
    """Not the client's error: a 500 that names the model."""
    with pytest.raises(TailraceError, match="model 'minilm' version 1") as caught:
        render_embeddings(parse_embeddings(body_of()), MODEL, [body])
    assert caught.value.kind is ErrorKind.MODEL_ERROR


def test_the_error_a_worker_answered_is_raised() -> None:
    """The first part that failed fails the request."""
    with pytest.raises(TailraceError, match="too late") as caught:
        render_embeddings(parse_embeddings(body_of()), MODEL, [ReplyBody(error_code="deadline", error="too late")])
    assert caught.value.kind is ErrorKind.DEADLINE


@pytest.mark.parametrize(
    ("kind", "type_", "code"),
    [
        (ErrorKind.NOT_FOUND, "invalid_request_error", "not_found"),
        (ErrorKind.QUEUE_FULL, "rate_limit_error", "queue_full"),
        (ErrorKind.UNAVAILABLE, "server_error", "unavailable"),
    ],
)
def test_errors_take_openais_form(kind: ErrorKind, type_: str, code: str) -> None:
    """Message, type, code and a null param."""
    tree = json.loads(render_error(TailraceError(kind, "words")))
    assert tree == {"error": {"message": "words", "type": type_, "code": code, "param": None}}
