"""Where batches are computed: one interface for the CPU and for CUDA.

Theory of operation. The worker's loop owns a pool of `Device.slots` threads, each prepared by `prepare_thread`, and
calls `execute` in one of them per batch. A batch walks through collate -> forward -> split -> encode; `execute` always
answers every request of it. When a step raises, the batch is halved and each half is tried alone, down to the request
that fails by itself: its neighbours get their answers, it gets its own error. Only a lost device (`DeviceLost`) leaves
`execute` as an exception: after it nothing computes in this process any more, so the worker must end.

On the CPU a pass is a call. On CUDA the host only enqueues: copies in on a stream of the thread, the passes of all
threads one after the other on one stream, copies out on another stream of the thread, and one wait at the end. With
two slots the copies of one batch overlap the computation of the other. Stage times then come from device events.
"""

import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from shared import clock
from shared.errors import ErrorKind, SettingsError, TailraceError
from worker import graphs
from worker.graphs import RowGraphs
from worker.meter import ThreadMeter, Usage
from worker.models import replies
from worker.models.convert import map_tensors
from worker.models.interface import (
    Model,
    ModelConfig,
    ModelInputError,
    ModelLoadError,
    ModelReply,
    ModelRequest,
    ModelRetry,
)

ERROR_TEXT_MAX = 2_000
"""Characters of an exception's text that travel to the client."""

_STICKY_ERRORS: tuple[type[Exception], ...] = tuple(filter(None, (getattr(torch, "AcceleratorError", None),)))


class DeviceLost(Exception):
    """The device computes nothing any more in this process; only a new process can."""


# A struct and not a dataclass, which takes 1.1 us more to make, for every request.
class Result(msgspec.Struct, frozen=True):
    """The answer to one request: `body` is an encoded ReplyBody, of an error when `failed`.

    `traceback` is for the worker's own log; it never travels to the client.
    """

    body: bytes
    failed: bool = False
    error_code: str = ""
    error: str = ""
    traceback: str = ""
    may_pass: bool = False
    """Another try later may succeed."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What a batch came to. Instants are this host's monotonic ns, in order: entered <= collated <= done <= encoded."""

    results: list[Result]
    """One per request, in their order."""
    entered_ns: int
    """w4: the device's thread began."""
    collated_ns: int
    """w5: the batch was made. After a bisection: the first batch."""
    done_ns: int
    """w6: the outputs were on the host, the device synchronised. After a bisection: the last pass."""
    encoded_ns: list[int]
    """w7 of each request: its body was encoded."""
    h2d_ns: int
    """Copies to the device, by device events; 0 on the CPU."""
    compute_ns: int
    """Forward by device events, waits for other batches not counted; on the CPU host time, done - collated."""
    d2h_ns: int
    """Copies from the device, by device events; 0 on the CPU."""
    cpu_ns: int
    """CPU time in forward. This and the following: of this thread only; the sum of all passes of a bisection."""
    runq_ns: int
    """In forward, ready to run but waiting for a core."""
    minflt: int
    majflt: int
    nvcsw: int
    nivcsw: int
    tokens_useful: int
    tokens_padded: int
    """Units computed, padding included; equal to `tokens_useful` without padding."""
    splits: int
    """How often a batch was halved to find the request at fault; 0 = all went well, or the batch was one request."""
    compiles: int = 0
    """Graphs that torch.compile made meanwhile."""
    busy_ns: int = 0
    """From entered to encoded, less the waits for a core: what the pass takes where nobody else wants the machine. On a
    device of its own: its time by device events."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Device-event times of one pass, ns."""

    h2d_ns: int = 0
    compute_ns: int = 0
    d2h_ns: int = 0


@dataclass(slots=True)
class _Ledger:
    """Adds up the passes of one batch."""

    collated_ns: int = 0
    done_ns: int = 0
    h2d_ns: int = 0
    compute_ns: int = 0
    d2h_ns: int = 0
    usage: Usage = Usage()  # noqa: RUF009  (frozen)
    tokens_useful: int = 0
    tokens_padded: int = 0
    splits: int = 0


