"""Outcomes against latency: what is joined, what is adjusted, and what is never claimed."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from recorded_runs import Recipe, write_run

from forensics.correlate import bootstrap_mean, respond, wilson
from forensics.correlate_command import correlate_command
from forensics.correlate_report import NOT_A_CAUSE, conclusion
from forensics.outcomes import Joined, OutcomeError, join, read_outcomes
from forensics.store import open_store
from shared.events import Req

MS = 1_000_000


def world(
    chance: Callable[[float, int, int], float], *, n: int = 6_000, seed: int = 0, any_size: bool = False
) -> tuple[np.ndarray, Joined]:
    """Requests of three sizes, or of any size between, within four hours; the larger and the later are slower. And a
    boolean for each, whose chance follows from latency (ms), size and hour."""
    rng = np.random.default_rng(seed)
    size, hour = rng.choice([100, 1_000, 10_000], n), rng.integers(500_000, 500_004, n)
    if any_size:
        size = (10 ** rng.uniform(2, 4, n)).astype(np.int64)
    usual = np.log10(size) * 20 + (hour - 500_000) * 15
    ms = usual * rng.lognormal(0, 0.5, n)
    chances = np.array([chance(*row) for row in zip(ms, size, hour - 500_000, strict=True)])
    y = (rng.random(n) < chances).astype(float)
    rows = np.arange(n)
    return y, Joined(rows, (ms * MS).astype(np.int64), size, hour, np.ones(n, np.int64), {"id": n}, 0, 0, 0, 0)


def test_a_fall_along_latency_is_found_after_adjusting() -> None:
    """Ten points less for every 100 ms, whatever the size: most strata point the same way."""
    r = respond("converted", *world(lambda ms, size, hour: max(0.6 - ms / 1_000, 0.0)), boolean=True)
    assert r.adjusted is not None
    assert r.adjusted.trend.p < 0.001
    assert r.adjusted.hi < 0
    assert r.adjusted.same_way >= 0.8 * r.adjusted.directed
    (text,) = conclusion(r)
    assert text.startswith("After adjusting for size and hour, converted is lower where requests took longer")


def no_effect_of_latency(ms: float, size: int, hour: int) -> float:
    """Large requests and late hours convert less; latency does nothing."""
    return 0.7 - 0.1 * float(np.log10(size)) - 0.05 * hour


@pytest.mark.parametrize("any_size", [False, True])
def test_what_size_and_hour_explain_is_not_blamed_on_latency(any_size: bool) -> None:
    """The plain trend is there every time, the adjusted one about as often as chance has it."""
    shown = 0
    for seed in range(20):
        y, joined = world(no_effect_of_latency, n=5_000, seed=seed, any_size=any_size)
        r = respond("converted", y, joined, boolean=True)
        assert r.trend.p < 0.05
        assert r.adjusted is not None
        shown += r.adjusted.trend.p < 0.05
    assert shown <= 3
    y, joined = world(no_effect_of_latency)
    (text,) = conclusion(respond("converted", y, joined, boolean=True))
    assert "but after adjusting for size and hour no such trend is shown" in text


def test_where_size_decides_latency_the_like_are_compared() -> None:
    """No stratum meets fast and slow bands, but each has its own faster and slower ones."""
    rng = np.random.default_rng(1)
    size = rng.choice([100, 1_000, 10_000], 3_000)
    ms = size * rng.lognormal(0, 0.1, 3_000)
    y = (rng.random(3_000) < np.where(ms > size, 0.2, 0.5)).astype(float)
    nothing = np.zeros(3_000, np.int64)
    joined = Joined(np.arange(3_000), (ms * MS).astype(np.int64), size, nothing, nothing, {}, 0, 0, 0, 0)
    r = respond("converted", y, joined, boolean=True)
    assert r.adjusted is not None
    assert r.adjusted.relative
    assert r.adjusted.trend.p < 0.001
    assert r.adjusted.same_way == r.adjusted.directed == 3
    (text,) = conclusion(r)
    assert "took longer than others of their size and hour" in text


def test_strata_too_thin_to_compare_are_not_adjusted() -> None:
    """Every request in an hour of its own: said, not smoothed over."""
    y, joined = world(lambda ms, size, hour: 0.5, n=45)
    alone = Joined(joined.row, joined.e2e_ns, joined.size, np.arange(45), np.arange(45), {}, 0, 0, 0, 0)
    r = respond("converted", y, alone, boolean=True)
    assert r.adjusted is None
    assert "cannot be adjusted" in next(conclusion(r))


def test_numbers_have_bootstrap_intervals() -> None:
    """Revenue falls with latency; the bands' intervals hold their true means about as often as they say."""
    rng = np.random.default_rng(2)
    _, joined = world(lambda ms, size, hour: 0.5)
    ms = joined.e2e_ns / MS
    r = respond("revenue", rng.exponential(100 - ms / 10), joined, boolean=False)
    assert not r.boolean
    assert r.adjusted is not None
    assert r.adjusted.hi < 0
    held = sum(
        band.lo < np.mean(100 - ms[(joined.e2e_ns >= band.low) & (joined.e2e_ns <= band.high)] / 10) < band.hi
        for band in r.bands
    )
    assert held >= 8


