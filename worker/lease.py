"""Beside the loop: renew the lease, stay in the fleet's directory, and do the queues' housekeeping."""

import asyncio

from shared import clock
from shared.broker import fleet, work
from shared.broker.connection import BrokerError, Connection
from shared.eventlog import EventLog
from shared.events import Evt
from worker.loop import WorkerLoop

BEATS_PER_LEASE = 5
KEEP_EVERY_BEATS = 60
"""So often what was learned is written down, for a worker that is killed."""


class HungPass(Exception):
    """A forward pass that does not return. Nothing can stop its thread but the end of the process."""


class Keeper:
    """Keeps a worker's lease alive while it runs, and makes progress.

    It beats on the loop that does the work, so a blocked loop does not beat; and not while a pass is overdue.
    """

    def __init__(
        self,
        loop: WorkerLoop,
        connection: Connection,
        log: EventLog,
        descriptor: bytes,
        *,
        lease_us: int,
        pass_max_s: float,
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._log = log
        self._descriptor = descriptor
        self._lease_us = lease_us
        self._pass_max_ns = int(pass_max_s * 1e9)

    async def run(self) -> None:
        """Beat for ever."""
        beats = 0
        while True:
            try:
                await self.beat()
                beats += 1
                if beats % KEEP_EVERY_BEATS == 0:
                    self._loop.keep_learned()
                if beats % BEATS_PER_LEASE == 0:
                    # Redis may have given us something unseen later, too: a read of a lost connection that it had not
                    # noticed yet, a script that ran after we gave up on it, a second that it lost and we did not.
                    self._loop.puller.adopt_soon()
            except BrokerError:
                pass  # the connection heals itself; a lease that Redis could not renew is forgiven by its own gap rule
            await asyncio.sleep(self._lease_us / 1e6 / BEATS_PER_LEASE)

    async def beat(self) -> None:
        """Renew once, for each queue, and drop what is not ours any more. Raises HungPass."""
        if (taken_ns := self._loop.longest_pass_ns()) > self._pass_max_ns:
            now = clock.now_ns()
            self._log.write(Evt("pass_hung", now - taken_ns, now, {"requests": len(self._loop.held)}))
            raise HungPass(
                f"a forward pass has not returned for {taken_ns / 1e9:.0f} s (pass_max_s); the worker ends, and "
                f"each of its requests is run again, alone"
            )
        await fleet.announce(self._connection, self._loop.name, self._descriptor, lease_us=self._lease_us)
        await self._loop.flush_counts()
        for queue, served in self._loop.served.items():
            held = [(rid, job.delivery.attempt) for rid, job in served.jobs.items()]
            beat = await work.beat(
                self._connection, queue, self._loop.name, held, lease_us=self._lease_us, pace_us=served.pace_us
            )
            if beat.live:
                # Nobody hands on what a live worker holds: it was withdrawn, and this was faster than the bell.
                now, jobs = clock.now_ns(), served.jobs
                self._loop.withdraw(
                    [work.Withdrawn(rid, jobs[rid].waiting.deadline_at_ns <= now) for rid in beat.ended if rid in jobs]
                )
            else:
                self._loop.drop(beat.ended)
            if beat.alone:
                await self._loop.puller.run_suspects(queue)
            if not beat.live and held:
                now = clock.now_ns()
                self._log.write(Evt("lease_lost", now, now, {"queue": str(queue), "held": len(held)}))

    async def leave(self) -> None:
        """Leave the directory and the queues in good order."""
        try:
            await self._loop.flush_counts()
            await fleet.announce(self._connection, self._loop.name, b"", lease_us=0)
            for queue in self._loop.served:
                await work.leave(self._connection, queue, self._loop.name)
        except BrokerError:
            pass  # the lease will run out
