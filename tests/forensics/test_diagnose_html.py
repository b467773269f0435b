"""The report that opens in a browser: complete, sound, of bounded size, and deaf to what logs would have it do."""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from forensics_fleet import change_lines, drop_lines, write_fleet
from support import browser

from forensics.diagnose.diagnosis import Diagnosis, diagnose
from forensics.diagnose.html import breakdowns, over_time, svg
from forensics.diagnose.html.findings import explain_command, sql_command
from forensics.diagnose.html.markup import VOID
from forensics.diagnose.periodicity import Period
from forensics.diagnose.report_html import render
from forensics.diagnose_command import diagnose_command
from forensics.statistics.periods import Clock
from forensics.store import open_store

REQUESTS = 10_000
BYTES_MAX = 300_000
NOW_US = 1_796_029_300_000_000
EVIL = "</script><img src=x onerror=alert(1)>\"'&<!--\u202e\n"
"""Name of a model, a worker, and a tenant."""


class Page(HTMLParser):
    """A parsed document: its elements with their attributes, its text, and what does not close."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.wrong += [f"<{tag}> is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        if len({name for name, _ in attrs}) < len(attrs):
            self.wrong.append(f"<{tag}> has an attribute twice: {attrs}")
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Note what closes in the wrong order."""
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str]]:
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


def policy_of(page: Page) -> str:
    """Its content security policy."""
    return next(a["content"] for a in page.named("meta") if a.get("http-equiv") == "Content-Security-Policy")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """Ten thousand requests of a fleet in which every name is an attack, and that is slow every 700 ms."""
    logs = tmp_path_factory.mktemp("evil")
    write_fleet(logs, requests=REQUESTS, per_s=3_000.0, crashed=0.001, late=0.001, left=0.001, refused=0.001)
    evil = json.dumps(EVIL, ensure_ascii=False).encode()[1:-1]
    for file in logs.iterdir():
        for name in (b'"minilm"', b'"w-0"'):
            change_lines(file, lambda line, name=name: line.replace(name, b'"%s%s"' % (name[1:-1], evil)))
        change_lines(file, lambda line: line.replace(b'"tenant":""', b'"tenant":"%s"' % evil))
    with open_store([logs]) as store:
        found = diagnose(store, now_us=NOW_US)
    assert not found.refused
    found.case.__dict__["period"] = Period(Clock.TIME, 0.7e9, 0.7, 4.5, 0.1, 20.0)
    return found


@pytest.fixture(scope="module")
def report(found: Diagnosis) -> str:
    """Its report."""
    return render(found, logs=[Path("my logs")])


def test_the_report_is_well_formed(report: str) -> None:
    """Every element closes, in order, and no two have the same id."""
    page = Page(report)
    assert page.wrong == []
    identities = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))


def test_no_name_in_a_log_becomes_markup(report: str) -> None:
    """Neither in text, nor in an attribute, nor in the data of the script; it is shown as it is, escaped."""
    page = Page(report)
    assert not page.named("img")
    assert len(page.named("script")) == 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert any("w-0</script><img src=x onerror=alert(1)>\"'&<!--\\u202e" in text for text in page.text)
    assert "\u202e" not in report


def test_the_data_of_the_script_can_be_read(report: str) -> None:
    """No text in it ends the block, and it counts every request."""
    (block,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', report, re.S)
    data = json.loads(block)
    assert set(data) == {"time", "fold"}
    assert "<" not in block


def test_the_report_loads_nothing(report: str) -> None:
    """It opens offline: nothing in it refers to anything but itself, and its policy would forbid it."""
    page = Page(report)
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "data", "action", "xlink:href", "background", "style"} & attributes.keys(), tag
        assert attributes.get("href", "#").startswith("#")
    assert not page.named("link")
    assert not page.named("iframe")
    (style,) = re.findall(r"<style>(.*?)</style>", report, re.S)
    assert "url(" not in style
    assert "@import" not in style
    policy = policy_of(page)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_only_our_own_script_and_style_run(report: str) -> None:
    """The policy names both by their hashes."""
    (style,) = re.findall(r"<style>(.*?)</style>", report, re.S)
    (script,) = re.findall(r"<script>(.*?)</script>", report, re.S)
    policy = policy_of(Page(report))
    for kind, text in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy


