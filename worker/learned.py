"""What a worker has learned of its models' passes, kept in a file so that the next process need not learn it again.

One file a model version, device and number of threads: the law holds for nothing else. Several workers write the same
file; the last one wins, since all of them learn the same law. What cannot be read is learned anew.
"""

import contextlib
import os
import socket
from pathlib import Path

import msgspec

from shared import humanlog
from shared.keys import Queue
from shared.policy.service_time import Form, ServiceTime


class Learned:
    """The files in a directory. An empty `directory` keeps nothing."""

    def __init__(self, directory: str, *, device: str, threads: int) -> None:
        self._directory = Path(directory) if directory else None
        # Another host's times are another law, also on a shared disk.
        self._suffix = f"{socket.gethostname()}-{device.replace(':', '')}-{threads}.json"

    def load(self, queue: Queue, form: Form) -> ServiceTime:
        """What is known of a model, or nothing yet."""
        if self._directory is not None:
            path = self._path(queue)
            try:
                return ServiceTime.from_dict(msgspec.json.decode(path.read_bytes()), form)
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError, AttributeError) as e:  # msgspec's errors are ValueErrors
                humanlog.get().warning("what was learned of a model cannot be used", file=str(path), reason=str(e))
        return ServiceTime(form)

    def keep(self, queue: Queue, service_time: ServiceTime) -> None:
        """Write it; a disk that is full or read-only costs nothing but the knowledge."""
        if self._directory is None:
            return
        path = self._path(queue)
        part = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(msgspec.json.encode(service_time.to_dict()))
            part.replace(path)

    def _path(self, queue: Queue) -> Path:
        assert self._directory is not None
        return self._directory / f"{queue.model}-{queue.version}-{self._suffix}"
