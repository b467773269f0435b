"""HTTP responses in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.responses import HEAD_BYTES_MAX, BadResponse, Response, ResponseReader, request_bytes

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODIES = {
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer-Timing: total;dur=1\r\n\r\nhello": b"hello",
    b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n": b"",
    b"HTTP/1.1 204 No Content\r\n\r\n": b"",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok": b"ok",
    CHUNKED + b"4\r\nWiki\r\n6;x=y\r\npedia \r\nB\r\nin \r\nchunks\r\n0\r\n\r\n": b"Wikipedia in \r\nchunks",
    CHUNKED + b"1\r\na\r\n0\r\nTrailer: x\r\n\r\n": b"a",
}


@given(st.sampled_from(sorted(BODIES)), st.lists(st.integers(1, 200)), st.booleans())
def test_a_response_is_the_same_however_it_is_cut(wire: bytes, cuts: list[int], twice: bool) -> None:
    """Network pieces have nothing to do with messages; the reader is ready for the next one."""
    reader = ResponseReader()
    for _ in range(2 if twice else 1):
        at = 0
        got: list[Response] = []
        for cut in [*sorted(cuts), len(wire)]:
            if at < min(cut, len(wire)):
                response = reader.feed(wire[at : min(cut, len(wire))])
                at = min(cut, len(wire))
                if response is not None:
                    got.append(response)
        assert [(r.body, r.reusable) for r in got] == [(BODIES[wire], True)]
        assert reader.eof() is None


def test_headers_are_found_in_any_case() -> None:
    """Names are case-insensitive, values keep their case; of a name that is not there there is no value."""
    response = ResponseReader().feed(b"HTTP/1.1 200 OK\r\nX-Tailrace-Request-Id: AbC \r\ncontent-length: 0\r\n\r\n")
    assert response is not None
    assert response.header("x-tailrace-request-id") == "AbC"
    assert response.header("tailrace-request-id") is None


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_a_connection_is_used_again_only_if_the_server_keeps_it(head: bytes, reusable: bool) -> None:
    """HTTP/1.1 keeps by default, HTTP/1.0 closes."""
    response = ResponseReader().feed(head + b"Content-Length: 0\r\n\r\n")
    assert response is not None
    assert response.reusable is reusable


def test_without_a_length_the_end_of_the_connection_is_the_end_of_the_body() -> None:
    """As HTTP/1.0 did it."""
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nall of") is None
    assert reader.feed(b" it") is None
    assert reader.eof() == Response(200, b"HTTP/1.1 200 OK", b"all of it", False)


def test_more_than_was_asked_for_ends_the_connection() -> None:
    """The answer counts, but nobody knows what the rest belongs to."""
    response = ResponseReader().feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more")
    assert response is not None
    assert (response.body, response.reusable) == (b"ok", False)


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        CHUNKED + b"-5\r\n",
        CHUNKED + b"zz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * HEAD_BYTES_MAX,
    ],
)
def test_what_is_no_response_is_refused(wire: bytes) -> None:
    """A database or a mail server may listen there."""
    with pytest.raises(BadResponse):
        ResponseReader().feed(wire)


@pytest.mark.parametrize("wire", [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"])
def test_a_response_that_is_cut_off_is_none(wire: bytes) -> None:
    """The server died within it."""
    reader = ResponseReader()
    assert reader.feed(wire) is None
    with pytest.raises(BadResponse, match="within the response"):
        reader.eof()


def test_a_request_is_written_as_it_goes_onto_the_wire() -> None:
    """A POST always says its length; a GET has no body to speak of."""
    headers = {"Host": "h:1", "A": "b"}
    assert request_bytes("GET", "/v2", headers) == b"GET /v2 HTTP/1.1\r\nHost: h:1\r\nA: b\r\n\r\n"
    assert request_bytes("POST", "/p", headers, b"xy") == (
        b"POST /p HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 2\r\n\r\nxy"
    )
