"""Whatever a client sends: the right status, a text that helps, the usual headers, and a server that serves on."""

import asyncio
import gzip
import json
import re
import socket
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import e2e_stack
import psutil
import pytest
from e2e_stack import Answer, Stack

from shared import clock
from shared.events import Req, Wreq

INFER = "/v2/models/mlp/infer"
TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def serves_on(url: str) -> Iterator[None]:
    """After every test here the server still answers, within its usual time."""
    yield
    answer = e2e_stack.ask(url, INFER, body=good())
    assert answer.status == 200
    assert_has_the_usual_headers(answer)


def good() -> str:
    """A request that nothing is wrong with."""
    return e2e_stack.infer_json("x", "FP32", [1, 64], [0.5] * 64)


def assert_has_the_usual_headers(answer: Answer) -> None:
    """Every response says which request it answers, in which trace, and where its time went."""
    assert answer.headers["x-request-id"]
    assert TRACEPARENT.fullmatch(answer.headers["traceparent"])
    assert re.search(r"\btotal;dur=\d", answer.headers["server-timing"])


def assert_refused(answer: Answer, status: int, *words: str) -> None:
    """The status, `{"error": text}` with all the words in the text, and the usual headers."""
    assert answer.status == status, answer
    for word in words:
        assert word in answer.error, answer.error
    assert_has_the_usual_headers(answer)


def raw_exchange(url: str, data: bytes) -> Answer:
    """Send bytes as they are; the response that comes back before the server closes."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return Answer(int(status_line.split()[1]), headers, body)


# -- requests that say something impossible ---------------------------------------------------------------------------


def test_an_unknown_model_is_a_404_that_names_the_models_there_are(url: str) -> None:
    """What came, and what could be asked for instead."""
    assert_refused(e2e_stack.ask(url, "/v2/models/nobody/infer", body=good()), 404, "'nobody'", "minilm", "mlp")
    assert_refused(e2e_stack.ask(url, "/v2/models/mlp/versions/9/infer", body=good()), 404, "'9'", "it has: 1")


@pytest.mark.parametrize(
    ("shape", "values", "words"),
    [
        ([1, 63], 63, ("'x'", "[1, 63]", "[-1, 64]", "reshape")),
        ([64], 64, ("rank 1", "rank 2", "reshape")),
        ([1, 64], 63, ("64 elements", "63 came", "correct the shape")),
        ([257, 64], 257 * 64, ("257 rows", "at most 256", "split")),
        ([-1, 64], 64, ("[-1, 64]", "reshape")),
        ([2**62, 64], 64, ("'x'", "elements", "smaller")),
    ],
)
def test_a_wrong_shape_is_a_400_that_says_what_was_expected_what_came_and_what_to_do(
    url: str, shape: list[int], values: int, words: tuple[str, ...]
) -> None:
    """Wrong size, wrong rank, too few values, too many rows, impossible dimensions."""
    answer = e2e_stack.ask(url, INFER, body=e2e_stack.infer_json("x", "FP32", shape, [0.0] * values))

    assert_refused(answer, 400, *words)


def test_a_wrong_datatype_is_a_400_that_says_which_one_to_send(url: str) -> None:
    """Both datatypes are named, also when the client's does not exist."""
    double = e2e_stack.infer_json("x", "FP64", [1, 64], [0.0] * 64)
    unknown = e2e_stack.infer_json("x", "FLOAT", [1, 64], [0.0] * 64)
    text = e2e_stack.infer_json("x", "FP32", [1, 64], ["a"] * 64)

    assert_refused(e2e_stack.ask(url, INFER, body=double), 400, "'FP64'", "FP32", "convert")
    assert_refused(e2e_stack.ask(url, INFER, body=unknown), 400, "'FLOAT'", "no datatype", "FP32")
    assert_refused(e2e_stack.ask(url, INFER, body=text), 400, "'x'", "send numbers")


