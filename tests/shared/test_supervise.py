"""The supervisor: what dies is started again, what cannot live is given up, and nothing outlives it."""

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
from support.waiting import DEADLINE_S, eventually, soon

from shared.process import tell_ready
from tailrace import supervise
from tailrace.supervise import Child, GaveUp


def shell(script: str, **env: str) -> Child:
    """A child that runs a shell script."""
    return Child("worker 1", ["/bin/sh", "-c", script], env)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds."""
    monkeypatch.setattr(supervise, "BACKOFF_FIRST_S", 0.001)
    monkeypatch.setattr(supervise, "BACKOFF_MAX_S", 0.004)


Keep = Callable[[Child], Awaitable["asyncio.Task[None]"]]


@pytest_asyncio.fixture
async def keep() -> AsyncIterator[Keep]:
    """Keeps children running, in tasks that end with the test."""
    kept: list[tuple[Child, asyncio.Task[None]]] = []

    async def keep_running(child: Child) -> "asyncio.Task[None]":
        task = asyncio.create_task(child.keep_running(), name="keep running")
        kept.append((child, task))
        await eventually(lambda: child.process is not None or task.done(), "the child is started")
        return task

    yield keep_running
    for child, task in kept:
        await child.stop(0)
        task.cancel()
    await asyncio.gather(*(task for _, task in kept), return_exceptions=True)


def starts(marks: Path) -> int:
    """How often the child was started: each start leaves a mark."""
    return len(marks.read_text()) if marks.exists() else 0


async def test_a_child_that_dies_is_started_again_with_growing_pauses(tmp_path: Path, quick: None) -> None:
    """Each death is told with its cause; a crash loop ends, with a message that says who, how, and what to do."""
    marks = tmp_path / "marks"
    with structlog.testing.capture_logs() as told, pytest.raises(GaveUp) as raised:
        await soon(shell('printf x >> "$MARKS"; exit 3', MARKS=str(marks)).keep_running())
    assert starts(marks) == supervise.QUICK_DEATHS_MAX == 5
    assert str(raised.value) == (
        "worker 1 died 5 times in a row, the last time with status 3\nMend what its messages say, then start again."
    )
    assert [line["restart_in_s"] for line in told] == [0.001, 0.002, 0.004, 0.004]
    assert {(line["which"], line["how"]) for line in told} == {("worker 1", "status 3")}


async def test_the_last_words_of_a_crash_loop_stand_beside_the_verdict(
    quick: None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Among the messages of all the others they would be hard to find; each is passed on at once all the same."""
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11; do echo line $i >&2; done; printf 'no \\377 weights' >&2; exit 1"
    with pytest.raises(GaveUp) as raised:
        await soon(shell(script).keep_running())
    said = ["died 5 times in a row, the last time with status 1; the last it said:"]
    said += [f"  line {i}" for i in range(5, 12)] + ["  no \N{REPLACEMENT CHARACTER} weights"]
    assert "\n".join(said) in str(raised.value)
    assert capfdbinary.readouterr().err.count(b"line 11\nno \xff weights") == 5


async def test_a_child_that_was_killed_is_told_so(quick: None) -> None:
    """By the name of the signal: an out-of-memory kill looks like nothing else."""
    with pytest.raises(GaveUp, match=r"died 5 times in a row, the last time with signal SIGKILL\n.*memory is short"):
        await soon(shell("kill -9 $$").keep_running())


SERVES = """
import os, socket
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", "\\0" + os.environ["NOTIFY_SOCKET"][1:])
open(os.environ["MARKS"], "a").write("x")
os.kill(os.getpid(), 9)
"""


async def test_a_child_that_could_serve_is_never_given_up(tmp_path: Path, quick: None, keep: Keep) -> None:
    """Requests that kill their worker, one after the other, once ended the whole system after the fifth death."""
    marks = tmp_path / "marks"
    child = Child("worker 1", [sys.executable, "-I", "-S", "-c", SERVES], {"MARKS": str(marks)})
    with structlog.testing.capture_logs() as told:
        task = await keep(child)
        await eventually(lambda: starts(marks) > supervise.QUICK_DEATHS_MAX + 1, "it is started again and again")
        assert not task.done()
    assert [line["restart_in_s"] for line in told][:4] == [0.001, 0.002, 0.004, 0.004], "with growing pauses"


async def test_a_process_says_that_it_serves_to_whoever_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To systemd at a path, to `up` at an abstract address; to nobody when nobody asked, or has gone."""
    for address, bound in ((str(tmp_path / "s"), str(tmp_path / "s")), (f"@tr-{os.getpid()}", f"\0tr-{os.getpid()}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            ear.bind(bound)
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            tell_ready()
            assert ear.recv(100) == b"READY=1"
        tell_ready()
    monkeypatch.delenv("NOTIFY_SOCKET")
    tell_ready()


async def test_a_child_that_lived_long_starts_afresh(
    tmp_path: Path, quick: None, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A death once a day is no crash loop: the pause is short again, and nobody gives up."""
    monkeypatch.setattr(supervise, "STEADY_NS", 0)
    marks = tmp_path / "marks"
    child = shell('printf x >> "$MARKS"; exit 1', MARKS=str(marks))
    with structlog.testing.capture_logs() as told:
        task = await keep(child)
        await eventually(lambda: starts(marks) > 2 * supervise.QUICK_DEATHS_MAX, "it is started again and again")
        assert not task.done()
    assert {line["restart_in_s"] for line in told} == {0.001}