def test_ten_thousand_requests_fit_in_a_mail(report: str) -> None:
    """Plots are drawn from counts: the file is small, and has few elements."""
    assert len(report.encode()) < BYTES_MAX
    assert len(Page(report).elements) < 5_000


def test_each_plot_says_what_it_shows_to_those_who_do_not_see_it(report: str) -> None:
    """A title, a description, and a table beside it; nothing is hidden as long as no script has run."""
    page = Page(report)
    identities = {attributes.get("id") for _, attributes in page.elements}
    plots = [attributes for attributes in page.named("svg") if attributes.get("role") == "img"]
    assert [plot["id"] for plot in plots] == ["plot-time", "plot-where", "plot-spent", "plot-fold"]
    for plot in plots:
        assert {plot["aria-labelledby"], plot["aria-describedby"]} <= identities
    assert len(page.named("table")) >= 6
    assert not any("hidden" in attributes for _, attributes in page.elements)


def test_findings_come_with_their_queries_and_commands(found: Diagnosis, report: str) -> None:
    """Everything that the terminal tells of a finding is here too, and each query as text and as a command."""
    text = "".join(Page(report).text)
    assert found.findings
    for ranked in found.findings:
        f = ranked.finding
        assert f.cause.title in text
        assert f.summary in text
        assert f.cause.check.replace("`", "") in text
        for evidence in f.evidence:
            assert evidence.says in text
            assert evidence.sql in text
    exemplar = found.exemplars[found.findings[0].finding.exemplars[0]]
    assert f"tailrace explain {exemplar} --log-dir 'my logs'" in text


def test_a_proposed_command_is_safe_to_paste() -> None:
    """A client may choose its request's id, and a shell would run what stands in it."""
    command = explain_command("x'; rm -rf ~ $(reboot)", [Path("my logs")])
    assert shlex.split(command) == ["tailrace", "explain", "x'; rm -rf ~ $(reboot)", "--log-dir", "my logs"]
    assert shlex.split(explain_command("--version", [])) == ["tailrace", "explain", "--", "--version"]
    assert shlex.split(sql_command("SELECT '1'", [Path("a b")])) == ["tailrace", "sql", "a b", "SELECT '1'"]


def test_the_heat_map_counts_each_request_once(found: Diagnosis) -> None:
    """In the column of its arrival and the row of its latency."""
    axis = over_time.time_axis(found.case.window)
    heat = over_time.heat_map(found.case, axis)
    assert heat.counts.sum() == found.requests
    assert np.array_equal(heat.counts.sum(axis=0), np.bincount(axis.bin_of(found.case.window.requests.at_us)))
    rows = np.searchsorted(heat.edges_ms, found.case.e2e_ms * (1 + 1e-9), side="right") - 1
    assert np.array_equal(heat.counts.sum(axis=1), np.bincount(rows, minlength=len(heat.counts)))


def test_the_load_adds_up_to_the_requests_and_the_passes(found: Diagnosis) -> None:
    """Arrivals times seconds are the requests, and the mean queue is Little's: rate times wait."""
    axis = over_time.time_axis(found.case.window)
    load = over_time.load(found.case, axis)
    inside = axis.whole
    seconds = axis.step_us / 1e6
    came = np.nansum(load.arrivals_per_s[inside]) * seconds
    assert came == pytest.approx(found.requests + sum(found.unanswered.values()), rel=0.02)
    segments = found.case.window.requests.segments
    waited = sum(segments[s].sum() for s in ("stream_wait", "lost_attempt", "deliver", "pull", "batch_wait")) / 1e9
    # Those that were taken from a dead worker wait on after the last arrival.
    until_the_end = load.waiting.sum() * seconds
    assert 0 < until_the_end <= waited * 1.001
    assert np.nanmax(load.busy) <= 1.0


def test_the_parts_of_a_bar_sum_to_the_bar(found: Diagnosis) -> None:
    """Also what is too small for a part of its own."""
    for composition in breakdowns.compositions(found.case):
        assert composition.quantiles == [0.5, 0.9, 0.99]
        for i, total in enumerate(composition.total_ms):
            assert sum(part.ms[i] for part in composition.parts) == pytest.approx(total)


