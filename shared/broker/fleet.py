"""The fleet's directory: which workers are there, and which models an operator has withdrawn."""

from dataclasses import dataclass

from shared.broker import scripts
from shared.broker.connection import Connection
from shared.keys import FLEET_LEASES, FLEET_SURVEYED, FLEET_UNLOADED, FLEET_VERSION, FLEET_WORKERS

SURVEY_GRACE_US = 5_000_000
"""Nobody looked for so long: leases that ran out meanwhile are extended by it."""


async def announce(c: Connection, worker: str, descriptor: bytes, *, lease_us: int) -> None:
    """Enter a worker in the fleet's directory, or renew it. A lease of 0 takes it out."""
    await scripts.run(c, "announce", (FLEET_WORKERS, FLEET_LEASES, FLEET_VERSION), (worker, lease_us, descriptor))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet's directory: descriptors by worker, and the models withdrawn from the clients."""

    version: str
    workers: dict[str, bytes]
    unloaded: frozenset[str]


async def survey(c: Connection, known: str) -> Fleet | None:
    """Who is there. None when the version `known` is still right."""
    keys = (FLEET_WORKERS, FLEET_LEASES, FLEET_VERSION, FLEET_UNLOADED, FLEET_SURVEYED)
    reply = await scripts.run(c, "survey", keys, (known, SURVEY_GRACE_US))
    if len(reply) == 1:
        return None
    version, unloaded, workers = reply
    return Fleet(
        version.decode(),
        {workers[i].decode(): workers[i + 1] for i in range(0, len(workers), 2)},
        frozenset(m.decode() for m in unloaded),
    )


async def offer(c: Connection, model: str, *, offered: bool) -> None:
    """Withdraw a model from the clients of all gateways, or offer it again."""
    await scripts.run(c, "offer", (FLEET_UNLOADED, FLEET_VERSION), (model, int(offered)))