class Device:
    """The CPU; also what all devices have in common."""

    slots = 1
    """Batches that may be in flight, each in its own thread."""

    def __init__(self, name: str, *, threads: int) -> None:
        self.name = name
        self.threads = threads
        self._local = threading.local()

    def prepare_thread(self) -> None:
        """Make the calling thread fit for `execute`; the initializer of the loop's thread pool."""
        torch.set_num_threads(self.threads)
        self._local.meter = ThreadMeter()

    def prepare_model(self, model: Model, config: ModelConfig) -> None:
        """Make a loaded model ready for this device; called once, before there is any work. Raises ModelLoadError."""

    def execute(
        self,
        model: Model,
        config: ModelConfig,
        requests: Sequence[ModelRequest],
        wanted: Sequence[Sequence[str]],
    ) -> Executed:
        """Answer every request. `wanted[i]` names the outputs that request i asked for; empty means all.

        Call it in a prepared thread. Raises nothing but DeviceLost.
        """
        entered_ns = clock.now_ns()
        meter = self._meter()
        waited_before_ns, graphs_before = meter.runq_ns(), _graphs()
        ledger = _Ledger()
        with torch.inference_mode():
            answers = self._answer(model, requests, ledger)
        # Even a batch that never got as far as the device has all its stamps, in order.
        done_ns = ledger.done_ns or clock.now_ns()
        results, encoded_ns = [], []
        for request, answer, names in zip(requests, answers, wanted, strict=True):
            results.append(answer if isinstance(answer, Result) else _encode(config, request, answer, names))
            encoded_ns.append(clock.now_ns())
        return Executed(
            results=results,
            entered_ns=entered_ns,
            collated_ns=ledger.collated_ns,
            done_ns=done_ns,
            encoded_ns=encoded_ns,
            h2d_ns=ledger.h2d_ns,
            compute_ns=ledger.compute_ns or done_ns - ledger.collated_ns,
            d2h_ns=ledger.d2h_ns,
            cpu_ns=ledger.usage.cpu_ns,
            runq_ns=ledger.usage.runq_ns,
            minflt=ledger.usage.minflt,
            majflt=ledger.usage.majflt,
            nvcsw=ledger.usage.nvcsw,
            nivcsw=ledger.usage.nivcsw,
            tokens_useful=ledger.tokens_useful,
            tokens_padded=ledger.tokens_padded,
            splits=ledger.splits,
            compiles=_graphs() - graphs_before,
            busy_ns=ledger.h2d_ns + ledger.compute_ns + ledger.d2h_ns
            or max(1, encoded_ns[-1] - entered_ns - (meter.runq_ns() - waited_before_ns)),
        )

    def _answer(self, model: Model, requests: Sequence[ModelRequest], ledger: _Ledger) -> list[ModelReply | Result]:
        """One reply or failure per request; halves the batch when it fails."""
        try:
            return list(self._pass(model, requests, ledger))
        except Exception as e:
            if _is_lost(e):
                raise DeviceLost(f"device {self.name} is lost: {type(e).__name__}: {e}") from e
            if len(requests) == 1:
                return [_failure(e)]
        # Outside of `except`, so that the exception no longer holds the failed pass's tensors.
        ledger.splits += 1
        middle = len(requests) // 2
        return self._answer(model, requests[:middle], ledger) + self._answer(model, requests[middle:], ledger)

    def _pass(self, model: Model, requests: Sequence[ModelRequest], ledger: _Ledger) -> Sequence[ModelReply]:
        try:
            batch = model.collate(requests)
            useful, padded = model.tokens(requests, batch)
        finally:
            ledger.collated_ns = ledger.collated_ns or clock.now_ns()
        meter = self._meter()
        before = meter.read()
        try:
            outputs, times = self._run(model, batch)
        finally:
            ledger.done_ns = clock.now_ns()
            ledger.usage += meter.read().since(before)
        ledger.h2d_ns += times.h2d_ns
        ledger.compute_ns += times.compute_ns
        ledger.d2h_ns += times.d2h_ns
        answers = model.split(outputs, requests, batch)
        replies.check_count(answers, requests)
        ledger.tokens_useful += useful
        ledger.tokens_padded += padded
        return answers

    def _run(self, model: Model, batch: Any) -> tuple[Any, StageTimes]:
        """Compute; the outputs are on the host when this returns."""
        return model.forward(batch), StageTimes()

    def _meter(self) -> ThreadMeter:
        meter: ThreadMeter = self._local.meter
        return meter


