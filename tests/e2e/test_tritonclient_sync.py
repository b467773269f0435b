"""The unmodified synchronous client of Triton: every call of the minimum, and the inputs that catch most wrong servers.

The letters are those of the interface notes' list of such inputs.
"""

import socket
from collections.abc import Iterator

import e2e_stack
import numpy as np
import pytest
import tritonclient.http as triton
from e2e_stack import ROWS, Stack
from e2e_triton import mlp_input, pair_inputs
from tritonclient.utils import InferenceServerException

from shared import clock
from shared.events import Req, Wreq


@pytest.fixture
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    """The client as people create it."""
    with triton.InferenceServerClient(url.removeprefix("http://")) as made:
        yield made


# -- every call of the minimum --------------------------------------------------------------------------------------


def test_sync_client_finds_server_and_models_live_and_ready(client: triton.InferenceServerClient) -> None:
    """Live, ready and model ready are true, and false for a model that is not there."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp")
    assert client.is_model_ready("mlp", "1")
    assert not client.is_model_ready("nobody")


def test_sync_client_reads_the_servers_metadata(client: triton.InferenceServerClient) -> None:
    """Name, version and the extensions that are implemented."""
    metadata = client.get_server_metadata()

    assert metadata["name"] == "tailrace"
    assert metadata["version"]
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(metadata["extensions"])


def test_sync_client_reads_a_models_metadata_and_config(client: triton.InferenceServerClient) -> None:
    """The metadata has the batch dimension as -1, the config has it as max_batch_size."""
    metadata = client.get_model_metadata("mlp", "1")
    config = client.get_model_config("mlp")

    assert metadata["versions"] == ["1"]
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 64]}]
    assert metadata["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 8]}]
    assert config["max_batch_size"] == 256
    assert [(i["name"], i["data_type"], i["dims"]) for i in config["input"]] == [("x", "TYPE_FP32", [64])]
    assert "dynamic_batching" in config


def test_sync_client_lists_the_repository(client: triton.InferenceServerClient) -> None:
    """Every model is listed, and READY."""
    states = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}

    assert states["mlp"] == states["minilm"] == states["pair"] == "READY"


def test_sync_client_unloads_a_model_and_loads_it_again(client: triton.InferenceServerClient) -> None:
    """An unloaded model is not ready, refuses requests with a hint, and serves again after a load."""
    client.unload_model("pair")
    try:
        assert not client.is_model_ready("pair")
        assert {e["name"]: e["state"] for e in client.get_model_repository_index()}["pair"] == "UNAVAILABLE"
        with pytest.raises(InferenceServerException, match="load"):
            client.infer("pair", pair_inputs(["a"], [[1, 2]]))
    finally:
        client.load_model("pair")

    assert client.is_model_ready("pair")
    assert client.infer("pair", pair_inputs(["a"], [[1, 2]])).as_numpy("sum").tolist() == [[3]]


def test_sync_clients_trace_and_log_settings_answer_and_shared_memory_is_refused_cleanly(
    client: triton.InferenceServerClient,
) -> None:
    """What is not supported is refused with a text the client can show."""
    assert client.get_trace_settings()["trace_level"]
    assert client.get_log_settings()["log_error"] is True
    assert client.get_system_shared_memory_status() == []
    assert client.get_cuda_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="not supported"):
        client.register_system_shared_memory("region", "/key", 64)


def test_sync_clients_binary_tensors_give_the_numbers_of_torch(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """Binary in, binary out: equal to a direct computation to 1e-5."""
    wanted = [triton.InferRequestedOutput("y", binary_data=True)]

    result = client.infer("mlp", [mlp_input(x)], outputs=wanted, request_id="numbers")

    assert result.get_response()["id"] == "numbers"
    assert result.get_response()["model_version"] == "1"
    np.testing.assert_allclose(result.as_numpy("y"), expected_y, atol=1e-5, rtol=0)


def test_sync_clients_json_tensors_give_the_numbers_of_torch(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """JSON in, JSON out: the same numbers, to 1e-5."""
    wanted = [triton.InferRequestedOutput("y", binary_data=False)]

    result = client.infer("mlp", [mlp_input(x, binary=False)], outputs=wanted, model_version="1")

    assert "data" in result.get_output("y")
    np.testing.assert_allclose(result.as_numpy("y"), expected_y, atol=1e-5, rtol=0)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_sync_clients_bytes_tensors_pass_unchanged_in_every_form(
    client: triton.InferenceServerClient, binary_in: bool, binary_out: bool
) -> None:
    """BYTES as JSON or binary, in and out."""
    wanted = [triton.InferRequestedOutput("greeting", binary_data=binary_out)]

    result = client.infer("pair", pair_inputs(["Zoë", ""], [[1, 1], [2, 2]], binary=binary_in), outputs=wanted)

    got = [e.encode() if isinstance(e, str) else e for e in result.as_numpy("greeting").ravel()]
    assert got == ["hello Zoë".encode(), b"hello "]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_sync_client_may_compress_requests_and_replies(
    client: triton.InferenceServerClient, algorithm: str, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """The same numbers come through a compressed request and a compressed reply."""
    many = np.tile(x, (32, 1))

    result = client.infer(
        "mlp",
        [mlp_input(many)],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )

    np.testing.assert_allclose(result.as_numpy("y"), np.tile(expected_y, (32, 1)), atol=1e-5, rtol=0)


def test_sync_clients_async_infer_answers_each_request_with_its_own_numbers(url: str, x: np.ndarray) -> None:
    """Sixteen requests at once over four connections: nobody gets a neighbour's answer."""
    with triton.InferenceServerClient(url.removeprefix("http://"), concurrency=4) as client:
        started = [client.async_infer("pair", pair_inputs([f"n{i}"], [[i, 1]])) for i in range(16)]
        results = [one.get_result() for one in started]

    assert [result.as_numpy("sum").item() for result in results] == [i + 1 for i in range(16)]
    assert [result.as_numpy("greeting").item() for result in results] == [f"hello n{i}".encode() for i in range(16)]


