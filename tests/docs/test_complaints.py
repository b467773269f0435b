"""The table of complaints in tests/README.md, and the tests that it names."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROW = re.compile(r"^\| (\d+) \|[^|]*\|([^|]*)\|$", re.MULTILINE)
TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
CITES = re.compile(r"complaints? ([\d, and]+)")


def test_every_complaint_names_tests_that_exist_and_cite_it() -> None:
    """A test that is renamed takes its row along."""
    texts = [path.read_text() for path in TESTS.rglob("test_*.py")]
    where = {match[1]: text for text in texts for match in TEST.finditer(text)}
    rows = ROW.findall((TESTS / "README.md").read_text())
    assert len(rows) == 29
    for number, cell in rows:
        tests = re.findall(r"`(test_\w+)`", cell)
        assert tests or "does not apply" in cell, f"row {number}: {cell}"
        assert not [test for test in tests if test not in where], f"row {number}: {cell}"
        cited = {n for test in tests for n in _cited(where[test], test)}
        assert not tests or number in cited, f"no test of row {number} cites it: {cell}"


def _cited(text: str, test: str) -> set[str]:
    """Numbers that the docstring of a test cites, or that of its file."""
    head, _, rest = text.partition(f"def {test}(")
    docs = head.partition('"""')[2].partition('"""')[0] + rest.partition("\n\n\n")[0]
    return {n for found in CITES.findall(docs) for n in re.findall(r"\d+", found)}