class CudaDevice(Device):
    """One CUDA device. Two batches in flight: the copies of one overlap the computation of the other."""

    slots = 2

    def __init__(self, name: str, *, threads: int) -> None:
        super().__init__(name, threads=threads)
        self._device = torch.device(name)
        self._compute = _stream(self._device)
        # Two threads enqueue on one stream: without the lock the kernels of their batches would interleave.
        self._enqueue = threading.Lock()
        self._graphs: dict[Model, RowGraphs] = {}

    def prepare_model(self, model: Model, config: ModelConfig) -> None:
        """Capture the graphs that the model asks for."""
        if not config.graph_rows:
            return
        label = f"{config.name}/{config.version}"
        try:
            with torch.inference_mode(), torch.cuda.stream(self._compute):
                batch = map_tensors(model.collate(list(model.examples())[:1]), lambda t: t.to(self._device))
                self._graphs[model] = graphs.capture_all(
                    lambda inputs: model.named(model.forward(inputs)),
                    batch,
                    config.graph_rows,
                    capture=graphs.capture_on(self._compute),
                    measure=graphs.measure_on(self._compute),
                    label=label,
                )
            torch.cuda.synchronize(self._device)
        except Exception as e:
            raise ModelLoadError(
                f"model '{label}': its CUDA graphs cannot be captured: {type(e).__name__}: {e}; leave graph_rows out, "
                f"or give forward a dict of tensors whose shapes do not depend on their values"
            ) from e

    def prepare_thread(self) -> None:
        super().prepare_thread()
        torch.cuda.set_device(self._device)
        self._local.copy_in = _stream(self._device)
        self._local.copy_out = _stream(self._device)

    def _run(self, model: Model, batch: Any) -> tuple[Any, StageTimes]:
        copy_in, copy_out = self._local.copy_in, self._local.copy_out
        h2d_begun, h2d_done, begun, done, d2h_begun, d2h_done = (_event() for _ in range(6))
        # torch keeps the pinned pages in a pool and reuses them only after the copies that read them are done.
        pinned = map_tensors(batch, _to_pinned)
        try:
            with torch.cuda.stream(copy_in):
                h2d_begun.record()
                staged = map_tensors(pinned, lambda tensor: tensor.to(self._device, non_blocking=True))
                h2d_done.record()
            with self._enqueue, torch.cuda.stream(self._compute):
                self._compute.wait_event(h2d_done)
                begun.record()
                captured = self._graphs.get(model)
                replayed = captured.run(staged) if captured else None
                outputs = model.forward(staged) if replayed is None else replayed
                done.record()
            with torch.cuda.stream(copy_out):
                copy_out.wait_event(done)
                d2h_begun.record()
                answers = map_tensors(outputs, _to_host)
                d2h_done.record()
            d2h_done.synchronize()
        except BaseException:
            # `staged` is about to be freed: no kernel may still be reading it. This also brings up what failed later.
            torch.cuda.synchronize(self._device)
            raise
        return answers, StageTimes(
            h2d_ns=_elapsed_ns(h2d_begun, h2d_done),
            compute_ns=_elapsed_ns(begun, done),
            d2h_ns=_elapsed_ns(d2h_begun, d2h_done),
        )


def open_device(name: str, *, threads: int) -> Device:
    """The device called "cpu", "cuda" or "cuda:N", with so many torch threads a slot; "auto" = CUDA if there is one.

    Raises SettingsError when the machine has no such device.
    """
    if threads < 1:
        raise SettingsError(f"threads = {threads}; a device needs at least one")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return Device("cpu", threads=threads)
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise SettingsError(f"unknown device '{name}'; valid are cpu, cuda, cuda:N and auto")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or "0") >= count:
        raise SettingsError(f"device '{name}' is not there: torch {torch_version()} sees {count} CUDA devices; use cpu")
    return CudaDevice(f"cuda:{index or '0'}", threads=threads)


def torch_version() -> str:
    """For the log's `hello`."""
    return str(torch.__version__)


def _graphs() -> int:
    """How many graphs torch.compile has made in this process."""
    # Not imported for this: a model that compiles has done so.
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0


def _encode(config: ModelConfig, request: ModelRequest, reply: ModelReply, wanted: Sequence[str]) -> Result:
    try:
        return Result(replies.encode(config, request, reply, wanted))
    except Exception as e:
        return _failure(e)


def _failure(error: Exception) -> Result:
    if isinstance(error, ModelInputError):
        code, text = ErrorKind.BAD_REQUEST.code, str(error)
    elif isinstance(error, TailraceError):
        code, text = error.kind.code, error.message
    elif isinstance(error, replies.ModelOutputError):
        code, text = ErrorKind.MODEL_ERROR.code, str(error)
    else:
        code, text = ErrorKind.MODEL_ERROR.code, f"{type(error).__name__}: {error}"
    text = text[:ERROR_TEXT_MAX]
    may_pass = isinstance(error, ModelRetry | torch.OutOfMemoryError) or (
        isinstance(error, TailraceError) and error.kind.retryable
    )
    return Result(
        replies.encode_failure(code, text),
        failed=True,
        error_code=code,
        error=text,
        traceback="".join(traceback.format_exception(error)),
        may_pass=may_pass,
    )


def _is_lost(error: Exception) -> bool:
    """True for an error after which the CUDA context is unusable. Running out of memory is not one of them."""
    # Before 2.8 torch had no type for it.
    return isinstance(error, _STICKY_ERRORS) or (type(error) is RuntimeError and str(error).startswith("CUDA error"))


def _stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _event() -> torch.cuda.Event:
    # Blocking: the thread sleeps in the one wait of a pass instead of spinning on a core.
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    return event


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_cuda else tensor.pin_memory()


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def _elapsed_ns(begun: torch.cuda.Event, done: torch.cuda.Event) -> int:
    return int(begun.elapsed_time(done) * 1_000_000)
