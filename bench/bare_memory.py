"""How many processes of a size this machine has memory for."""

from pathlib import Path

import psutil

USABLE_SHARE = 0.9
"""Some stays for everybody else: what is promised as available may be needed by others at once."""


def available_bytes() -> int:
    """Memory that can be taken without swapping, bounded by the control group's limit."""
    available = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            available = min(available, int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # not Linux, or the older control groups, whose limit then is not seen
    return max(0, available)


def most_workers(rss_bytes: int, *, running: int = 0, available: int | None = None) -> int:
    """How many processes of that size fit, at least 1, with `running` of them in memory already.

    Their resident sizes are added up, though they share the pages of libraries: the bound is on the safe side.
    """
    available = available_bytes() if available is None else available
    return max(1, running + int(USABLE_SHARE * available) // max(1, rss_bytes))
