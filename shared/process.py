"""How a process of ours begins: logs for people, a name of its own, an event log that starts with its settings."""

import os
import socket
import uuid
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
