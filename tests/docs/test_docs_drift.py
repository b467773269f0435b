"""The documents say what the code does: generated ones are fresh, and what the others name is there."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import click
import msgspec
import pytest

from shared.settings import ENV_PREFIX, GatewaySettings, WorkerSettings
from tailrace import docs
from tailrace.cli import cli

ROOT = Path(__file__).parents[2]
CODE = ("shared", "gateway", "worker", "forensics", "tailrace")
WRITTEN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
every_document = pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.name)

_link = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_fence = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_shell = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_place = re.compile(r"`((?:[a-z_]+/)+[\w.]+\.(?:py|lua|toml))(?:: ([\w., ]+))?`")


def _prose(document: Path) -> str:
    """A document without its fenced examples."""
    return _fence.sub("", document.read_text())


def _commands(document: Path) -> list[str]:
    """Each `command` in the prose, and each line of a shell example."""
    examples = "".join(_shell.findall(document.read_text()))
    return [*re.findall(r"`([^`\n]+)`", _prose(document)), *map(str.strip, examples.splitlines())]


def _anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("name", "render"), [("events.md", docs.render_events), ("settings.md", docs.render_settings)])
def test_generated_documents_are_fresh(name: str, render: Callable[[], str]) -> None:
    """Whoever changes a record or a setting writes the documents again."""
    assert (docs.DOCS / name).read_text() == render(), "run `python -m tailrace.docs`"


def test_every_field_of_every_record_is_explained_and_nothing_else() -> None:
    """A field without a meaning would be a riddle in the log, a meaning without a field a lie."""
    used = set()
    for kind in docs.records():
        for f in msgspec.structs.fields(kind):
            own = f"{kind.__struct_config__.tag}.{f.name}"
            key = own if own in docs.MEANING else f.name
            assert key in docs.MEANING, f"say in tailrace/docs.py what {own} means"
            used.add(key)
    assert set(docs.MEANING) == used


def test_every_kind_of_event_that_the_code_writes_is_listed() -> None:
    """The table of `evt` kinds is complete, and lists nothing that no code writes."""
    written = set()
    for file in (file for folder in CODE for file in (ROOT / folder).rglob("*.py")):
        written.update(re.findall(r"\bEvt\(\s*\"(\w+)\"", file.read_text()))
    assert set(docs.EVENT_KINDS) == written


@every_document
def test_every_relative_link_resolves(document: Path) -> None:
    """Files exist, and anchors are headings of theirs."""
    for target in _link.findall(_prose(document)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), f"{document.name} links to {target}"
        if anchor:
            assert anchor in _anchors(file), f"{document.name} links to {target}"


@every_document
def test_every_place_in_the_code_that_is_named_exists(document: Path) -> None:
    """`path/file.py: name` must be a file that has such a name in it."""
    for path, names in _place.findall(_prose(document)):
        places = [ROOT / path] if (ROOT / path).exists() else []
        assert places, f"{document.name} names {path}"
        for name in filter(None, re.split(r"[., ]+", names)):
            assert re.search(rf"\b{name}\b", places[0].read_text()), f"{document.name}: no {name} in {path}"


@every_document
def test_every_make_target_and_command_that_is_named_exists(document: Path) -> None:
    """`make X` is a target, `tailrace X` a command with the options shown."""
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in map(str.split, _commands(document)):
        match words:
            case ["make", target, *_]:
                assert target in targets, f"{document.name} names `make {target}`"
            case ["tailrace", name, *rest]:
                assert name in cli.commands, f"{document.name} names `tailrace {name}`"
                command: click.Command = cli.commands[name]
                if isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
                    assert rest[0] in command.commands, f"{document.name} names `tailrace {name} {rest[0]}`"
                    command = command.commands[rest[0]]
                known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
                assert {word for word in rest if word.startswith("--")} <= known, f"{document.name}: {words}"
            case _:
                pass


@every_document
def test_every_setting_that_is_named_exists(document: Path) -> None:
    """`TAILRACE_X` is a variable that is read."""
    known = {f.name.upper() for kind in (GatewaySettings, WorkerSettings) for f in fields(kind)}
    assert set(re.findall(rf"\b{ENV_PREFIX}([A-Z_]+)\b", document.read_text())) <= known
