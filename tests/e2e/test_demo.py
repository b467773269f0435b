"""`tailrace demo`: from nothing to search results and an account of the time, in one command."""

from pathlib import Path

import e2e_stack


def test_the_demo_answers_both_questions_and_shows_where_the_time_went(tmp_path: Path) -> None:
    """In a pipe it ends by itself with 0, and leaves no process behind."""
    demo = e2e_stack.Process("demo", "--texts", "60", "--port", "0", "--data-dir", tmp_path / "d", directory=tmp_path)
    try:
        status = demo.wait_ended(within_s=90)
        text = demo.text
    finally:
        demo.stop()

    assert status == 0, text
    for question in ("remove a directory tree", "compress bytes with gzip"):
        _, _, answers = text.partition(f'"{question}"')
        scores = [float(line.split()[0]) for line in answers.splitlines()[1:5]]
        assert scores == sorted(scores, reverse=True)
        assert all(-1 <= score <= 1 for score in scores)
    table = text.partition("Where the time went")[2]
    for words in ("p50 ms", "p99 ms", "forward", "stream_wait", "62 requests"):
        assert words in table, table
    assert "= e2e, exactly" in table
    assert "tailrace serves at http://127.0.0.1:" in text