def test_sync_client_sees_truthful_cumulative_statistics(client: triton.InferenceServerClient, x: np.ndarray) -> None:
    """Counts grow by exactly what was asked; the times of queue and compute only grow."""
    parts = ("queue", "compute_input", "compute_infer", "compute_output", "success")

    def look() -> dict:
        (stats,) = client.get_inference_statistics("counted_sync")["model_stats"]
        return stats

    before = look()
    seen = [before]
    for n in range(1, 4):
        for _ in range(5):
            client.infer("counted_sync", [mlp_input(x)])
        counted = before["inference_stats"]["success"]["count"] + 5 * n
        e2e_stack.eventually(
            lambda counted=counted: seen.append(look()) or seen[-1]["inference_stats"]["success"]["count"] == counted,
            within_s=5,
            what=f"{counted} successes are counted",
        )
    after = seen[-1]

    assert after["inference_count"] - before["inference_count"] == 15 * ROWS
    assert after["execution_count"] - before["execution_count"] == 15
    assert after["inference_stats"]["fail"]["count"] == 0
    for part in parts:
        assert after["inference_stats"][part]["count"] == before["inference_stats"][part]["count"] + 15
        course = [stats["inference_stats"][part]["ns"] for stats in seen]
        assert course == sorted(course), f"{part} went back"
        assert part == "queue" or course[-1] > course[0], f"{part} took no time"
    assert abs(after["last_inference"] - clock.wall_us() / 1000) < 30_000
    (size,) = [batch for batch in after["batch_stats"] if batch["batch_size"] == ROWS]
    assert size["compute_infer"]["count"] == after["execution_count"]


# -- the inputs that catch most wrong servers -----------------------------------------------------------------------


