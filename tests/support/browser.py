"""A real browser for the tests, spoken to in its own protocol over two pipes: no driver, no port, no package."""

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
_MOVE = """import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])"""
"""A browser reads from file descriptor 3 and writes to 4; ours have any numbers."""
ANSWER_S = 60.0
"""A browser that is silent for longer has died."""


def found() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browser(width_px: int = 1160, height_px: int = 1600) -> Iterator["Page"]:
    """A browser with one empty page; it ends with the block."""
    program = found()
    assert program is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="tr-browser-", ignore_cleanup_errors=True) as profile:
        options = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width_px},{height_px}"]
        process = subprocess.Popen(
            [sys.executable, "-c", _MOVE, str(to_read), str(from_write), program, *options, "--remote-debugging-pipe"],
            pass_fds=(to_read, from_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Page(to_write, from_read)
        finally:
            os.close(to_write)
            os.close(from_read)
            process.terminate()
            process.wait(30)


class Page:
    """One page. `events` are what the browser told by itself, oldest first: (method, parameters)."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self._write_fd, self._read_fd = write_fd, read_fd
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = ""
        self.events: list[tuple[str, dict[str, Any]]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, file: Path) -> None:
        """Load a file, and wait until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            self._take(self._receive())

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something; its answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while (answer := self._take(self._receive())).get("id") != number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def value(self, expression: str) -> Any:
        """What an expression comes to in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def point_at(self, x_px: float, y_px: float) -> None:
        """Move the pointer there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x_px, y=y_px)

    def complaints(self) -> list[str]:
        """What it has logged as wrong: errors of scripts, and what the page's policy forbade."""
        told = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
        return [json.dumps(parameters) for method, parameters in self.events if method in told]

    def requested(self) -> list[str]:
        """The addresses that it has asked for."""
        return [p["request"]["url"] for method, p in self.events if method == "Network.requestWillBeSent"]

    def _take(self, message: dict[str, Any]) -> dict[str, Any]:
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_fd], [], [], ANSWER_S)
            read = os.read(self._read_fd, 1 << 16) if ready else b""
            assert read, "the browser does not answer"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