@pytest.mark.parametrize("n", [30, 499, 501, 999, 20_000])
def test_the_bootstrap_is_as_wide_as_it_should_be(n: int) -> None:
    """Also where groups stand for single values, and where their sizes differ."""
    values = np.random.default_rng(n).normal(5, 2, n)
    lo, hi = bootstrap_mean(values, np.random.default_rng(1))
    assert (lo + hi) / 2 == pytest.approx(values.mean(), abs=0.1 * 2 / n**0.5 + 0.02)
    assert hi - lo == pytest.approx(2 * 1.96 * values.std() / n**0.5, rel=0.1)


def test_wilsons_limits_are_those_of_the_books() -> None:
    """Never outside of 0 and 1, and never without width."""
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20)[0] == pytest.approx(0.8389, abs=1e-4)


def test_no_sentence_claims_a_cause() -> None:
    """Whatever is found."""
    causal = ("because", "causes", "leads to", "due to", "results in", "costs you")
    for chance in (lambda ms, s, h: 0.5, lambda ms, s, h: 0.9 - ms / 1_000, lambda ms, s, h: 0.7 - 0.1 * np.log10(s)):
        text = " ".join(conclusion(respond("converted", *world(chance, n=3_000), boolean=True)))
        assert not any(word in text for word in causal)
    assert "only an experiment does" in NOT_A_CAUSE


def test_too_few_requests_are_refused() -> None:
    """Thirty nine give no dose and no response."""
    y, joined = world(lambda ms, size, hour: 0.5, n=39)
    with pytest.raises(ValueError, match="39 requests have the outcome"):
        respond("converted", y, joined, boolean=True)


def written(tmp_path: Path, text: str) -> Path:
    """A file of outcomes."""
    file = tmp_path / "outcomes"
    file.write_text(text)
    return file