def test_a_json_input_without_named_outputs_is_answered_in_binary(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """(a) The client asks for binary outputs by a parameter of the request alone."""
    result = client.infer("mlp", [mlp_input(x, binary=False)])

    assert result.get_output("y")["parameters"]["binary_data_size"] == expected_y.nbytes
    np.testing.assert_allclose(result.as_numpy("y"), expected_y, atol=1e-5, rtol=0)


def test_b_two_binary_inputs_are_told_apart_behind_a_non_ascii_element(client: triton.InferenceServerClient) -> None:
    """(b) The second input begins where the bytes of the first end, not its characters."""
    result = client.infer("pair", pair_inputs(["Ærøskøbing 海"], [[40, 2]]))

    assert result.as_numpy("greeting").item() == "hello Ærøskøbing 海".encode()
    assert result.as_numpy("sum").item() == 42


def test_c_an_empty_tensor_is_answered_with_empty_outputs(client: triton.InferenceServerClient) -> None:
    """(c) No rows in, no rows out."""
    result = client.infer("mlp", [mlp_input(np.zeros((0, 64), np.float32))])

    assert result.as_numpy("y").shape == (0, 8)
    assert result.as_numpy("y").dtype == np.float32


def test_d_outputs_come_by_name_in_the_order_asked_for(client: triton.InferenceServerClient) -> None:
    """(d) Outputs asked for in another order than the model's, one binary and one JSON, are not mixed up."""
    for first, second in ((True, True), (True, False), (False, True)):
        wanted = [
            triton.InferRequestedOutput("sum", binary_data=first),
            triton.InferRequestedOutput("greeting", binary_data=second),
        ]

        result = client.infer("pair", pair_inputs(["a", "bcd"], [[1, 2], [3, 4]]), outputs=wanted)

        assert [output["name"] for output in result.get_response()["outputs"]] == ["sum", "greeting"]
        assert result.as_numpy("sum").tolist() == [[3], [7]]
        greetings = [e.encode() if isinstance(e, str) else e for e in result.as_numpy("greeting").ravel()]
        assert greetings == [b"hello a", b"hello bcd"]


def test_e_a_gzipped_request_with_a_binary_tail_is_understood(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """(e) The length of the JSON counts in the uncompressed body."""
    result = client.infer("mlp", [mlp_input(x)], request_compression_algorithm="gzip")

    np.testing.assert_allclose(result.as_numpy("y"), expected_y, atol=1e-5, rtol=0)


def test_f_brotli_is_never_used_even_when_it_is_offered(url: str, x: np.ndarray) -> None:
    """(f) A client that announces br gets gzip or deflate; one that announces br alone gets no compression."""
    body = e2e_stack.infer_json("x", "FP32", [64 * ROWS, 64], np.tile(x, (64, 1)).ravel().tolist())

    def encoding(accepted: str) -> str | None:
        answer = e2e_stack.ask(url, "/v2/models/mlp/infer", body=body, headers={"Accept-Encoding": accepted})
        assert answer.status == 200
        return answer.headers.get("content-encoding")

    assert encoding("gzip, deflate, br") in ("gzip", "deflate")
    assert encoding("br") is None


def test_g_a_404_reaches_the_client_as_a_readable_error(client: triton.InferenceServerClient, x: np.ndarray) -> None:
    """(g) The text of `{"error": ...}` arrives whole, for a model and for a version; 405, 413, 429: test_bad_input."""
    with pytest.raises(InferenceServerException, match="unknown model 'nobody'") as model:
        client.infer("nobody", [mlp_input(x)])
    with pytest.raises(InferenceServerException, match="unknown version '7'") as version:
        client.infer("mlp", [mlp_input(x)], model_version="7")

    assert model.value.status() == version.value.status() == "404"


def test_h_a_json_length_one_byte_too_long_is_refused_and_the_connection_lives_on(url: str, x: np.ndarray) -> None:
    """(h) 400, and the next request on the same connection is answered."""
    good, length = triton.InferenceServerClient.generate_request_body([mlp_input(x)])
    connection = e2e_stack.connect(url)
    try:
        for header, status in ((length + 1, 400), (len(good) + 1, 400), (length, 200)):
            headers = {"Inference-Header-Content-Length": str(header)}
            connection.request("POST", "/v2/models/mlp/infer", good, headers)
            used = connection.sock
            answer = e2e_stack.read_answer(connection.getresponse())

            assert answer.status == status, answer
            assert status == 200 or answer.error
            assert connection.sock is used, "the server closed the connection"
    finally:
        connection.close()


def test_i_query_strings_and_unknown_parameters_are_ignored(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """(i) They may mean something to another server."""
    result = client.infer(
        "mlp", [mlp_input(x)], query_params={"a": 1, "b": [2, 3]}, parameters={"colour": "green", "level": 3}
    )

    assert client.is_server_ready(query_params={"verbose": "yes"})
    np.testing.assert_allclose(result.as_numpy("y"), expected_y, atol=1e-5, rtol=0)


def test_j_a_timeout_of_a_microsecond_fails_at_once_and_is_never_computed(
    client: triton.InferenceServerClient, stack: Stack, x: np.ndarray
) -> None:
    """(j) A 503 within a second, and no worker ever ran it."""
    began_ns = clock.now_ns()
    with pytest.raises(InferenceServerException, match="deadline") as refused:
        client.infer("mlp", [mlp_input(x)], timeout=1, request_id="too-late")
    took_s = (clock.now_ns() - began_ns) / 1e9
    client.infer("mlp", [mlp_input(x)], request_id="just-after")

    assert refused.value.status() == "503"
    assert took_s < 1
    (late,) = stack.logged(Req, lambda r: r.client_id == "too-late")
    (after,) = stack.logged(Req, lambda r: r.client_id == "just-after")
    stack.logged(Wreq, lambda w: w.id == after.id)
    assert not [w for w in stack.records(Wreq) if w.id == late.id and w.batch_id]


def test_k_a_sequence_id_may_be_a_string(
    client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """(k) Sequences mean nothing to a stateless model, whatever their id looks like."""
    for sequence_id in ("session-abc", 42):
        result = client.infer("mlp", [mlp_input(x)], sequence_id=sequence_id, sequence_start=True, sequence_end=True)

        np.testing.assert_allclose(result.as_numpy("y"), expected_y, atol=1e-5, rtol=0)


def test_l_a_hundred_requests_pass_over_one_connection(
    url: str, client: triton.InferenceServerClient, x: np.ndarray, expected_y: np.ndarray
) -> None:
    """(l) The server keeps the connection open, and answers each request with its own id."""
    results = [client.infer("mlp", [mlp_input(x)], request_id=str(i)) for i in range(100)]
    assert [result.get_response()["id"] for result in results] == [str(i) for i in range(100)]
    np.testing.assert_allclose(results[-1].as_numpy("y"), expected_y, atol=1e-5, rtol=0)

    connection = e2e_stack.connect(url)
    ports: set[int] = set()
    try:
        for i in range(100):
            connection.request("POST", "/v2/models/mlp/infer", e2e_stack.infer_json("x", "FP32", [1, 64], [i] * 64))
            assert isinstance(connection.sock, socket.socket)
            ports.add(connection.sock.getsockname()[1])
            assert e2e_stack.read_answer(connection.getresponse()).status == 200
    finally:
        connection.close()
    assert len(ports) == 1
