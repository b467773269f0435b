"""The table of other queues' bugs in README.md, and the tests that it names."""

import re
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"^\| (\d+) \|(?:[^|]*\|){2}([^|]*)\|$", re.MULTILINE)
TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def test_every_row_names_tests_that_exist_and_cite_it() -> None:
    """A test that is renamed takes its row along."""
    texts = [path.read_text() for path in HERE.parent.rglob("test_*.py")]
    where = {match[1]: text for text in texts for match in TEST.finditer(text)}
    rows = ROW.findall((HERE / "README.md").read_text())
    assert len(rows) == 34
    for number, cell in rows:
        tests = re.findall(r"`(test_\w+)`", cell)
        assert not [test for test in tests if test not in where], f"row {number}: {cell}"
        if cell.strip().startswith("`"):
            body = where[tests[0]].partition(f"def {tests[0]}(")[2].partition("\n\n\n")[0]
            assert re.search(rf"row {number}\b", body), f"{tests[0]} does not cite row {number}"