def test_csv_and_json_lines_say_the_same(tmp_path: Path) -> None:
    """With separators as spreadsheets write them; what is no outcome is left out by name."""
    by_csv = read_outcomes(
        written(tmp_path, "x-request-id;ok;paid;where\na;yes;1.5;de\nb;No;;fr\nb;yes;2;fr\n;no;1;de\n")
    )
    lines = [{"label": "a", "ok": True, "paid": 1.5, "where": "de"}, {"label": "b", "ok": "yes", "paid": 2}]
    by_json = read_outcomes(written(tmp_path, "\n".join(map(json.dumps, lines))))
    for o in (by_csv, by_json):
        assert list(o.keys) == ["a", "b"]
        assert {name: list(values) for name, values in o.values.items()} == {"ok": [1.0, 1.0], "paid": [1.5, 2.0]}
        assert o.booleans == {"ok"}
        assert list(o.left_out) == ["where"]
    assert (by_csv.key_column, by_csv.without_key, by_csv.repeated) == ("x-request-id", 1, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("id,ok\n", "has no rows"),
        ("id,ok\na,yes,more\n", "line 2: 3 fields"),
        ("id,id\na,b\n", "named twice"),
        ("who,ok\na,yes\n", "no column names the request"),
        ("id,where\na,de\n", "no column beside the key"),
        ("id,ok\n\"a,yes\n", "line"),
        ("[{}]", "one object a line"),
        ("{\"id\": \"a\"\n", "line 1: no JSON"),
        ("{\"id\": \"a\", \"ok\": 1}\n[1]\n", "line 2: expected an object"),
        ("{}\n{}\n", "no column names the request"),
        ("id,n\na,nan\nb,inf\n", "no column beside the key"),
        ("id," + ",".join(f"o{i}" for i in range(21)) + "\na" + ",1" * 21 + "\n", "at most 20"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, words: str) -> None:
    """With the line and what was expected."""
    with pytest.raises(OutcomeError) as told:
        read_outcomes(written(tmp_path, text))
    assert words in str(told.value)


def test_columns_that_are_named_must_be_there_and_fit(tmp_path: Path) -> None:
    """What was asked for by name is not left out in silence."""
    file = written(tmp_path, "id,ok,where\na,yes,de\n")
    for named, words in (({"key": "who"}, "no column 'who'"), ({"wanted": ["no"]}, "no column 'no'")):
        with pytest.raises(OutcomeError, match=words):
            read_outcomes(file, **named)  # type: ignore[arg-type]
    with pytest.raises(OutcomeError, match="'where' must be booleans or numbers, and one is 'de'"):
        read_outcomes(file, wanted=["where"])
    (tmp_path / "latin").write_bytes(b"id,ok\n\xe4,yes\n")
    with pytest.raises(OutcomeError, match="no UTF-8"):
        read_outcomes(tmp_path / "latin")


def found_in(logs: Path, tmp_path: Path, keys: list[str], **options: Any) -> Joined:
    """The join of these keys."""
    o = read_outcomes(written(tmp_path, "id,ok\n" + "".join(f"{key},yes\n" for key in keys)))
    with open_store([logs]) as store:
        return join(store, o, **options)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs in which the first of 20 requests was refused; one label is borne by three requests."""
    folder = tmp_path_factory.mktemp("named")
    write_run(folder, requests=20, errors=1, label="order")
    file = folder / "gateway-gw-1.jsonl"
    text = file.read_text().replace('"order-17"', '"order-16"').replace('"order-0"', '"order-16"')
    file.write_text(text.replace('"client_id":""', '"client_id":"body-5"', 6))
    return folder


def test_requests_are_found_by_id_label_and_body_id(named: Path, tmp_path: Path) -> None:
    """Ours first, then the client's; both sides' leftovers are counted."""
    j = found_in(named, tmp_path, ["0000-0-000003", "order-4", "order-99", "0000-0-000000"])
    assert dict(j.by) == {"id": 1, "label": 1}
    assert list(j.row) == [0, 1]
    assert (j.outcomes_unmatched, j.outcomes_of_failed, j.requests_unmatched) == (1, 1, 17)
    assert (j.size == 1_000).all()
    with_failed = found_in(named, tmp_path, ["0000-0-000000"], failed=True)
    assert list(with_failed.row) == [0]


def test_a_name_of_several_requests_counts_as_told(named: Path, tmp_path: Path) -> None:
    """A refused first try is no second request; of two answered ones, none, the first, the last or the slowest."""
    ends = {}
    for several in ("out", "first", "last", "slowest"):
        j = found_in(named, tmp_path, ["order-16"], several=several)
        assert j.outcomes_of_several == 1
        ends[several] = list(j.e2e_ns)
    assert ends["out"] == []
    assert ends["first"] != ends["last"]
    assert ends["slowest"] == [max(ends["first"] + ends["last"])]


def test_a_label_that_a_refused_try_shares_is_not_ambiguous(tmp_path: Path) -> None:
    """The client tried again, and that is the request."""
    write_run(tmp_path / "logs", requests=4, errors=1, label="order")
    file = tmp_path / "logs" / "gateway-gw-1.jsonl"
    file.write_text(file.read_text().replace('"order-0"', '"order-2"'))
    j = found_in(tmp_path / "logs", tmp_path, ["order-2"])
    assert len(j.row) == 1
    assert j.outcomes_of_several == 0


def run(*args: str | Path) -> Result:
    """Run the command; an exception that it lets through is a traceback to its user."""
    result = CliRunner().invoke(correlate_command, [str(a) for a in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def write_outcomes(file: Path, requests: list[Req]) -> None:
    """Slow requests convert less; one outcome is of a request that nobody logged."""
    rng = random.Random(1)
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["x-request-id", "converted", "revenue"])
        for r in requests[20:]:
            rows.writerow([r.label, str(rng.random() < (0.7 if r.g8 - r.g0 < 30 * MS else 0.2)).lower(), rng.random()])
        rows.writerow(["nobody", "true", 1])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Logs of 500 requests, and the outcomes of 480 of them."""
    folder = tmp_path_factory.mktemp("shop")
    file = folder / "outcomes.csv"
    write_outcomes(file, write_run(folder / "logs", Recipe(requests=500, label="order")))
    return folder / "logs", file


def test_the_command_tells_match_bands_and_conclusion(shop: tuple[Path, Path]) -> None:
    """As text: both sides' leftovers, the bands, one sentence for each outcome, and the caveat once."""
    logs, file = shop
    result = run("--outcomes", file, logs)
    assert result.exit_code == 0, result.output
    text = result.output
    assert text.startswith("480 outcomes have their request (480 by x-request-id)")
    assert "  1 outcomes name no request in these logs" in text
    assert "  20 requests in these logs have no outcome" in text
    assert "After adjusting for size and hour, converted is lower where requests took longer" in text
    assert "No association of revenue with latency is shown" in text
    assert text.count("only an experiment does") == 1


def test_the_command_as_json_with_edges_given(shop: tuple[Path, Path]) -> None:
    """One object; bands as asked for."""
    logs, file = shop
    result = run("--outcomes", file, logs, "--edges", "25,30,40", "--outcome", "converted", "--json")
    told = json.loads(result.stdout)
    assert told["matching"]["matched"] == 480
    (converted,) = told["outcomes"]
    assert len(converted["bands"]) == 4
    assert converted["bands"][1]["low_ns"] >= 25 * MS
    assert sum(band["requests"] for band in converted["bands"]) == 480
    assert converted["trend"]["z"] < 0


def test_bad_input_has_status_2_and_says_what_is_expected(shop: tuple[Path, Path], tmp_path: Path) -> None:
    """No traceback; where nothing matches, what was counted."""
    logs, file = shop
    strangers = written(tmp_path, "id,ok\n" + "".join(f"x{i},yes\n" for i in range(50)))
    for args, words in (
        (["--outcomes", tmp_path / "none.csv", logs], "does not exist"),
        (["--outcomes", file, tmp_path / "nowhere"], "there is no"),
        (["--outcomes", file, logs, "--edges", "30,20"], "rising numbers"),
        (["--outcomes", file, logs, "--edges", "fast"], "rising numbers"),
        (["--outcomes", file, logs, "--edges", "nan,inf"], "rising numbers"),
        (["--outcomes", file, logs, "--key", "who"], "no column 'who'"),
        (["--outcomes", strangers, logs], "50 outcomes name no request in these logs"),
        ([logs], "--outcomes"),
    ):
        result = run(*args)
        assert result.exit_code == 2, result.output
        assert words in result.output


def test_help_says_that_it_is_no_cause() -> None:
    """Before anybody quotes a number."""
    result = run("--help")
    assert "association, never a cause" in result.output.replace("\n ", "")
    assert "Example:\n    tailrace correlate" in result.output
