"""The unmodified asyncio client of Triton: the same promises, on connections that announce brotli on every call."""

import asyncio
from collections.abc import AsyncIterator

import e2e_stack
import numpy as np
import pytest
import tritonclient.http.aio as triton
from e2e_stack import ROWS, Stack
from e2e_triton import mlp_input, pair_inputs
from tritonclient.utils import InferenceServerException

from shared import clock
from shared.events import Req, Wreq


@pytest.fixture
async def client(url: str) -> AsyncIterator[triton.InferenceServerClient]:
    """The client as people create it."""
    async with triton.InferenceServerClient(url.removeprefix("http://")) as made:
        yield made


async def test_aio_client_finds_server_and_models_live_and_ready(client: triton.InferenceServerClient) -> None:
    """Live, ready and model ready are true, and false for a model that is not there."""
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("mlp")
    assert await client.is_model_ready("mlp", "1")
    assert not await client.is_model_ready("nobody")


async def test_aio_client_reads_metadata_config_and_index(client: triton.InferenceServerClient) -> None:
    """Server metadata, model metadata, model config and the repository's index."""
    assert (await client.get_server_metadata())["name"] == "tailrace"
    assert (await client.get_model_metadata("pair"))["inputs"][0] == {
        "name": "name",
        "datatype": "BYTES",
        "shape": [-1, 1],
    }
    assert (await client.get_model_config("pair", "1"))["input"][0]["data_type"] == "TYPE_STRING"
    assert {"name": "mlp", "version": "1", "state": "READY"} in await client.get_model_repository_index()


async def test_aio_client_unloads_a_model_and_loads_it_again(client: triton.InferenceServerClient) -> None:
    """An unloaded model refuses requests, and serves again after a load."""
    await client.unload_model("pair")
    try:
        assert not await client.is_model_ready("pair")
        with pytest.raises(InferenceServerException, match="load"):
            await client.infer("pair", pair_inputs(["a"], [[1, 2]]))
    finally:
        await client.load_model("pair")

    assert (await client.infer("pair", pair_inputs(["a"], [[1, 2]]))).as_numpy("sum").item() == 3


async def test_aio_clients_settings_answer_and_shared_memory_is_refused_cleanly(
    client: triton.InferenceServerClient,
) -> None:
    """What is not supported is refused with a text the client can show."""
    assert (await client.get_trace_settings())["trace_level"]
    assert (await client.get_log_settings())["log_error"] is True
    assert await client.get_system_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="not supported"):
        await client.register_system_shared_memory("region", "/key", 64)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
async def test_aio_clients_tensors_give_the_numbers_of_torch_in_every_form(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray, binary_in: bool, binary_out: bool
) -> None:
    """Binary or JSON, in and out: equal to a direct computation to 1e-5."""
    wanted = [triton.InferRequestedOutput("y", binary_data=binary_out)]

    result = await client.infer("mlp", [mlp_input(x, binary=binary_in)], outputs=wanted, request_id="numbers")

    assert result.get_response()["id"] == "numbers"
    np.testing.assert_allclose(result.as_numpy("y"), expected_y, atol=1e-5, rtol=0)


