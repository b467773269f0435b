"""URLs of Redis servers as settings give them: several with commas between, and none of their secrets in a log."""

import re
from urllib.parse import urlsplit

SCHEMES = ("redis://", "rediss://", "unix://")
_next = re.compile(r"\s*,\s*(?=[a-z]+://)")
"""A comma separates only before a scheme: a password or a path may have one."""
_userinfo = re.compile(r"(rediss?://)(?:(?!,\s*[a-z]+://)\S)*@|(://)[^\s/?#]*@")
"""In a URL of Redis up to its last @, since a password may have a / or an @ in it, against the rules for URLs."""
_query = re.compile(r"(?<=[?&])(password|username)=(?:(?!,\s*[a-z]+://)[^\s&])*")


def split(text: str) -> list[str]:
    """Each URL of a setting, in order."""
    return [url for url in _next.split(text.strip().rstrip(",")) if url]


def without_secrets(text: str) -> str:
    """`text` without the users and passwords of any URL in it."""
    return _query.sub(r"\1=...", _userinfo.sub(r"\1\2", text))


def mistake(url: str) -> str:
    """What is wrong with one URL, without its secrets; empty if nothing is."""
    if not url.startswith(SCHEMES):
        return "begin it with redis://, rediss:// or unix://; put commas between several"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return (
            "its port is no number from 0 to 65535; if the password has a special character, write it as %40 for @, "
            "%2F for /, %3A for :"
        )
    if parts.scheme == "unix":
        return "" if parts.path else "name the path of the socket, unix:///path/to/redis.sock"
    return "name a port above 0" if port == 0 else ""