def test_an_unknown_a_missing_and_a_repeated_input_are_400s(url: str) -> None:
    """The names that came and the names that were expected."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 64], "data": [0] * 64}

    unknown = e2e_stack.ask(url, INFER, body=json.dumps({"inputs": [{**tensor, "name": "X"}]}))
    missing = e2e_stack.ask(url, INFER, body=json.dumps({"inputs": []}))
    repeated = e2e_stack.ask(url, INFER, body=json.dumps({"inputs": [tensor, tensor]}))
    output = e2e_stack.ask(url, INFER, body=json.dumps({"inputs": [tensor], "outputs": [{"name": "z"}]}))

    assert_refused(unknown, 400, "unknown input 'X'", "'x'")
    assert_refused(missing, 400, "missing input 'x'")
    assert_refused(repeated, 400, "twice")
    assert_refused(output, 400, "unknown output 'z'", "'y'")


def binary_request(rows: int, tail: bytes) -> tuple[bytes, dict[str, str]]:
    """A body with one binary tensor of `rows` rows that is followed by `tail`, and its headers."""
    size = {"binary_data_size": rows * 256}
    head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 64], "parameters": size}]})
    return head.encode() + tail, {"Inference-Header-Content-Length": str(len(head))}


def test_a_truncated_binary_tensor_is_a_400_and_so_is_one_that_is_too_long(url: str) -> None:
    """How many bytes were announced, and how many came."""
    for tail, words in ((bytes(511), ("512", "511")), (bytes(513), ("512", "513"))):
        body, headers = binary_request(2, tail)

        assert_refused(e2e_stack.ask(url, INFER, body=body, headers=headers), 400, *words)


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 40, "", "0x10", "999999"])
def test_an_impossible_length_of_the_json_is_a_400(url: str, length: str) -> None:
    """Negative, no integer, beyond the body."""
    body, _ = binary_request(1, bytes(256))

    answer = e2e_stack.ask(url, INFER, body=body, headers={"Inference-Header-Content-Length": length})

    assert_refused(answer, 400, "Inference-Header-Content-Length")


def test_a_json_length_one_byte_too_long_leaves_the_connection_usable(url: str) -> None:
    """The refused body is read to its end, so the next request on the connection is understood."""
    body, headers = binary_request(1, bytes(256))
    one_more = {"Inference-Header-Content-Length": str(int(headers["Inference-Header-Content-Length"]) + 1)}
    connection = e2e_stack.connect(url)
    try:
        connection.request("POST", INFER, body, one_more)
        used = connection.sock
        refused = e2e_stack.read_answer(connection.getresponse())
        connection.request("POST", INFER, body, headers)
        served = e2e_stack.read_answer(connection.getresponse())

        assert_refused(refused, 400)
        assert served.status == 200
        assert connection.sock is used
    finally:
        connection.close()


# -- bodies that are not what they claim ------------------------------------------------------------------------------


def peak_bytes(process: psutil.Process) -> int:
    """The most memory that the process has held since its peak was last reset."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def zip_bomb(encoding: str) -> bytes:
    """200 MB of zeros in 200 kB."""
    compressor = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    return b"".join(compressor.compress(bytes(MIB)) for _ in range(200)) + compressor.flush()


def send_bomb(url: str, bomb: bytes, encoding: str = "gzip") -> Answer:
    """The answer to a bomb."""
    return e2e_stack.ask(url, INFER, body=bomb, headers={"Content-Encoding": encoding})


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_zip_bomb_is_a_413_and_costs_the_gateway_little_memory(stack: Stack, url: str, encoding: str) -> None:
    """Refused at the limit of 64 MiB, without ever holding the rest."""
    gateway = stack.main.child("gateway")
    Path(f"/proc/{gateway.pid}/clear_refs").write_text("5")  # the kernel forgets the peak so far
    before = peak_bytes(gateway)

    answer = send_bomb(url, zip_bomb(encoding), encoding)

    assert_refused(answer, 413, "67108864", "TAILRACE_BODY_BYTES_MAX")
    assert peak_bytes(gateway) - before < 150 * MIB


