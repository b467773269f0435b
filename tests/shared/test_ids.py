"""Request ids: unique without asking anyone, and in the order of their birth."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import clock
from shared.ids import RequestIds


def test_an_id_is_32_hex_digits() -> None:
    """Safe in a key, a path, a header and a URL."""
    assert re.fullmatch(r"[0-9a-f]{32}", RequestIds().next())


def test_ids_are_unique_within_and_across_processes() -> None:
    """Also those of many processes in the same millisecond."""
    makers = [RequestIds() for _ in range(50)]
    ids = [maker.next() for _ in range(400) for maker in makers]
    assert len(set(ids)) == len(ids)


@given(st.lists(st.integers(1, 1 << 40), min_size=2, max_size=20))
def test_ids_sort_by_time_of_birth(pauses_ms: list[int]) -> None:
    """Whoever made them: the wall clock's millisecond comes first."""
    makers = [RequestIds(), RequestIds()]
    now_ms, ids = 0, []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clock, "wall_us", lambda: now_ms * 1000)
        for i, pause_ms in enumerate(pauses_ms):
            now_ms += pause_ms
            ids.append(makers[i % 2].next())
    assert ids == sorted(ids)


def test_neighbours_differ_at_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an id tells apart what people look at side by side, also when the counter starts again."""
    monkeypatch.setattr("secrets.randbits", lambda bits: (1 << bits) - 2)
    maker = RequestIds()
    assert [maker.next()[-8:] for _ in range(4)] == ["fffffffe", "ffffffff", "00000000", "00000001"]
