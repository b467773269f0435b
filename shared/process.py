"""How a process of ours begins: logs for people, a name of its own, an event log that starts with its settings."""

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from shared import humanlog
from shared.errors import SettingsError
from shared.eventlog import EventLog
from shared.events import Cfg
from shared.redis_urls import without_secrets
from shared.settings import CommonSettings, secrets_of


def begin(kind: str, settings: CommonSettings) -> tuple[str, EventLog]:
    """The name of this process (host, pid, chance: never used twice) and its event log. Raises SettingsError."""
    humanlog.configure(kind, level=settings.log_level)
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        log = EventLog(Path(settings.log_dir), kind, name)
    except OSError as e:
        raise SettingsError(f"--log-dir {settings.log_dir} cannot be used: {e.strerror}") from e
    hidden = dict.fromkeys(secrets_of(settings), "(secret)")
    log.write(Cfg({**asdict(settings), **hidden, "redis": without_secrets(settings.redis)}))
    return name, log


def shown_command(argv: Sequence[str], settings: CommonSettings) -> list[str]:
    """A command line without secrets. They are safer in the environment: `ps` shows what this cannot hide."""
    secrets = [secret for name in secrets_of(settings) if (secret := str(getattr(settings, name)))]
    shown = list(argv)
    for secret in secrets:
        shown = [word.replace(secret, "(secret)") for word in shown]
    return shown


def tell_ready() -> None:
    """Say to whoever started this process that it serves now: systemd, or `tailrace up` (man sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        try:
            to.sendto(b"READY=1", f"\0{address[1:]}" if address.startswith("@") else address)
        except OSError:
            pass  # whoever asked for it has gone