async def test_wrong_settings_are_given_up_at_once(tmp_path: Path) -> None:
    """A child that ends with status 2 would say the same again."""
    marks = tmp_path / "marks"
    with pytest.raises(GaveUp, match="worker 1 could not start; its reason is above"):
        await soon(shell('printf x >> "$MARKS"; exit 2', MARKS=str(marks)).keep_running())
    assert starts(marks) == 1


async def test_a_program_that_is_not_there_is_an_error_of_the_supervisor() -> None:
    """There is nothing to restart."""
    with pytest.raises(FileNotFoundError):
        await soon(Child("nobody", ["/nowhere/to/be/found"]).keep_running())


async def test_a_stopped_child_ends_in_good_order(tmp_path: Path, keep: Keep) -> None:
    """It is asked to stop, may finish, and is not started again; stopping twice is stopping once."""
    marks = tmp_path / "marks"
    child = shell(
        'trap "printf y >> $MARKS; exit 0" TERM; printf x >> "$MARKS"; while :; do sleep 0.01; done', MARKS=str(marks)
    )
    task = await keep(child)
    await eventually(lambda: starts(marks) == 1, "it runs")
    await soon(child.stop(DEADLINE_S))
    await soon(task)
    await soon(child.stop(DEADLINE_S))
    assert marks.read_text() == "xy"
    assert child.process is not None
    assert child.process.returncode == 0


async def test_a_stubborn_child_is_killed(tmp_path: Path, keep: Keep) -> None:
    """What does not stop within the time is killed, and that is told."""
    ready = tmp_path / "ready"
    child = shell('trap "" TERM; printf x > "$READY"; while :; do sleep 0.01; done', READY=str(ready))
    task = await keep(child)
    await eventually(ready.exists, "it ignores the signal")
    with structlog.testing.capture_logs() as told:
        await soon(child.stop(0.02))
    await soon(task)
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL
    assert [(line["event"], line["which"]) for line in told] == [("killed, since it did not stop", "worker 1")]


async def test_a_child_that_was_never_started_can_be_stopped() -> None:
    """Stopping everything does not ask how far the start had come."""
    await soon(shell("exit 0").stop(DEADLINE_S))


async def test_a_child_stopped_between_two_lives_stays_dead(
    tmp_path: Path, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to stop while it waited to be started again, it once came back, and nobody was left to stop it."""
    monkeypatch.setattr(supervise, "BACKOFF_FIRST_S", 0.1)
    marks = tmp_path / "marks"
    child = shell('printf x >> "$MARKS"; exit 1', MARKS=str(marks))
    with structlog.testing.capture_logs() as told:
        task = await keep(child)
        await eventually(lambda: told, "it has died, and is to be started again")
    await soon(child.stop(DEADLINE_S))
    await soon(task)
    assert starts(marks) == 1


async def test_a_child_stopped_while_it_starts_is_ended(monkeypatch: pytest.MonkeyPatch, keep: Keep) -> None:
    """A stop that overtakes the start of the process once left that process running."""
    under_way, go_on = asyncio.Event(), asyncio.Event()
    really_start = asyncio.create_subprocess_exec

    async def start_slowly(*args: Any, **kwargs: Any) -> asyncio.subprocess.Process:
        under_way.set()
        await go_on.wait()
        return await really_start(*args, **kwargs)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    child = shell("sleep 60")
    task = asyncio.create_task(child.keep_running())
    await soon(under_way.wait())
    await soon(child.stop(DEADLINE_S))
    go_on.set()
    await soon(task)
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL


async def test_a_child_has_its_environment_and_a_session_of_its_own(tmp_path: Path, keep: Keep) -> None:
    """It inherits ours with additions; Ctrl-C reaches the supervisor alone, which stops all in order."""
    out = tmp_path / "out"
    child = shell('printf "%s %s" "$ADDED" "$PATH" > "$OUT.new"; mv "$OUT.new" "$OUT"; exec sleep 60', OUT=str(out))
    child.env["ADDED"] = "value"
    await keep(child)
    await eventually(out.exists, "it has spoken")
    assert out.read_text() == f"value {os.environ['PATH']}"
    assert child.process is not None
    assert os.getsid(child.process.pid) == child.process.pid


SUPERVISOR = """
import asyncio, sys
from tailrace.supervise import Child

async def main():
    child = Child("child", ["/bin/sleep", "60"])
    task = asyncio.create_task(child.keep_running())
    while child.process is None:
        await asyncio.sleep(0.001)
    print(child.process.pid, flush=True)
    await task

asyncio.run(main())
"""


async def test_no_child_outlives_a_killed_supervisor() -> None:
    """kill -9 of the supervisor leaves nothing behind: the kernel tells its children to stop."""
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", SUPERVISOR, stdout=asyncio.subprocess.PIPE)
    assert supervisor.stdout is not None
    child = os.pidfd_open(int(await soon(supervisor.stdout.readline())))
    try:
        supervisor.kill()
        await soon(supervisor.wait())
        ended, _, _ = select.select([child], [], [], DEADLINE_S)
        assert ended == [child], "the child lives on"
    finally:
        os.close(child)