def test_what_was_unpacked_of_refused_bodies_is_not_kept(stack: Stack, url: str) -> None:
    """Eight bombs in a row cost no more than one: the error that refused them once held their 64 MiB each.

    It kept its traceback, whose frames kept the body, in a circle that the garbage collector did not get to see
    within thousands of requests. The same held for every long body that was refused later, for bad JSON say.
    """
    gateway = stack.main.child("gateway")
    bomb = zip_bomb("gzip")
    before = gateway.memory_info().rss

    for _ in range(4):
        assert send_bomb(url, bomb).status == 413
        assert e2e_stack.ask(url, INFER, body=b"[" * (60 * MIB)).status == 400

    assert gateway.memory_info().rss - before < 150 * MIB


def test_others_are_served_while_bombs_are_unpacked(url: str) -> None:
    """Eight bombs at once: everybody else still gets answers within their usual time, on one core if need be."""
    bomb = zip_bomb("gzip")
    longest_s = 0.0
    with ThreadPoolExecutor(8) as threads:
        bombs = [threads.submit(send_bomb, url, bomb) for _ in range(8)]
        while not all(sent.done() for sent in bombs):
            began_ns = clock.now_ns()
            assert e2e_stack.ask(url, INFER, body=good()).status == 200
            longest_s = max(longest_s, (clock.now_ns() - began_ns) / 1e9)

    assert {sent.result().status for sent in bombs} == {413}
    assert longest_s < 5


def test_a_body_that_is_announced_too_long_is_a_413_before_it_is_sent(url: str) -> None:
    """The limit and the announced length are named, and nobody waits for the body."""
    connection = e2e_stack.connect(url, within_s=10)
    try:
        connection.putrequest("POST", INFER)
        connection.putheader("Content-Length", "100000000")
        connection.endheaders()
        answer = e2e_stack.read_answer(connection.getresponse())
    finally:
        connection.close()

    assert_refused(answer, 413, "100000000", "67108864", "fewer rows")


@pytest.mark.parametrize(
    "damaged",
    [
        gzip.compress(good().encode())[:-20],
        b"\x1f\x8b" + bytes(50),
        b"not compressed at all",
        gzip.compress(good().encode())[:40] + b"\xff" * 40,
        gzip.compress(good().encode())[:-8] + bytes(8),
        gzip.compress(good().encode())[:-4],
    ],
    ids=["cut off", "rubbish behind the mark", "plain text", "overwritten", "wrong checksum", "cut in the checksum"],
)
def test_a_corrupt_gzip_is_a_400_that_says_what_to_send(url: str, damaged: bytes) -> None:
    """Not a 500, not an endless wait, and never an answer to data that failed its own check."""
    assert_refused(e2e_stack.ask(url, INFER, body=damaged, headers={"Content-Encoding": "gzip"}), 400, "send")


def test_an_unknown_encoding_is_a_501_that_names_the_known_ones(url: str) -> None:
    """Also in the header made for that."""
    answer = e2e_stack.ask(url, INFER, body=b"x", headers={"Content-Encoding": "br"})

    assert_refused(answer, 501, "'br'", "gzip")
    assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ("JSON",)),
        (b"{", ("JSON",)),
        (b"[]", ("object", "array")),
        (b'{"inputs": 3}', ("inputs",)),
        (b'{"outputs": []}', ("inputs",)),
        (b'{"inputs": [{"name": "x"}]}', ("shape",)),
        (good().encode() + b" trailing", ("JSON",)),
        (b'{"inputs": [], "parameters": {"triton_x": 1}}', ("x",)),
    ],
)
def test_json_of_another_form_is_a_400_that_points_at_the_place(url: str, body: bytes, words: tuple[str, ...]) -> None:
    """Empty, cut off, of the wrong type, incomplete, followed by something."""
    assert_refused(e2e_stack.ask(url, INFER, body=body), 400, *words)


