"""What people read: it adds up, fits 80 columns, and shows log text as it is."""

import io
import re
from pathlib import Path

from forensics_logbook import Logbook, batch, ns, req, wreq, write_gateway, write_worker
from rich.console import Console

from forensics.explain import explain
from forensics.load import Logs
from forensics.report import exact_ms, print_to, render_explanation, render_requests, segment_table, visible
from forensics.requests import rows


def _plain(shown: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_to(console, shown)  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def _coloured(shown: object) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard", legacy_windows=False)
    print_to(console, shown)  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def _story(folder: Path, **fields: object) -> Logs:
    book = Logbook(folder)
    r = req("req-0001", **fields)
    write_gateway(book, r)
    write_worker(book, r)
    return Logs.load([folder])


def test_the_shown_milliseconds_add_up_to_the_shown_sum(tmp_path: Path) -> None:
    """Whoever checks the waterfall with a calculator finds it right to the last digit."""
    (e,) = explain(_story(tmp_path), "req-0001")
    text = _plain(render_explanation(e))
    bars = re.findall(r"^(\w+) +(-?\d+\.\d{6}) .*\|", text, re.M)
    (total,) = re.findall(r"^sum +(\d+\.\d{6}) = e2e, exactly$", text, re.M)
    assert len(bars) == len(e.segments)
    assert sum(int(ms.replace(".", "")) for _, ms in bars) == int(total.replace(".", "")) == 100_000_123


def test_the_waterfall_says_what_the_worker_was_doing(tmp_path: Path) -> None:
    """Under the wait in the stream stand the batch before and the pause in it."""
    (e,) = explain(_story(tmp_path), "req-0001")
    text = _plain(render_explanation(e))
    assert "ran batch b-1: 2 requests of minilm/1" in text
    assert "25.000000 worker collected garbage (generation=2)" in text
    assert "60 of 80 tokens useful, 25.0 % padding" in text
    assert "with ate-0001" in text


def test_in_a_pipe_there_is_plain_ascii_of_80_columns(tmp_path: Path) -> None:
    """No colour codes and no box characters reach a file or grep."""
    logs = _story(tmp_path)
    (e,) = explain(logs, "req-0001")
    for shown in (render_explanation(e), render_requests(rows(logs)), segment_table(rows(logs))):
        text = _plain(shown)
        assert text.isascii()
        assert "\x1b" not in text
        assert max(len(line) for line in text.splitlines()) <= 80


def test_on_a_terminal_classes_have_colours(tmp_path: Path) -> None:
    """Colour is for the eye only: the words are the same."""
    (e,) = explain(_story(tmp_path), "req-0001")
    text = _coloured(render_explanation(e))
    assert "\x1b[33m" in text
    assert "█" in text


def test_markup_in_a_label_or_an_error_shows_literally(tmp_path: Path) -> None:
    """Log text is data: a client cannot colour, hide or link anything on the screen of who reads it."""
    evil = "[bold red]paid[/] :smile: [link=http://evil]x[/link]"
    logs = _story(tmp_path, label=evil, status=500, error_code="model_error", error=f"{evil} [/nothing]")
    (e,) = explain(logs, "req-0001")
    assert f"label {evil}" in _plain(render_explanation(e))
    assert f"model_error: {evil} [/nothing]" in _plain(render_explanation(e))
    assert evil in _plain(render_requests(rows(logs)))


def test_control_characters_cannot_forge_lines_or_drive_the_terminal(tmp_path: Path) -> None:
    """Line ends, escape sequences and text direction marks are shown escaped."""
    logs = _story(tmp_path, label="a\nrequest forged\x1b[2J\u202e")
    (e,) = explain(logs, "req-0001")
    for text in (_plain(render_explanation(e)), _coloured(render_requests(rows(logs)))):
        assert "\nrequest forged" not in text
        assert "\x1b[2J" not in text
        assert "\u202e" not in text
    assert visible("a\n\x1b\u202e ü") == "a\\n\\x1b\\u202e ü"


def test_many_culprits_are_cut_to_a_sum(tmp_path: Path) -> None:
    """A wait behind a hundred batches is a few lines, and the rest is still counted."""
    book = Logbook(tmp_path)
    r = req("req-0001")
    write_gateway(book, r)
    write_worker(book)
    for n in range(20):
        early = batch(f"c-{n}", start_ms=62.1 + n / 10, end_ms=62.2 + n / 10, members=["x"])
        book.write("worker", "w-1", early, at_ms=66)
    book.write("worker", "w-1", wreq(r), at_ms=98.1)
    (e,) = explain(Logs.load([tmp_path]), "req-0001")
    assert "13 more; --json has them all" in _plain(render_explanation(e))


def test_uncertainty_is_shown_where_it_matters(tmp_path: Path) -> None:
    """The moment Redis had the request is known to half a round trip; a microsecond is not worth a word."""
    (e,) = explain(_story(tmp_path), "req-0001")
    assert re.search(r"^uplink +0\.200000 \+-0\.200 ", _plain(render_explanation(e)), re.M)
    (e,) = explain(_story(tmp_path / "b", g4=ns(1.4) + 2_000), "req-0001")
    assert "+-" not in _plain(render_explanation(e))


def test_the_table_of_segments_has_means_that_add_up(tmp_path: Path) -> None:
    """Per-segment p99s do not sum, so the mean and its share stand beside them."""
    book = Logbook(tmp_path)
    write_gateway(book, *(req(f"req-{n:04}", begun_ms=300 * n, stretch=1 + n / 100) for n in range(100)))
    text = _plain(segment_table(rows(Logs.load([tmp_path]))))
    found = re.findall(r"^(\w+) +\w* +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) %$", text, re.M)
    *parts, whole = found
    assert whole[0] == "e2e"
    assert sum(float(share) for *_, share in parts) <= 100.5
    assert abs(sum(float(mean) for *_, mean, _ in parts) - float(whole[3])) < 0.01
    assert "100 requests" in text
    assert _plain(segment_table([])) == "no requests\n"


def test_milliseconds_keep_all_their_digits() -> None:
    """Integers are split, not divided."""
    assert [exact_ms(n) for n in (0, 1, -1, 100_000_123, -2_500_000)] == [
        "0.000000",
        "0.000001",
        "-0.000001",
        "100.000123",
        "-2.500000",
    ]
