"""Who asks: the tenants, their API keys and what each may take up.

With a file of tenants a request must bring the key of one; without, it may name any tenant in x-tenant. Keys are kept
as SHA-256 only, and looked up by it: how long that takes tells nothing of a key. No message repeats a key.
"""

import hashlib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from multidict import istr

from shared.errors import BadRequest, ErrorKind, SettingsError, TailraceError
from shared.keys import SAFE_NAME

TENANT = istr("x-tenant")
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1000.0
RATE_MIN, RATE_MAX = 0.001, 1e6
COUNT_MAX = 1 << 31
KEY_BYTES_MIN = 16
"""A shorter key could be guessed; it is refused at start."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELDS = frozenset({"name", "key", "key_sha256", "weight", "live_max", "rate_per_s", "burst"})


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody whose requests are counted, limited and queued together.

    `weight`: turns in a backlog relative to others. `live_max`: requests of one model queued or running, 0 = the
    queue's own limit for a tenant. `rate_per_s` requests of all models, in bursts of up to `burst`; 0 = no limit.
    """

    name: str
    weight: float = 1.0
    live_max: int = 0
    rate_per_s: float = 0.0
    burst: int = 1

    def __str__(self) -> str:
        return "this client" if self.name == "-" else f"tenant '{self.name}'"


ANYONE = Tenant("-")
"""Of requests that name no tenant."""


class Tenants:
    """Finds the tenant of a request. `by_digest`: the tenants by SHA-256 of their keys; None: there is no file."""

    def __init__(self, by_digest: Mapping[str, Tenant] | None = None) -> None:
        self._by_digest = by_digest
        # Without a file a name is all there is to know of a tenant.
        self._named = lru_cache(1024)(_named)

    def tenant_of(self, headers: Mapping[str, str]) -> Tenant:
        """Who sent these headers. Raises UNAUTHORIZED without a valid key where keys are needed, and BadRequest."""
        if self._by_digest is None:
            name = headers.get(TENANT)
            return ANYONE if name is None else self._named(name)
        key = headers.get("x-api-key")
        if key is None:
            scheme, _, token = headers.get("Authorization", "").partition(" ")
            key = token.strip() if scheme.lower() == "bearer" else ""
        if not key:
            raise _unauthorized("this server needs an API key")
        tenant = self._by_digest.get(_digest(key))
        if tenant is None:
            raise _unauthorized("the API key is not known here")
        return tenant


def _named(name: str) -> Tenant:
    if not SAFE_NAME.fullmatch(name):
        raise BadRequest(
            f"x-tenant has {len(name)} characters or some that are not allowed; send 1 to 128 letters, digits, '.', "
            f"'_' and '-', beginning with a letter or digit"
        )
    return Tenant(name)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _unauthorized(what: str) -> TailraceError:
    return TailraceError(
        ErrorKind.UNAUTHORIZED, f"{what}; send the header `Authorization: Bearer KEY` or `x-api-key: KEY`"
    )


def load_tenants(path: str) -> Tenants:
    """The tenants of a TOML file of `[[tenant]]` tables; no path, no keys. Raises SettingsError with all mistakes."""
    if not path:
        return Tenants()
    try:
        document = tomllib.loads(Path(path).read_text())
    except OSError as e:
        raise SettingsError(f"--tenants: {path} cannot be read: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # The parser's own message quotes the text, which holds keys.
        raise SettingsError(f"--tenants: {path} is not TOML") from None
    tables = document.get("tenant")
    mistakes = [f"there is no '{name}' in it; write [[tenant]] tables" for name in document if name != "tenant"]
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        mistakes.append("it has no tenants; write a [[tenant]] table for each")
        tables = []
    by_digest: dict[str, Tenant] = {}
    names: set[str] = set()
    for i, table in enumerate(tables, 1):
        where = f"tenant {i}"
        tenant, digest = _tenant(where, table, mistakes)
        if tenant.name and tenant.name in names:
            mistakes.append(f"{where}: '{tenant.name}' is there already; give each tenant a name of its own")
        if digest and digest in by_digest:
            mistakes.append(f"{where}: its key is that of another tenant")
        names.add(tenant.name)
        by_digest[digest] = tenant
    if mistakes:
        raise SettingsError("\n".join(f"--tenants {path}: {mistake}" for mistake in mistakes))
    return Tenants(by_digest)


def _tenant(where: str, table: Mapping[str, Any], mistakes: list[str]) -> tuple[Tenant, str]:
    """One table's tenant and the digest of its key."""
    known = ", ".join(sorted(_FIELDS))
    mistakes += [f"{where}: there is no '{field}'; it may have {known}" for field in sorted(table.keys() - _FIELDS)]
    name = table.get("name")
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
        mistakes.append(f"{where}: give it a name of 1 to 128 letters, digits, '.', '_' and '-'")
    tenant = Tenant(
        name if isinstance(name, str) else "",
        _number(where, table, "weight", 1.0, WEIGHT_MIN, WEIGHT_MAX, mistakes),
        int(_number(where, table, "live_max", 0, 0, COUNT_MAX, mistakes)),
        _number(where, table, "rate_per_s", 0.0, RATE_MIN, RATE_MAX, mistakes),
        int(_number(where, table, "burst", 1, 1, COUNT_MAX, mistakes)),
    )
    if "burst" in table and "rate_per_s" not in table:
        mistakes.append(f"{where}: burst means nothing without rate_per_s")
    return tenant, _key(where, table, mistakes)


def _key(where: str, table: Mapping[str, Any], mistakes: list[str]) -> str:
    key, digest = table.get("key"), table.get("key_sha256")
    if (key is None) == (digest is None):
        mistakes.append(f"{where}: give it either key or key_sha256")
    elif key is not None:
        if not isinstance(key, str) or len(key.encode()) < KEY_BYTES_MIN or not key.isascii() or " " in key:
            mistakes.append(f"{where}: its key must be {KEY_BYTES_MIN} ASCII characters or longer, without spaces")
        else:
            return _digest(key)
    elif not isinstance(digest, str) or not _SHA256.fullmatch(digest.lower()):
        mistakes.append(f"{where}: key_sha256 must be the 64 hexadecimal digits of the key's SHA-256")
    else:
        return digest.lower()
    return ""


def _number(
    where: str, table: Mapping[str, Any], name: str, default: float, low: float, high: float, mistakes: list[str]
) -> float:
    """A number of the table; whole unless its default has a fraction."""
    value = table.get(name, default)
    kinds = int | float if isinstance(default, float) else int
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
        mistakes.append(f"{where}: {name} must be {'a number' if kinds is not int else 'an integer'}")
    elif name in table and not low <= value <= high:
        mistakes.append(f"{where}: {name} is {value}; it must be from {low:g} to {high:g}")
    else:
        return value
    return default