def test_invalid_utf8_is_a_400_wherever_it_stands(url: str) -> None:
    """In a text for the model, as JSON or binary, and in a name."""
    in_json = e2e_stack.infer_json("text", "BYTES", [1, 1], ["?"]).encode().replace(b"?", b"\xff\xfe")
    in_name = good().encode().replace(b'"x"', b'"\xff"')
    size = {"binary_data_size": 6}
    head = json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "parameters": size}]})
    binary = head.encode() + (2).to_bytes(4, "little") + b"\xff\xfe"
    headers = {"Inference-Header-Content-Length": str(len(head))}

    assert_refused(e2e_stack.ask(url, "/v2/models/minilm/infer", body=in_json), 400, "UTF-8", "byte")
    assert_refused(e2e_stack.ask(url, INFER, body=in_name), 400, "UTF-8")
    assert_refused(e2e_stack.ask(url, "/v2/models/minilm/infer", body=binary, headers=headers), 400, "UTF-8")


@pytest.mark.parametrize("where", ["data", "unknown key", "whole body"])
def test_json_nested_a_hundred_thousand_deep_is_a_400(url: str, where: str) -> None:
    """Neither the parser nor the process breaks."""
    deep = "[" * 10**5 + "]" * 10**5
    body = {
        "data": f'{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": [1, 64], "data": {deep}}}]}}',
        "unknown key": good()[:-1] + f', "more": {deep}}}',
        "whole body": deep,
    }[where]

    assert_refused(e2e_stack.ask(url, INFER, body=body), 400)


# -- bytes that are not HTTP ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n",
        b"HELO mail.example.org\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nno colon here\r\n\r\n",
        b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["long header", "long path", "TLS", "SMTP", "no header", "negative length"],
)
def test_what_is_not_http_is_a_400_in_json_and_the_connection_is_closed(url: str, data: bytes) -> None:
    """Even here the error has the usual form and headers."""
    assert_refused(raw_exchange(url, data), 400)


# -- wrong paths, methods, headers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/", 404, "GET /v2"),
        ("GET", "/v3/models", 404, "/v3/models"),
        ("POST", "/v2/models/a/b/infer", 404, "/v2/models/a/b/infer"),
        ("GET", INFER, 405, "POST"),
        ("PUT", INFER, 405, "POST"),
        ("DELETE", "/v2/health/live", 405, "GET"),
        ("POST", "/v2", 405, "GET"),
    ],
)
def test_a_wrong_path_or_method_has_a_json_error_too(url: str, method: str, path: str, status: int, word: str) -> None:
    """404 and 405 made by the router have the same form as all others."""
    assert_refused(e2e_stack.ask(url, path, method=method), status, word)


@pytest.mark.parametrize("label", ["x" * 129, "caf\xe9", "tab\there"])
def test_a_bad_request_id_is_a_400_and_is_not_echoed(url: str, label: str) -> None:
    """What may go into a log and a header is printable ASCII of a bounded length."""
    answer = e2e_stack.ask(url, INFER, body=good(), headers={"x-request-id": label})

    assert_refused(answer, 400, "x-request-id", "128")
    assert answer.headers["x-request-id"] != label


@pytest.mark.parametrize("timeout", ["0", "-3", "soon", "nan", "1e300"])
def test_an_impossible_timeout_header_is_a_400(url: str, timeout: str) -> None:
    """A number of milliseconds above 0 is asked for."""
    answer = e2e_stack.ask(url, INFER, body=good(), headers={"x-request-timeout-ms": timeout})

    assert_refused(answer, 400, "x-request-timeout-ms", "milliseconds")


