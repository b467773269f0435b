"""A process that runs a bare model when it is told to: `python -m bench.bare_process SETUP`. See `bare_protocol`.

It loads models as a worker does and runs passes as a worker does, in `Device.execute`; only queue and gateway are
missing. It ends when its input ends, so that it never outlives whoever started it.
"""

import itertools
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from bench import bare_inputs
from bench.bare_protocol import Began, Command, Failed, Go, Halt, Loaded, Prepare, Ran, Ready, Reply, Setup
from bench.errors import CannotMeasure
from shared import humanlog, vitals
from shared.errors import SettingsError
from worker import device as devices
from worker import passes
from worker.models import repository
from worker.models.interface import Model, ModelConfig, ModelRequest

_READ_BYTES = 1 << 16


class Ear:
    """Commands from a pipe, a line each; can also tell whether there is one, without waiting."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending = b""

    def commands(self) -> Iterator[Command]:
        """Each command, until the pipe is closed."""
        while True:
            line, newline, rest = self._pending.partition(b"\n")
            if newline:
                self._pending = rest
                yield msgspec.json.decode(line, type=Command)
            elif read := os.read(self._fd, _READ_BYTES):
                self._pending += read
            else:
                return

    @property
    def hears(self) -> bool:
        """True when a command, or the end, is there to be read."""
        return b"\n" in self._pending or bool(select.select([self._fd], [], [], 0)[0])


class Held:
    """A loaded model and what it is measured with."""

    def __init__(self, config: ModelConfig, model: Model, setup: Setup) -> None:
        self.config = config
        self.model = model
        self.label = f"{config.name}/{config.version}"
        self._order = setup.order
        self._batches: dict[int, list[list[ModelRequest]]] = {}
        self._inputs = bare_inputs.made_up(model, setup.seed)
        if setup.data:
            self._inputs = bare_inputs.from_file(config, Path(setup.data))
        else:
            # What tailrace makes up may be no text to this model: then its author's examples must do.
            device = _prepared(1)
            if _error(device, model, config, self._inputs.requests[:1]):
                self._inputs = bare_inputs.own_examples(model)

    @property
    def loaded(self) -> Loaded:
        """What it is."""
        return Loaded(self.label, self.config.max_batch_size, self._inputs.told)

    def batches(self, size: int) -> list[list[ModelRequest]]:
        """All batches of so many requests."""
        if size not in self._batches:
            self._batches[size] = bare_inputs.batches(self.model, self._inputs.requests, size, self._order)
        return self._batches[size]


class Runner:
    """Passes of one model with one batch size and number of threads, one after the other."""

    def __init__(self, held: Held, prepare: Prepare) -> None:
        self._held = held
        self._device = _prepared(prepare.threads)
        batches = held.batches(prepare.batch)
        first = int(prepare.begin * len(batches)) % len(batches)
        self._batches = itertools.cycle(batches[first:] + batches[:first])
        self._all: Sequence[Sequence[str]] = [()] * prepare.batch
        self.batch = prepare.batch
        self.units_useful = self.units_computed = 0

    def once(self) -> None:
        """One pass, from requests to encoded answers. Raises CannotMeasure when the model fails."""
        held = self._held
        done = self._device.execute(held.model, held.config, next(self._batches), self._all)
        if failed := next((result for result in done.results if result.failed), None):
            raise CannotMeasure(f"model {held.label} does not answer what it is measured with: {failed.error}")
        self.units_useful += done.tokens_useful
        self.units_computed += done.tokens_padded

    def run(self, go: Go) -> Ran:
        """Passes for as long as is asked."""
        self.units_useful = self.units_computed = 0
        found = passes.stretch(self.once, begin_at_ns=go.at_ns, length_ns=go.length_ns)
        return Ran(
            found.began_ns,
            found.ended_ns,
            found.durations_ns,
            len(found.durations_ns) * self.batch,
            found.cpu_ns,
            self.units_useful,
            self.units_computed,
        )


def main(argument: str) -> int:
    """Load, then obey until the input ends; returns the exit status."""
    # What a model prints must not get between our lines.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    humanlog.configure("bench", level="warning")

    def say(reply: Reply) -> None:
        answers.write(msgspec.json.encode(reply) + b"\n")

    setup = msgspec.json.decode(argument, type=Setup)
    try:
        held = {h.label: h for h in _load(setup)}
        vitals.calm_gc()
        rss_bytes = psutil.Process().memory_info().rss
        say(Began([h.loaded for h in held.values()], rss_bytes, devices.torch_version()))
        _obey(Ear(0), held, say)
    except (SettingsError, CannotMeasure) as e:
        say(Failed(str(e)))
        return 2
    except BrokenPipeError:
        return 1  # whoever asked has gone
    return 0


def _obey(ear: Ear, held: dict[str, Held], say: Callable[[Reply], None]) -> None:
    runner: Runner | None = None
    warm = set()
    for command in ear.commands():
        match command:
            case Prepare(model, threads, batch):
                runner = Runner(held[model], command)
                if (model, threads, batch) not in warm:
                    runner.once()
                    warm.add((model, threads, batch))
                say(Ready())
            case Go():
                assert runner is not None
                say(runner.run(command))
                while not ear.hears:
                    runner.once()
            case Halt():
                say(Ready())


def _load(setup: Setup) -> list[Held]:
    directory = Path(setup.repository) if setup.repository else repository.demo_repository()
    configs = repository.scan(directory)
    wanted: list[ModelConfig] = []
    for name in setup.models:
        # In ascending order of versions.
        found = [c for c in configs if name in (c.name, f"{c.name}/{c.version}")]
        if not found:
            held = ", ".join(f"{c.name}/{c.version}" for c in configs)
            raise CannotMeasure(f"there is no model '{name}' in {directory}; it holds: {held}")
        wanted += found if setup.all_versions else found[-1:]
    return [Held(config, repository.load(config, "cpu"), setup) for config in wanted or configs]


def _prepared(threads: int) -> devices.Device:
    device = devices.open_device("cpu", threads=threads)
    device.prepare_thread()
    return device


def _error(device: devices.Device, model: Model, config: ModelConfig, requests: Sequence[ModelRequest]) -> str:
    [result] = device.execute(model, config, requests, [()]).results
    return result.error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
