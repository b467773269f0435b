"""docs/causes.md, made from the catalogue: `python -m forensics.cause_docs` writes it again; a test fails when it is
stale."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from forensics.diagnose import detectors
from forensics.diagnose.catalogue import CAUSES, FAMILIES, Cause

FILE = Path(__file__).parent.parent / "docs" / "causes.md"
HEAD = "<!-- Made by `python -m forensics.cause_docs`; do not edit. -->\n"
INTRO = """# Causes of slow requests

What `tailrace diagnose` looks for: one detector a file in `forensics/diagnose/detectors/`. How it decides between them
is told in [architecture.md](architecture.md#diagnosis).
"""


def render() -> str:
    """The text of docs/causes.md."""
    names = [m.name for m in pkgutil.iter_modules(detectors.__path__)]
    modules = {name: importlib.import_module(f"{detectors.__name__}.{name}") for name in names}
    told = {(module.__doc__ or "").partition(":")[0]: (name, module) for name, module in modules.items()}
    lines = [HEAD, INTRO]
    for letter, family in FAMILIES.items():
        lines.append(f"## {letter}: {family}\n")
        for cause in CAUSES.values():
            if cause.id[0] == letter:
                name, module = told[cause.id]
                lines += _cause(cause, name, module.detect.__doc__ or "")
    return "\n".join(lines)


def _cause(cause: Cause, name: str, needs: str) -> Iterator[str]:
    yield f"### {cause.id}: {cause.title}\n"
    yield f"- Looks for: {' '.join(needs.split())} (`{name}.py`)"
    yield f"- Shows in: {', '.join(f'`{segment}`' for segment in cause.segments)}"
    yield f"- Cure: {cause.remedy}"
    yield f"- It is something else if: {cause.check}\n"


def main() -> None:
    """Write the file."""
    FILE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