def test_the_rows_of_the_blame_matrix_sum_to_what_the_requests_took(found: Diagnosis) -> None:
    """And its classes are all of the tail."""
    blames = breakdowns.blames(found.case)
    assert [blame.by for blame in blames] == ["size", "worker", "gateway"]
    for blame in blames:
        assert sum(row.requests for row in blame.rows) == found.case.tail.sum()
        for row in (*blame.rows, blame.everyone, blame.usual):
            assert sum(row.ms) == pytest.approx(row.total_ms)


def test_the_fold_counts_each_request_in_its_phase(found: Diagnosis) -> None:
    """Over all cycles."""
    folded = breakdowns.folded(found.case)
    assert folded is not None
    assert folded.requests.sum() == found.requests
    assert folded.slow.sum() == (found.case.e2e_ms > folded.slow_ms).sum()
    assert folded.mean_ms.shape[1] == len(folded.requests)


@pytest.mark.parametrize(("clock", "length"), [(Clock.REQUESTS, 1_000.0), (Clock.BYTES, 2_380_000.0)])
def test_a_fold_by_another_clock_has_its_own_cycles(
    found: Diagnosis, monkeypatch: pytest.MonkeyPatch, clock: Clock, length: float
) -> None:
    """Every thousandth request, and so many bytes: ten cycles of a tenth of the requests each."""
    monkeypatch.setitem(found.case.__dict__, "period", Period(clock, length, 0.3, 10.0, 0.1, 20.0))
    folded = breakdowns.folded(found.case)
    assert folded is not None
    assert len(folded.mean_ms) == pytest.approx(10, abs=1)
    assert folded.at(1.0) == f"{length:,.0f}"
    assert f"every {length:,.0f} {clock.value}" in render(found)


