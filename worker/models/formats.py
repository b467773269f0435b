"""Number formats: which of them the CPU has, and which one is worth it, by measurement.

A format is quicker only where the processor has instructions for it. Elsewhere torch computes it by conversion, slower
than float32, and nothing but a measurement tells by how much. So `auto` is a measurement, with a bound on the error.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from shared import clock
from shared.wire import Scalar
from worker import passes
from worker.models.interface import ModelLoadError

FLOAT32, BFLOAT16, AUTO = "float32", "bfloat16", "auto"
DTYPES = {FLOAT32: torch.float32, BFLOAT16: torch.bfloat16}

COSINE_MIN = 0.999
"""Least likeness of each answer to that of float32."""
GAIN_MIN = 1.1
"""Exact answers are given up only for more than noise."""
ROUNDS = 5
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""What /proc/cpuinfo calls bfloat16 products: the first two on x86, the last on ARM."""

Forward = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The format to use, and why."""

    format: str
    reason: str


def wanted_format(parameters: Mapping[str, Scalar]) -> str:
    """The parameter `dtype` of a model. Raises ModelLoadError for what is no format."""
    wanted = parameters.get("dtype", FLOAT32)
    if wanted not in (FLOAT32, BFLOAT16, AUTO):
        raise ModelLoadError(f"parameter dtype = {wanted!r}; write {FLOAT32}, {BFLOAT16} or {AUTO}")
    return str(wanted)


def has_bfloat16(device: str) -> bool:
    """True when the device multiplies bfloat16 by instructions of its own, so that it may be worth trying."""
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported())
    # torch tells since 2.10 or so, and only of x86.
    told: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if any(told.get(name) for name in ("avx512_bf16", "amx_bf16")):
        return True
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return bool(_CPU_FLAGS & set(flags.split()))


def choose(
    exact: Forward,
    quick: Forward,
    batches: Sequence[Any],
    *,
    rounds: int = ROUNDS,
    now_ns: Callable[[], int] = clock.now_ns,
) -> Verdict:
    """BFLOAT16 if `quick`, which computes in it, is quicker than `exact` and alike in every row; else FLOAT32.

    Both take a batch that is on the device and return fp32 [rows, DIM] on the host. They are timed on one torch
    thread, on all `batches` in a row: formats are compared here, not numbers of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            likeness = min(float(cosine_similarity(exact(b), quick(b)).min()) for b in batches)
            if not likeness >= COSINE_MIN:  # this way round for NaN, too
                return Verdict(FLOAT32, f"the cosine to float32 is {likeness:.5f}, less than {COSINE_MIN}")
            candidates = {
                FLOAT32: lambda: [exact(b) for b in batches],
                BFLOAT16: lambda: [quick(b) for b in batches],
            }
            taken_ns = passes.interleaved(candidates, rounds=rounds, now_ns=now_ns)
    finally:
        torch.set_num_threads(threads)
    gain = statistics.median(taken_ns[FLOAT32]) / max(1, statistics.median(taken_ns[BFLOAT16]))
    told = f"bfloat16 is {gain:.2f} times as fast as float32, cosine {likeness:.5f}"
    return Verdict(BFLOAT16 if gain >= GAIN_MIN else FLOAT32, told)
