"""A process of a lineup: the real gateway or worker, with a back door through which a scenario's functions are called.

Theory of operation. `python -m bench.lineup.inside ROLE FLAGS...` runs what `tailrace ROLE FLAGS...` runs. Before it
begins, a thread connects to the recorder's socket and waits there; the recorder's calls, a line of JSON each, run a
function of the scenario's file in that thread, with an `Inside` as first argument: the live objects of the process.
So a fault begins in a process that has long been serving, and nothing in its log tells of the call. Every run has
this door, also one in which nothing happens, and the module is imported before the process serves: neither may tell a
fault from its absence. A `helper` serves nothing: it lends its thread to what shall happen beside the stack.
"""

import asyncio
import dataclasses
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.lineup.scenario import load_module
from shared.settings import GatewaySettings, WorkerSettings, load

SOCKET_VARIABLE = "LINEUP_SOCKET"
MODULE_VARIABLE = "LINEUP_MODULE"
NUMBER_VARIABLE = "LINEUP_NUMBER"
STANDBY_VARIABLE = "LINEUP_STANDBY"


@dataclass(slots=True)
class Inside:
    """What a scenario's function finds in the process that it is called in."""

    role: str
    number: int
    worker: Any = None
    """The `WorkerLoop`, once there is one."""
    event_loop: asyncio.AbstractEventLoop | None = None
    """That of the gateway or worker."""
    before_request: list[Callable[[], None]] = field(default_factory=list)
    """Called on the gateway's event loop for every request, where its body has been read."""
    state: dict[str, Any] = field(default_factory=dict)
    """Whatever one function wants to leave for the next."""
    gate: threading.Event = field(default_factory=threading.Event)
    settings: Any = None
    """What the process was started with."""

    @property
    def served(self) -> Any:
        """The one model that a worker serves, with its limits (`worker.served.Served`)."""
        (served,) = self.worker.served.values()
        return served

    @property
    def model(self) -> Any:
        """The model's instance."""
        return self.served.model

    def change_limits(self, **changes: Any) -> None:
        """Other batching limits from now on, as after a change of the model's settings."""
        self.served.limits = dataclasses.replace(self.served.limits, **changes)

    def on_loop(self, call: Callable[[], Any]) -> Any:
        """Run something on the process' event loop, and return what it returns."""
        assert self.event_loop is not None
        done: threading.Event = threading.Event()
        results: list[Any] = []

        def run() -> None:
            results.append(call())
            done.set()

        self.event_loop.call_soon_threadsafe(run)
        done.wait()
        return results[0]


class Door:
    """The recorder's calls, answered one after the other in a thread of their own."""

    def __init__(self, inside: Inside, module: ModuleType | None) -> None:
        self._inside = inside
        self._module = module
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ[SOCKET_VARIABLE])
        self._lock = threading.Lock()
        self.say({"role": inside.role, "number": inside.number, "pid": os.getpid()})

    def say(self, message: dict[str, Any]) -> None:
        """Tell the recorder something."""
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def tell_ready(self) -> None:
        """The process serves."""
        self.say({"ready": True})

    def run(self) -> None:
        """Answer until the recorder has gone."""
        with self._socket.makefile("rb") as lines:
            for line in lines:
                call = json.loads(line)
                try:
                    result = self._call(call["function"], call["arguments"])
                    self.say({"call": call["call"], "result": result})
                except Exception:
                    self.say({"call": call["call"], "error": traceback.format_exc()})

    def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "open_gate":
            return self._inside.gate.set()
        function = getattr(self._module, name, None) or getattr(_links(), name, None)
        if function is None:
            raise LookupError(f"the scenario's file has no function {name}")
        return function(self._inside, **arguments)


def _links() -> ModuleType:
    from bench.lineup import links

    return links


def _flags(words: list[str]) -> dict[str, str]:
    """`--log-dir X --port 0` as settings."""
    return {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)
    }


def _replace(module: ModuleType, **names: Any) -> None:
    """Let a module find something else under these names."""
    for name, value in names.items():
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)


def _run_gateway(inside: Inside, door: Door, flags: dict[str, str]) -> int:
    from gateway import inference
    from gateway import main as gateway

    class Inference(inference.Inference):
        """The real one, with a place where a handler's author may have put something."""

        def _understand(self, *arguments: Any) -> Any:
            inside.event_loop = asyncio.get_running_loop()
            for call in inside.before_request:
                call()
            return super()._understand(*arguments)

    _replace(gateway, Inference=Inference, tell_ready=door.tell_ready)
    inside.settings = load(GatewaySettings, flags=flags, environ=os.environ)
    return gateway.main(inside.settings)


def _run_worker(inside: Inside, door: Door, flags: dict[str, str]) -> int:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does
    from worker import loop
    from worker import main as worker

    class WorkerLoop(loop.WorkerLoop):
        """The real one, which can be found."""

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            inside.worker, inside.event_loop = self, asyncio.get_running_loop()

    serve = worker._serve

    async def serve_once_told(*arguments: Any) -> bool:
        if os.environ.get(STANDBY_VARIABLE):
            door.tell_ready()
            await asyncio.to_thread(inside.gate.wait)
        return await serve(*arguments)

    _replace(worker, WorkerLoop=WorkerLoop, _serve=serve_once_told)
    if not os.environ.get(STANDBY_VARIABLE):
        _replace(worker, tell_ready=door.tell_ready)
    inside.settings = load(WorkerSettings, flags=flags, environ=os.environ)
    return worker.main(inside.settings)


def main() -> int:
    """Run one process; returns the exit status."""
    role, words = sys.argv[1], sys.argv[2:]
    sys.argv = ["tailrace", role, *words]  # what the log's first line tells
    inside = Inside(role, int(os.environ.get(NUMBER_VARIABLE, "0")))
    path = os.environ.get(MODULE_VARIABLE, "")
    door = Door(inside, load_module(Path(path)) if path else None)
    if role == "helper":
        door.tell_ready()
        door.run()
        return 0
    threading.Thread(target=door.run, name="door", daemon=True).start()
    return {"gateway": _run_gateway, "worker": _run_worker}[role](inside, door, _flags(words))


if __name__ == "__main__":
    sys.exit(main())
