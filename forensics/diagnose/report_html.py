"""A diagnosis as one file for the browser: it opens offline, from a mail or a ticket, and loads nothing.

Theory of operation. All plots are drawn here, from counts (`html/over_time.py`, `html/breakdowns.py`), so the file is
as large for a million requests as for a thousand, and complete with scripts off, in print and in a reader for the
blind: a table stands behind each plot. The script adds tabs, a read-out under the pointer and buttons that copy. Text
out of logs is untrusted: `html/markup.py` escapes it, and a content security policy lets run only the script and the
style that this module put there, by their hashes.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from forensics.diagnose.catalogue import CAUSES
from forensics.diagnose.diagnosis import Diagnosis
from forensics.diagnose.html import svg
from forensics.diagnose.html.findings import why
from forensics.diagnose.html.markup import Child, Markup, data_block, element
from forensics.diagnose.html.plots import Panel, panels
from forensics.diagnose.report_text import facts, headline, kind_told, when_told, who_told


def write_html(path: Path, diagnosis: Diagnosis, *, logs: Sequence[Path] = ()) -> None:
    """Write the report. `logs`: what to name in the commands that are proposed. Raises OSError."""
    path.write_text(render(diagnosis, logs=logs), encoding="utf-8")


def render(diagnosis: Diagnosis, *, logs: Sequence[Path] = ()) -> str:
    """The report, a whole HTML document."""
    shown = panels(diagnosis.case, diagnosis)
    style, script = (_asset(name) for name in ("report.css", "report.js"))
    data = {name: value for panel in shown for name, value in panel.data.items()}
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", headline(diagnosis)),
        Markup(f"<style>{style}</style>"),
    )
    body = element(
        "body",
        _header(diagnosis),
        element(
            "main",
            None if diagnosis.refused else _answers(diagnosis, logs),
            element("section", element("h2", "Plots"), [_section(panel) for panel in shown], id="plots"),
        ),
        element("footer", "Made by tailrace diagnose. Times are UTC. This file loads nothing."),
        data_block("report-data", data),
        Markup(f"<script>{script}</script>"),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _answers(d: Diagnosis, logs: Sequence[Path]) -> list[Child]:
    """Why, when, for whom, and what kind of slowness it is."""
    return [
        why(d, logs),
        _told("when", "When", when_told(d)),
        _told("who", "Who", who_told(d)),
        _told("kind", "What kind", kind_told(d)),
    ]


def _header(d: Diagnosis) -> Markup:
    p = svg.percentile(d.quantile)
    links = [("why", "Why"), ("when", "When"), ("plots", "Plots")][2 if d.refused else 0 :]
    return element(
        "header",
        element("p", "tailrace diagnose", class_="eyebrow"),
        element("h1", headline(d)),
        element(
            "dl",
            [
                element("div", element("dt", what), element("dd", told))
                for what, told in (
                    (p, svg.ms(d.value_ms)),
                    ("median", svg.ms(d.median_ms)),
                    ("requests", f"{d.requests:,}"),
                    ("not answered", f"{sum(d.unanswered.values()):,}"),
                    ("verdict", _verdict(d)),
                )
            ],
            class_="figures",
        ),
        element("ul", [element("li", fact) for fact in facts(d)], class_="doubted" if d.doubts or d.refused else None),
        element("nav", [element("a", title, href=f"#{target}") for target, title in links], aria_label="Parts"),
    )


def _verdict(d: Diagnosis) -> str:
    """The verdict; a cause with its name."""
    return f"{d.verdict} {CAUSES[d.verdict].name}" if d.verdict in CAUSES else d.verdict


def _told(identity: str, title: str, lines: Iterable[str]) -> Markup | None:
    """A section of sentences, as the terminal has them; None without any."""
    items = [element("li", line) for line in lines]
    return element("section", element("h2", title), element("ul", items), id=identity) if items else None


def _section(panel: Panel) -> Markup:
    return element(
        "section", element("h3", panel.title), panel.body, id=panel.identity, class_="panel", data_tab=panel.title
    )


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, nothing is sent, and nothing runs but these two."""
    ours = f"style-src {_hash(style)}; script-src {_hash(script)}"
    return f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return files("forensics.diagnose.html").joinpath(name).read_text(encoding="utf-8")