def test_an_expired_deadline_fails_at_once_and_the_request_is_never_computed(stack: Stack, url: str) -> None:
    """Triton's `timeout` in microseconds ends in 503, our header in 504; no worker ran either."""
    triton = json.dumps({**json.loads(good()), "id": "expired-triton", "parameters": {"timeout": 1}})
    ours = json.dumps({**json.loads(good()), "id": "expired-ours"})

    by_triton = e2e_stack.ask(url, INFER, body=triton)
    by_header = e2e_stack.ask(url, INFER, body=ours, headers={"x-request-timeout-ms": "0.001"})
    e2e_stack.ask(url, INFER, body=json.dumps({**json.loads(good()), "id": "not-expired"}))

    assert_refused(by_triton, 503, "deadline", "longer `timeout`")
    assert_refused(by_header, 504, "deadline", "x-request-timeout-ms")
    (served,) = stack.logged(Req, lambda r: r.client_id == "not-expired")
    stack.logged(Wreq, lambda w: w.id == served.id)
    late = {r.id for r in stack.records(Req) if r.client_id.startswith("expired-")}
    assert len(late) == 2
    assert not [w for w in stack.records(Wreq) if w.id in late and w.batch_id]


async def test_a_deadline_that_passes_while_a_request_waits_ends_it_on_time(stack: Stack, url: str) -> None:
    """Behind a pass of 0.8 s a request with 100 ms to live is answered 504 after these, and not computed."""
    e2e_stack.know_that_nap_is_quick(stack)
    nap = f"{url}/v2/models/nap/infer"
    async with e2e_stack.clients() as session, e2e_stack.broker_of(stack) as broker:
        ahead = asyncio.create_task(session.post(nap, data=e2e_stack.infer_json("ms", "INT64", [1, 1], [800])))

        async def taken() -> bool:
            return await e2e_stack.live(broker, "nap") == 1

        await e2e_stack.soon(taken, within_s=10, what="the long pass is taken on")
        headers = {"x-request-timeout-ms": "100", "x-request-id": "short-lived"}
        body = e2e_stack.infer_json("ms", "INT64", [1, 1], [0])
        async with session.post(nap, data=body, headers=headers) as late:
            error = (await late.json())["error"]
            status = late.status
        unfinished = not ahead.done()
        async with await ahead as response:
            assert response.status == 200

    assert status == 504
    assert "deadline" in error
    assert unfinished, "the pass was over before the deadline: this proves nothing"
    (late_req,) = stack.logged(Req, lambda r: r.label == "short-lived")
    assert 0.095 <= (late_req.g8 - late_req.g0) / 1e9 < 0.3  # the event loop's timers count whole milliseconds
    assert not [w for w in stack.records(Wreq) if w.id == late_req.id and w.batch_id]


async def test_too_many_requests_are_429s_that_say_when_to_come_back(stack: Stack) -> None:
    """A gateway that may hold two takes two, refuses the others at once, and then serves again."""
    process, url = stack.start_gateway("--inflight-max", "2")
    try:
        async with e2e_stack.clients() as session:
            replies = await asyncio.gather(*(e2e_stack.ask_slow(session, url, n) for n in range(12)))
        after = e2e_stack.ask(url, "/v2/models/slow/infer", body=e2e_stack.slow_body(5))
    finally:
        process.stop()

    refused = [reply for reply in replies if reply.status != 200]
    headers = [{name.lower(): value for name, value in reply.headers.items()} for reply in refused]
    assert len(refused) == 10
    for reply, sent in zip(refused, headers, strict=True):
        assert_refused(Answer(reply.status, sent, reply.text.encode()), 429, "2 requests", "retry after")
        assert sent["retry-after"] == "1"
    assert not e2e_stack.wrong(reply for reply in replies if reply.status == 200)
    assert after.status == 200


@pytest.mark.parametrize("path", ["/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/mlp", "/v2/models/stats"])
def test_every_good_response_carries_the_usual_headers_too(url: str, path: str) -> None:
    """Id, trace and timing are not only for inference."""
    answer = e2e_stack.ask(url, path)

    assert answer.status == 200
    assert_has_the_usual_headers(answer)
