"""The model repository of one run: one model under a name that says nothing about the run."""

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.lineup.backgrounds import Background

NAMES = ("encoder", "ranker", "tagger", "matcher", "scorer", "reader")
OPTIONS_FILE = "options.json"
_TOML = """max_batch_size = {rows_max}
warm_up_rows = {warm_up_rows}
[[inputs]]
name = "tokens"
datatype = "INT64"
shape = [-1]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [8]
[batching]
max_queue_delay_microseconds = {linger_us}
"""


def make(
    directory: Path,
    background: Background,
    options: Mapping[str, object],
    *,
    model: str,
    beside: Path,
    rng: random.Random,
) -> str:
    """Write the repository of a run; `model` is its class, MODULE:NAME, or FILE.py:NAME of a file in the folder
    `beside`. Returns the model's name."""
    name = rng.choice(NAMES)
    version = directory / name / "1"
    version.mkdir(parents=True)
    wanted = background.model
    linger_us = round(wanted.linger_ms * 1000)
    toml = _TOML.format(rows_max=wanted.rows_max, linger_us=linger_us, warm_up_rows=wanted.warm_up_rows)
    (version / "model.toml").write_text(toml)
    (version / OPTIONS_FILE).write_text(json.dumps(options))
    module, _, kind = model.partition(":")
    if module.endswith(".py"):
        # Under a name of its own: the file may lie anywhere.
        shutil.copy(beside / module, version / "net.py")
        module = ".net"
    source = f"from {module} import {kind}\n\n\nclass Served({kind}):\n    pass\n"
    (version / "model.py").write_text(source)
    return name
