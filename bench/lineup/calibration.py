"""How fast this machine is: what a layer of the served models takes per token, and a repeat of their fixed work.

A background says what a pass takes, not what it computes, so that one and the same scenario is as hard on a fast
machine as on a slow one. Measured in CPU time of one thread, the best of many passes, in a process of its own.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.lineup.backgrounds import ModelOptions

TOKENS = 64
PASSES = 40
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Speed:
    """Microseconds of CPU: of a layer per token, by kind of model, and of a repeat of the fixed work."""

    layer_us: dict[str, float]
    repeat_us: float

    def options(self, model: ModelOptions) -> dict[str, object]:
        """What the served model reads: how much it must compute to take as long as it should."""
        return {
            "kind": model.kind,
            "tokens_max": model.tokens_max,
            "layers": max(1, round(model.token_us / self.layer_us[model.kind])),
            "fixed_repeats": max(0, round(model.fixed_ms * 1000 / self.repeat_us)),
            **model.extra,
        }


def measure() -> Speed:
    """Measure this machine, in a process that loads torch."""
    done = subprocess.run(
        [sys.executable, "-m", __name__], cwd=ROOT, capture_output=True, text=True, check=True
    )  # the module's own name: it is run as a script
    return Speed(**json.loads(done.stdout))


def _measure() -> Speed:
    import torch

    from bench.lineup import serving
    from shared import clock

    torch.set_num_threads(1)

    def best_us(model: serving.Tokens, tokens: int) -> float:
        x = torch.zeros(1, tokens, serving.WIDTH)
        taken_ns = []
        for _ in range(PASSES):
            began_ns = clock.thread_cpu_ns()
            if tokens:
                model.compute(x)
            else:
                model.overhead()
            taken_ns.append(clock.thread_cpu_ns() - began_ns)
        return min(taken_ns) / 1000

    layer_us = {}
    with torch.inference_mode():
        for kind in ("packed", "padded", "conv"):
            model = serving.Tokens()
            model.kind, model.layers, model.fixed_repeats = kind, 20, 20
            model.weigh()
            layer_us[kind] = best_us(model, TOKENS) / (20 * TOKENS)
        repeat_us = best_us(model, 0) / 20
    return Speed(layer_us, repeat_us)


if __name__ == "__main__":
    speed = _measure()
    print(json.dumps({"layer_us": speed.layer_us, "repeat_us": speed.repeat_us}))