def test_without_a_period_nothing_is_folded(found: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plot pretends one."""
    monkeypatch.setitem(found.case.__dict__, "period", None)
    assert 'id="plot-fold"' not in render(found)


def test_the_axis_has_a_bound_for_every_length_of_time(found: Diagnosis) -> None:
    """From a moment to years."""
    window = found.case.window
    for seconds in (1e-6, 0.5, 3.0, 60.0, 86_400.0, 1e9):
        at = np.linspace(1e15, 1e15 + seconds * 1e6, len(window.requests)).astype(np.int64)
        stretched = type(window.requests)(
            **{n: getattr(window.requests, n) for n in window.requests.__slots__} | {"at_us": at}
        )
        axis = over_time.time_axis(
            type(window)(**{n: getattr(window, n) for n in window.__slots__} | {"requests": stretched})
        )
        assert 1 <= axis.bins <= over_time.BINS_MAX
        assert axis.start_us <= at[0]
        assert at[-1] < axis.end_us


@pytest.mark.parametrize(
    ("span_us", "first"),
    [
        (1_000_000, "09:00:00.0"),
        (60_000_000, "09:00:00"),
        (7_200_000_000, "09:00"),
        (40 * 86_400_000_000, "2026-12-03"),
    ],
)
def test_an_axis_is_labelled_as_exactly_as_it_must_be(span_us: int, first: str) -> None:
    """Tenths of a second in a second, days in a month."""
    start = 1_796_029_200_000_000
    ticks = svg.time_ticks(start, start + span_us)
    assert 3 <= len(ticks) <= 11
    assert ticks[0][1] == first


def test_what_cannot_be_said_is_not_drawn(tmp_path: Path) -> None:
    """Without the attempts nobody knows where the time went: the report says so, and shows what one clock measured."""
    write_fleet(tmp_path, requests=1_000)
    for file in tmp_path.glob("worker-*"):
        drop_lines(file, "wreq", every=3, renumber=True)
    with open_store([tmp_path]) as store:
        found = diagnose(store, now_us=NOW_US)
    assert found.refused
    text = render(found)
    assert "cannot say" in text
    assert 'id="plot-time"' in text
    assert 'id="plot-where"' not in text
    assert Page(text).wrong == []


def test_the_command_writes_the_report(tmp_path: Path) -> None:
    """And says where; a path that cannot be written is an error in one line."""
    write_fleet(tmp_path / "logs", requests=400)
    target = tmp_path / "report.html"
    done = CliRunner().invoke(diagnose_command, [str(tmp_path / "logs"), "--html", str(target)])
    assert done.exit_code == 0
    assert f"report: {target}" in done.stderr
    assert Page(target.read_text()).wrong == []
    refused = CliRunner().invoke(diagnose_command, [str(tmp_path / "logs"), "--html", str(tmp_path / "no" / "x.html")])
    assert refused.exit_code == 1
    assert "the report cannot be written" in refused.stderr


@pytest.fixture(scope="module")
def page(report: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    """The report, open in a real browser."""
    if browser.found() is None:
        pytest.skip(f"no browser: none of {', '.join(browser.NAMES)} is installed (Debian: apt-get install chromium)")
    file = tmp_path_factory.mktemp("browser") / "report.html"
    file.write_text(report, encoding="utf-8")
    with browser.browser() as page:
        page.open(file)
        yield page


def test_a_browser_finds_nothing_wrong_and_asks_for_nothing(page: browser.Page) -> None:
    """No error of the script, nothing that the policy forbade, and no request but for the file."""
    assert page.complaints() == []
    assert [address.partition(":")[0] for address in page.requested()] == ["file"]
    assert page.value("document.querySelectorAll('img').length") == 0


def test_tabs_show_one_plot_at_a_time(page: browser.Page) -> None:
    """The script makes them of what stands one below the other without it."""
    shown = "Array.from(document.querySelectorAll('.panel')).filter(p => p.offsetHeight).map(p => p.id)"
    page.value("document.querySelectorAll('[role=tab]')[0].click()")
    assert page.value(shown) == ["over-time"]
    page.value("document.querySelectorAll('[role=tab]')[3].click()")
    assert page.value(shown) == ["blame"]


@pytest.mark.parametrize(
    ("tab", "plot", "told"), [("over-time", "plot-time", "requests"), ("folded", "plot-fold", "phase")]
)
def test_the_pointer_and_the_arrow_keys_read_a_plot_out(page: browser.Page, tab: str, plot: str, told: str) -> None:
    """What is in the cell under it, in words."""
    page.value(f"document.getElementById('tab-{tab}').click()")
    page.value(f"document.getElementById('{plot}').scrollIntoView({{block: 'center'}})")
    box = page.value(f"document.getElementById('{plot}').getBoundingClientRect().toJSON()")
    readout = f"document.querySelector('#{tab} .readout').textContent"
    before = page.value(readout)
    page.point_at(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    pointed = page.value(readout)
    assert told in pointed
    assert pointed != before
    page.value(f"document.getElementById('{plot}').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    assert page.value(readout) != pointed


def test_dark_and_light_have_their_own_colours(page: browser.Page) -> None:
    """The reader's system decides; text and ground differ in both."""
    seen = []
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        style = "getComputedStyle(document.body)"
        seen.append((page.value(f"{style}.backgroundColor"), page.value(f"{style}.color")))
    page.call("Emulation.setEmulatedMedia", features=[])
    assert seen[0] != seen[1]
    assert all(ground != ink for ground, ink in seen)


def test_paper_shows_all_plots(page: browser.Page) -> None:
    """In print no tab hides anything, and there are no buttons."""
    page.call("Emulation.setEmulatedMedia", media="print")
    shown = page.value("Array.from(document.querySelectorAll('.panel')).filter(p => p.offsetHeight).length")
    buttons = page.value("Array.from(document.querySelectorAll('button')).filter(b => b.offsetHeight).length")
    page.call("Emulation.setEmulatedMedia", media="")
    assert shown == 5
    assert buttons == 0


@pytest.mark.parametrize("width_px", [400, 1160])
def test_the_page_fits_a_telephone_and_a_desk(page: browser.Page, width_px: int) -> None:
    """Plots and tables that are too wide scroll by themselves, the page does not."""
    page.call("Emulation.setDeviceMetricsOverride", width=width_px, height=800, deviceScaleFactor=1, mobile=False)
    for tab in range(5):
        page.value(f"document.querySelectorAll('[role=tab]')[{tab}].click()")
        assert page.value("document.documentElement.scrollWidth") <= width_px
    page.call("Emulation.clearDeviceMetricsOverride")
