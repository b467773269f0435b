"""Run a seed: for the tests, and for people."""

from dataclasses import replace

from simulation.plan import draw
from simulation.virtual_world import sha_of
from simulation.world import World

from shared.broker import scripts


def run(seed: int) -> World:
    """Run a seed to its end. Look at `auditor.violations`, and at the trace."""
    world = World(draw(seed))
    world.run()
    return world


def replay(seed: int, *, verbose: bool) -> int:
    """Print what happens. Returns the exit status: 1 when something was not as it must be."""
    world = World(draw(seed))
    print(replace(world.plan, requests=[], events=[]))
    for event in world.plan.events:
        print(f"  {event}")
    try:
        world.run()
    finally:
        names = {sha_of(name, world.plan.ready_max).encode(): name for name in scripts.NAMES}
        for line in world.trace.lines(names, commands=verbose):
            print(line)
        for violation in world.auditor.violations:
            print(f"VIOLATION: {violation}")
    print(f"seed {seed}: {world.now_s:.1f} virtual seconds, {world.loop.steps} steps, trace {world.trace.digest()}")
    return int(bool(world.auditor.violations))
