"""HTML by construction: text is escaped unless it is `Markup`, so no name out of a log can become markup.

Logs are untrusted: a client chooses its request's id, label and model, and somebody else opens the report. So there is
one way to make markup, `element`, and whatever is not made by it is text. Names of attributes come from this code only.
"""

import json
from collections.abc import Iterable
from html import escape
from typing import Any, TypeAlias

from forensics.report import visible


class Markup(str):
    """Markup that is safe as it is."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"
"""Text, markup, or many of them; None is nothing."""

VOID = frozenset({"meta", "br", "hr"})
"""Elements without an end tag."""
NOTHING = Markup("")


def element(tag: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element. A trailing _ of an attribute's name is dropped (`class_`), an inner one is a hyphen; an attribute of
    True has no value, one of False or None is left out."""
    told = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{tag}{told}>")
    return Markup(f"<{tag}{told}>{together(children)}</{tag}>")


def together(children: Child) -> Markup:
    """Children one after the other."""
    if isinstance(children, Markup):
        return children
    if children is None:
        return NOTHING
    if isinstance(children, str | int | float):
        return Markup(escape(shown(str(children))))
    return Markup("".join(together(child) for child in children))


def data_block(identity: str, value: Any) -> Markup:
    """A value for the script to read. No text in it can end the block or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(f'<script type="application/json" id="{escape(identity)}">{text}</script>')


def shown(text: str) -> str:
    """Text with control and direction characters escaped, so that none can forge what stands beside it."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(shown(value) if isinstance(value, str) else short(value))}"'


def short(value: float) -> str:
    """A number of a drawing: to the hundredth, as short as it can be."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))
