"""What the process that measures a bare model is told, and what it answers: a line of JSON each, over its pipes."""

from typing import Literal

import msgspec

Order = Literal["arrival", "sorted"]
"""How requests are put into batches: as they come, or with their like."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is started with, as its one argument."""

    repository: str = ""
    """Empty: the demo models."""
    models: tuple[str, ...] = ()
    """NAME or NAME/VERSION of each; none: every version of every model."""
    all_versions: bool = False
    """Of a NAME; else its highest one."""
    data: str = ""
    """File of texts; empty: inputs are made up."""
    order: Order = "arrival"
    seed: int = 1


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Make the batches, set the threads, and run a pass if this is the first time."""

    model: str
    """Its label, NAME/VERSION."""
    threads: int
    batch: int
    begin: float
    """Where in the model's batches to begin: 0 is the first, 1 would be after the last."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """Run passes from an instant on (monotonic ns) for so long, tell, and go on uncounted until `Halt`.

    So whoever is done stays in the way of those who are not: all are measured in the same company.
    """

    at_ns: int
    length_ns: int


class Halt(msgspec.Struct, frozen=True, tag=True):
    """Stop what goes on; the answer is `Ready`."""


Command = Prepare | Go | Halt


class Loaded(msgspec.Struct, frozen=True):
    """A model that the process holds."""

    label: str
    rows_max: int
    """Its max_batch_size; 0 = one request a pass."""
    inputs: str
    """What it is measured with, in words."""


class Began(msgspec.Struct, frozen=True, tag=True):
    """The models are loaded and warm."""

    models: list[Loaded]
    rss_bytes: int
    torch: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Prepared, or stopped."""


class Ran(msgspec.Struct, frozen=True, tag=True):
    """What was done since `Go`. `cpu_ns` is of all threads of the process."""

    began_ns: int
    ended_ns: int
    durations_ns: list[int]
    requests: int
    cpu_ns: int
    units_useful: int
    units_computed: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It cannot be measured; the process ends."""

    reason: str


Reply = Began | Ready | Ran | Failed
