"""Lanes beside each other: what is told apart only by its lane stays apart."""

from support.scene import Scene

from shared.broker import requests
from shared.broker.requests import Limits
from shared.keys import HIGH, LOW, NORMAL


async def test_entries_of_equal_ids_in_different_lanes_stay_different_requests(scene: Scene) -> None:
    """Three priorities within one millisecond have equal entry ids, and an idle worker gets all three at once.

    It once took them all for the last one: that was answered with another's payload, the others never ended.
    """
    equal = 0
    for i in range(10):  # an old server may go on to the next millisecond within a script
        submissions = [scene.submission(f"{i}{priority}", priority=priority) for priority in (HIGH, NORMAL, LOW)]
        await requests.accept(scene.c, scene.queue, submissions, gateway=scene.gateway, limits=Limits())

        entries = await scene.block()
        deliveries = await scene.start(entries)

        equal += len({entry.id for entry in entries}) == 1
        assert {d.id: d.payload for d in deliveries} == {s.id: s.payload for s in submissions}
    assert equal, "never within one millisecond: this proves nothing"