@pytest.mark.parametrize("binary", [True, False])
async def test_aio_clients_bytes_tensors_pass_unchanged(client: triton.InferenceServerClient, binary: bool) -> None:
    """BYTES with a non-ASCII element in front of a second input (b)."""
    result = await client.infer("pair", pair_inputs(["Ærøskøbing 海"], [[40, 2]], binary=binary))

    assert result.as_numpy("greeting").item() == "hello Ærøskøbing 海".encode()
    assert result.as_numpy("sum").item() == 42


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_aio_client_may_compress_requests_and_replies(
    client: triton.InferenceServerClient, algorithm: str, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """The same numbers come through a compressed request and a compressed reply (e)."""
    result = await client.infer(
        "mlp",
        [mlp_input(np.tile(x, (32, 1)))],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )

    np.testing.assert_allclose(result.as_numpy("y"), np.tile(expected_y, (32, 1)), atol=1e-5, rtol=0)


async def test_aio_client_can_read_a_long_reply_although_it_announces_brotli(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """(f) It sends `Accept-Encoding: gzip, deflate, br` by itself, and cannot decode br."""
    result = await client.infer("mlp", [mlp_input(np.tile(x, (64, 1)))])

    np.testing.assert_allclose(result.as_numpy("y"), np.tile(expected_y, (64, 1)), atol=1e-5, rtol=0)


async def test_aio_client_gets_binary_outputs_for_a_json_input_without_named_outputs(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """(a) All inputs JSON, no outputs listed."""
    result = await client.infer("mlp", [mlp_input(x, binary=False)])

    assert result.get_output("y")["parameters"]["binary_data_size"] == expected_y.nbytes


async def test_aio_client_gets_empty_outputs_for_an_empty_tensor(client: triton.InferenceServerClient) -> None:
    """(c) No rows in, no rows out."""
    result = await client.infer("mlp", [mlp_input(np.zeros((0, 64), np.float32))])

    assert result.as_numpy("y").shape == (0, 8)


async def test_aio_client_gets_outputs_by_name_in_the_order_asked_for(client: triton.InferenceServerClient) -> None:
    """(d) In another order than the model's, one binary and one JSON."""
    wanted = [triton.InferRequestedOutput("sum", binary_data=False), triton.InferRequestedOutput("greeting")]

    result = await client.infer("pair", pair_inputs(["a", "bcd"], [[1, 2], [3, 4]]), outputs=wanted)

    assert [output["name"] for output in result.get_response()["outputs"]] == ["sum", "greeting"]
    assert result.as_numpy("sum").tolist() == [[3], [7]]
    assert result.as_numpy("greeting").ravel().tolist() == [b"hello a", b"hello bcd"]


async def test_aio_client_sees_errors_as_text(client: triton.InferenceServerClient, x: np.ndarray) -> None:
    """(g) The text of `{"error": ...}` and the status arrive."""
    with pytest.raises(InferenceServerException, match="unknown model 'nobody'") as refused:
        await client.infer("nobody", [mlp_input(x)])

    assert refused.value.status() == "404"


async def test_aio_clients_query_strings_and_unknown_parameters_are_ignored(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """(i) They may mean something to another server."""
    result = await client.infer(
        "mlp", [mlp_input(x)], query_params={"a": 1, "b": [2, 3]}, parameters={"colour": "green"}
    )

    np.testing.assert_allclose(result.as_numpy("y"), expected_y, atol=1e-5, rtol=0)


async def test_aio_clients_timeout_of_a_microsecond_fails_at_once_and_is_never_computed(
    client: triton.InferenceServerClient, stack: Stack, x: np.ndarray
) -> None:
    """(j) A 503 within a second, and no worker ever ran it."""
    began_ns = clock.now_ns()
    with pytest.raises(InferenceServerException, match="deadline") as refused:
        await client.infer("mlp", [mlp_input(x)], timeout=1, request_id="too-late-aio")
    took_s = (clock.now_ns() - began_ns) / 1e9
    await client.infer("mlp", [mlp_input(x)], request_id="just-after-aio")

    assert refused.value.status() == "503"
    assert took_s < 1
    (late,) = stack.logged(Req, lambda r: r.client_id == "too-late-aio")
    (after,) = stack.logged(Req, lambda r: r.client_id == "just-after-aio")
    stack.logged(Wreq, lambda w: w.id == after.id)
    assert not [w for w in stack.records(Wreq) if w.id == late.id and w.batch_id]


async def test_aio_clients_sequence_id_may_be_a_string(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """(k) Sequences mean nothing to a stateless model."""
    result = await client.infer("mlp", [mlp_input(x)], sequence_id="session-abc", sequence_start=True)

    np.testing.assert_allclose(result.as_numpy("y"), expected_y, atol=1e-5, rtol=0)


async def test_aio_client_gets_each_of_a_hundred_concurrent_requests_its_own_answer(
    client: triton.InferenceServerClient,
) -> None:
    """(l) A hundred at once, batched together: nobody gets a neighbour's numbers."""
    results = await asyncio.gather(
        *(client.infer("pair", pair_inputs([f"n{i}"], [[i, 1]]), request_id=str(i)) for i in range(100))
    )

    assert [result.get_response()["id"] for result in results] == [str(i) for i in range(100)]
    assert [result.as_numpy("sum").item() for result in results] == [i + 1 for i in range(100)]
    assert [result.as_numpy("greeting").item() for result in results] == [f"hello n{i}".encode() for i in range(100)]


async def test_aio_client_sees_truthful_cumulative_statistics(
    client: triton.InferenceServerClient, x: np.ndarray
) -> None:
    """Concurrent requests are counted one by one, their batches as executions, and times never go back."""

    async def look() -> dict:
        (stats,) = (await client.get_inference_statistics("counted_aio", "1"))["model_stats"]
        return stats

    async def counted(success: int) -> dict | None:
        stats = await look()
        return stats if stats["inference_stats"]["success"]["count"] >= success else None

    before = await look()
    await asyncio.gather(*(client.infer("counted_aio", [mlp_input(x)]) for _ in range(30)))
    success = before["inference_stats"]["success"]["count"] + 30
    after = await e2e_stack.soon(lambda: counted(success), within_s=5, what=f"{success} successes are counted")

    executions = after["execution_count"] - before["execution_count"]
    assert after["inference_stats"]["success"]["count"] == success
    assert after["inference_count"] - before["inference_count"] == 30 * ROWS
    assert 1 <= executions <= 30
    assert sum(batch["compute_infer"]["count"] for batch in after["batch_stats"]) == after["execution_count"]
    rows = sum(batch["batch_size"] * batch["compute_infer"]["count"] for batch in after["batch_stats"])
    assert rows == after["inference_count"]
    for part in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert after["inference_stats"][part]["count"] == success
        assert after["inference_stats"][part]["ns"] > before["inference_stats"][part]["ns"]
