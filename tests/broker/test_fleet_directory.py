"""The fleet's directory: who is there, who has gone, and what an operator has withdrawn."""

from support.scene import MINUTE_US

from shared.broker import fleet
from shared.broker.connection import Connection
from shared.broker.fleet import Fleet
from shared.keys import FLEET_LEASES, FLEET_SURVEYED


async def look(c: Connection, known: str = "") -> Fleet:
    """A survey that must find news."""
    found = await fleet.survey(c, known)
    assert found is not None
    return found


async def announce(c: Connection, worker: str, descriptor: bytes = b"descriptor") -> None:
    await fleet.announce(c, worker, descriptor, lease_us=MINUTE_US)


async def test_an_announced_worker_is_found(connection: Connection) -> None:
    """With the descriptor that it gave, byte for byte."""
    await announce(connection, "w-1", b"\x00one")
    await announce(connection, "w-2", b"two")
    assert (await look(connection)).workers == {"w-1": b"\x00one", "w-2": b"two"}


async def test_an_empty_fleet_is_a_fleet(connection: Connection) -> None:
    """Before the first worker there is an answer too."""
    found = await look(connection)
    assert (found.workers, found.unloaded) == ({}, frozenset())


async def test_a_gateway_that_knows_is_told_only_that_nothing_moved(connection: Connection) -> None:
    """Renewing a lease is no news; a new descriptor, a new worker and one that left are."""
    await announce(connection, "w-1")
    version = (await look(connection)).version
    await announce(connection, "w-1")
    assert await fleet.survey(connection, version) is None
    for change in (
        announce(connection, "w-1", b"another model"),
        announce(connection, "w-2"),
        fleet.announce(connection, "w-2", b"", lease_us=0),
    ):
        await change
        version = (await look(connection, version)).version
    assert await fleet.survey(connection, version) is None


async def test_a_worker_whose_lease_ran_out_is_gone(connection: Connection) -> None:
    """It is out of the directory, and that is news."""
    await announce(connection, "dead")
    await announce(connection, "alive")
    version = (await look(connection)).version
    await connection.call("ZADD", FLEET_LEASES, 1, "dead")
    found = await look(connection, version)
    assert list(found.workers) == ["alive"]
    assert await fleet.survey(connection, found.version) is None
    await announce(connection, "dead")
    assert set((await look(connection, found.version)).workers) == {"dead", "alive"}


async def test_a_worker_that_leaves_is_gone_at_once(connection: Connection) -> None:
    """Nothing of it remains; leaving without having come changes nothing."""
    await announce(connection, "w-1")
    await fleet.announce(connection, "w-1", b"", lease_us=0)
    found = await look(connection)
    assert found.workers == {}
    await fleet.announce(connection, "stranger", b"", lease_us=0)
    assert await fleet.survey(connection, found.version) is None
    assert await connection.call("ZCARD", FLEET_LEASES) == 0


async def test_an_operator_withdraws_a_model_and_offers_it_again(connection: Connection) -> None:
    """Every gateway hears of it; saying it twice is no news."""
    await announce(connection, "w-1")
    before = await look(connection)
    await fleet.offer(connection, "bert", offered=False)
    withdrawn = await look(connection, before.version)
    assert withdrawn.unloaded == {"bert"}
    assert withdrawn.workers == before.workers
    await fleet.offer(connection, "bert", offered=False)
    assert await fleet.survey(connection, withdrawn.version) is None
    await fleet.offer(connection, "bert", offered=True)
    offered = await look(connection, withdrawn.version)
    assert offered.unloaded == frozenset()
    await fleet.offer(connection, "never-withdrawn", offered=True)
    assert await fleet.survey(connection, offered.version) is None


async def test_nobody_is_gone_because_redis_stood_still(connection: Connection) -> None:
    """Nobody could renew meanwhile, or nobody looked; one who does not come back is missed afterwards."""
    await announce(connection, "back")
    await announce(connection, "dead")
    version = (await look(connection)).version
    stood_still = fleet.SURVEY_GRACE_US + 1_000_000
    last = int(await connection.call("GET", FLEET_SURVEYED))
    await connection.call("SET", FLEET_SURVEYED, last - stood_still, "KEEPTTL")
    for worker in ("back", "dead"):
        await connection.call("ZADD", FLEET_LEASES, 1, worker)
    assert await fleet.survey(connection, version) is None
    assert await fleet.survey(connection, version) is None
    left_us = int(await connection.call("ZSCORE", FLEET_LEASES, "dead")) - last
    assert fleet.SURVEY_GRACE_US / 2 < left_us < 2 * fleet.SURVEY_GRACE_US
    await announce(connection, "back")
    await connection.call("ZADD", FLEET_LEASES, 1, "dead")
    assert list((await look(connection, version)).workers) == ["back"]


async def test_a_wiped_redis_is_news(connection: Connection) -> None:
    """The version cannot come out equal by accident, however many changes there are before and after."""
    await announce(connection, "w-1")
    version = (await look(connection)).version
    await connection.call("FLUSHALL")
    assert (await look(connection, version)).workers == {}
    await announce(connection, "w-1")
    assert (await look(connection, version)).version != version
