"""Large tensors beside the queue: files in a folder of memory that gateways and workers of one host share.

A payload of megabytes on its way through Redis is copied six times, and keeps the one thread of Redis from everybody
else. Where both sides see the same folder, a message only names a file in it (a claim check). Whoever puts a file there
takes it away again; one whose owner was killed is swept once it has expired.
"""

import errno
import mmap
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from shared import clock
from shared.errors import SettingsError

AUTO = "auto"
BULK_BYTES_MIN = 256 * 1024
"""Less goes through Redis: it costs no more there than a file does."""
FREE_SHARE, FREE_BYTES_MAX = 0.25, 4 << 30
"""So much of the file system is left to others: the lesser of the two."""
_ID = ".id"
_NAME = re.compile(r"[0-9a-f]{32}")
_PARTS_MAX = 512  # of one writev; the kernel's own limit is 1024
Bytes = bytes | memoryview


class BulkFolder:
    """The folder; `token` is the same for all who see the same one. Blocks: large files are for a thread."""

    def __init__(self, path: Path, token: str) -> None:
        self._path = path
        self.token = token

    def put(self, parts: Sequence[Bytes], *, expires_in_s: float) -> str:
        """Write a file. Returns its name. Raises OSError when there is no room, and leaves nothing then."""
        size = sum(len(part) for part in parts)
        system = os.statvfs(self._path)
        left = min(FREE_SHARE * system.f_blocks * system.f_frsize, FREE_BYTES_MAX)
        if system.f_bavail * system.f_frsize - size < left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        name = secrets.token_hex(16)
        descriptor = os.open(self._path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write(descriptor, parts)
            expires_at_s = clock.wall_us() / 1e6 + expires_in_s
            os.utime(descriptor, (expires_at_s, expires_at_s))
        except BaseException:
            self.drop(name)
            raise
        finally:
            os.close(descriptor)
        return name

    def view(self, name: str) -> memoryview:
        """The bytes of a file, in place, for as long as somebody holds the view. Raises OSError: it is not there."""
        if not _NAME.fullmatch(name):
            raise FileNotFoundError(errno.ENOENT, "no name of a file of this folder", name[:64])
        descriptor = os.open(self._path / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            if size == 0:
                return memoryview(b"")  # which cannot be mapped
            # Ours to write to, as torch asks of a tensor; what is written is a copy that only we see.
            return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY))
        finally:
            os.close(descriptor)

    def drop(self, name: str) -> None:
        """Take a file away; who has a view of it keeps that."""
        (self._path / name).unlink(missing_ok=True)

    def sweep(self) -> int:
        """Take away what has expired. Returns how many files."""
        now_s, swept = clock.wall_us() / 1e6, 0
        for entry in os.scandir(self._path):
            try:
                if _NAME.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < now_s:
                    Path(entry.path).unlink()
                    swept += 1
            except FileNotFoundError:
                continue  # its owner, or another who sweeps, was faster
        return swept


def open_bulk(where: str) -> BulkFolder | None:
    """The folder at `where`, made if it is not there; AUTO: one of this user in /dev/shm. None: there is none to use.

    Raises SettingsError when it cannot be used: not ours alone, or not to be written.
    """
    if not where:
        return None
    if where == AUTO:
        if not os.access("/dev/shm", os.W_OK):
            return None
        where = f"/dev/shm/tailrace-{os.getuid()}"
    path = Path(where)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        # Where everybody may make folders, somebody else may have made it first.
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
            raise SettingsError(f"bulk_dir: {where} must be a folder of this user that is closed to others (mode 700)")
        return BulkFolder(path, _token(path))
    except OSError as e:
        raise SettingsError(f"bulk_dir: {where} cannot be used: {e.strerror or e}; name another folder, or none") from e


def _token(path: Path) -> str:
    """What the folder is known by: random, so that the folder of another host or container has another one."""
    file, own = path / _ID, path / f"{_ID}-{secrets.token_hex(8)}"
    own.write_text(secrets.token_hex(16))
    try:
        os.link(own, file)  # whole or not at all, and the first one stands
    except FileExistsError:
        pass
    finally:
        own.unlink()
    return file.read_text()


def _write(descriptor: int, parts: Sequence[Bytes]) -> None:
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        written = os.writev(descriptor, left[:_PARTS_MAX])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
