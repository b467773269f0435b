"""From a gateway's log to the same traffic again."""

from pathlib import Path

import pytest
from bench_logs import log_line, write_log

from bench import replay
from bench.connections import target_of
from bench.errors import CannotMeasure
from bench.oip import ModelSpec, TensorSpec
from bench.replay import Recorded, Size
from bench.workload import Maker, Request, Sender, Shape
from shared.keys import HIGH, NORMAL

MS = 1_000_000
TARGET = target_of("http://h")


def test_the_gaps_are_those_of_the_log_whatever_the_order_of_its_lines(tmp_path: Path) -> None:
    """Lines are written when requests end; what counts is when they began."""
    lines = [log_line(30, rows=2), log_line(10.5), log_line(10, rows=4, priority=HIGH, status=429, bytes_in=64)]
    recorded = replay.read([write_log(tmp_path, *lines)])
    assert recorded == [
        Recorded(0, "m", Size(4, 64, HIGH)),
        Recorded(MS // 2, "m", Size(1, 100, NORMAL)),
        Recorded(20 * MS, "m", Size(2, 100, NORMAL)),
    ]


def test_only_requests_of_the_model_are_sent(tmp_path: Path) -> None:
    """Not those of others, not those that never named one, nor those whose inputs could not be read."""
    lines = [log_line(0, model="other"), log_line(1, model=""), log_line(2, rows=0), log_line(3), log_line(5)]
    assert [r.at_ns for r in replay.read([write_log(tmp_path, *lines)], model="m")] == [0, 2 * MS]


def test_gateways_of_several_machines_are_compared_by_the_wall_clock(tmp_path: Path) -> None:
    """Their monotonic clocks have nothing in common."""
    one = write_log(tmp_path / "a", log_line(0), log_line(20))
    two = write_log(tmp_path / "b", log_line(500_000, clock="clock-b", wall_ahead_us=-499_990_000))
    assert [r.at_ns for r in replay.read([one, two])] == [0, 10 * MS, 20 * MS]


def test_only_what_came_since_is_read(tmp_path: Path) -> None:
    """The log of a week has more than anybody wants to wait for."""
    folder = write_log(tmp_path, log_line(0), log_line(1_000), log_line(3_000))
    since_us = 1_796_029_200_000_000 + 900_000
    assert [r.at_ns for r in replay.read([folder], since_us=since_us)] == [0, 2_000 * MS]


def test_speed_divides_the_gaps_and_the_length_cuts(tmp_path: Path) -> None:
    """--speed 2 is twice the rate; --duration counts in the time of the replay."""
    recorded = replay.read([write_log(tmp_path, *(log_line(i * 10) for i in range(6)))])
    request = Request(b"", 1)
    requests = {("m", recorded[0].size): request}
    plan = list(replay.planned(recorded, requests, speed=2, duration_ns=0))
    assert plan == [(i * 5 * MS, request) for i in range(6)]
    assert len(list(replay.planned(recorded, requests, speed=2, duration_ns=12 * MS))) == 3


def test_no_logs_and_no_requests_are_told(tmp_path: Path) -> None:
    """Each with what to do."""
    with pytest.raises(CannotMeasure, match="there are no logs at"):
        replay.read([tmp_path / "none"])
    with pytest.raises(CannotMeasure, match="no requests for model 'x'"):
        replay.read([write_log(tmp_path, log_line(0))], model="x")


def made(spec: ModelSpec, size: Size, *, binary: bool = False) -> tuple[Request, int]:
    """The request made for a size, and the bytes of its body."""
    request = replay.request_of(size, Maker(spec, Shape(), 1), Sender(TARGET, spec, binary, {}))
    return request, len(request.message.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("size_bytes", [150, 1_000, 40_000])
@pytest.mark.parametrize("rows", [1, 3])
def test_texts_are_as_long_as_the_recorded_ones(size_bytes: int, rows: int, binary: bool) -> None:
    """To a byte each, unless the frame around them is larger than all that was sent."""
    spec = ModelSpec("m", "", (TensorSpec("text", "BYTES", (-1, 1)),), (), 64)
    request, body_bytes = made(spec, Size(rows, size_bytes, NORMAL), binary=binary)
    assert request.rows == rows
    assert body_bytes == pytest.approx(size_bytes, abs=60 if size_bytes == 150 else 8)


@pytest.mark.parametrize("size_bytes", [1_000, 100_000])
def test_a_free_dimension_is_as_large_as_the_recorded_bytes_ask(size_bytes: int) -> None:
    """Numbers vary in length as JSON, so to 10 %."""
    spec = ModelSpec("m", "", (TensorSpec("ids", "INT64", (-1, -1)),), (), 64)
    _, body_bytes = made(spec, Size(1, size_bytes, NORMAL))
    assert body_bytes == pytest.approx(size_bytes, rel=0.1)


@pytest.mark.parametrize(("rows_max", "rows"), [(64, 64), (0, 1), (None, 100)])
def test_more_rows_than_the_model_takes_become_as_many_as_it_takes(rows_max: int | None, rows: int) -> None:
    """The gateway divides large requests for embeddings; an infer request must fit as it is."""
    spec = ModelSpec("m", "", (TensorSpec("text", "BYTES", (-1, 1)),), (), rows_max)
    request, body_bytes = made(spec, Size(100, 50_000, NORMAL))
    assert request.rows == rows
    assert body_bytes == pytest.approx(500 * rows, rel=0.1)


def test_a_fixed_shape_has_only_its_rows() -> None:
    """The log's bytes then say no more; the priority is sent along."""
    spec = ModelSpec("m", "", (TensorSpec("x", "FP32", (-1, 4)),), (), 64)
    request, _ = made(spec, Size(5, 999_999, HIGH))
    assert request.rows == 5
    assert b"x-request-priority: 1\r\n" in request.message
    assert len(request.message) < 1_000
