"""From a finished pass to answers in Redis and records in the log."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from shared import clock, humanlog, wire
from shared.broker import work
from shared.broker.connection import BrokerError, Connection
from shared.bulk import BULK_BYTES_MIN
from shared.eventlog import EventLog
from shared.events import Batch, Evt, Wreq
from shared.keys import Queue
from shared.policy.batching import CloseReason
from worker.device import Executed, Result
from worker.intake import Job, Member
from worker.models.interface import ModelConfig

RETRY_S = 0.05
TRY_AGAIN_FIRST_S = 0.2
TRY_AGAIN_MAX_S = 30.0
_AGAIN = wire.encode_reply_body(wire.ReplyBody(error_code=wire.AGAIN))
EXPIRES_AFTER_S = 60.0
"""The file of an answer outlives the deadline by this; then its gateway has been killed."""
COUNT_INTERVAL_NS = 100_000_000
"""Statistics are collected for this long, so that a small pass does not pay twenty more commands."""


@dataclass(slots=True)
class Run:
    """One pass through the device, from sealed to published."""

    batch_id: str
    queue: Queue
    config: ModelConfig
    jobs: Sequence[Job]
    members: Sequence[Member]
    """The requests of all jobs, in order."""
    reason: CloseReason
    sealed_ns: int
    nth: int
    shape_seen: bool
    waiting_after: int
    rows: int
    """Rows of all its requests together; kept, since every answer tells them."""
    predicted_ns: int = 0
    """How long it should take; 0 = unknown."""
    alone: bool = True
    """It began on an idle device."""
    executed: Executed | None = None


class Publisher:
    """Hands answers in, and repeats that until Redis has said what became of them."""

    def __init__(self, connection: Connection, log: EventLog, worker: str, clock_id: str) -> None:
        self._connection = connection
        self._log = log
        self._worker = worker
        self._clock_id = clock_id
        self._counts: dict[Queue, dict[str, int]] = {}
        self._counted_at_ns = 0

    async def publish(self, run: Run) -> None:
        """Answer every request of a pass, and log it."""
        done = run.executed
        assert done is not None
        files = await self._put_long_ones(run.jobs, done)
        sent_ns = clock.now_ns()
        answers, may_pass, at = [], [], 0
        for i, job in enumerate(run.jobs):
            end = at + len(job.members)
            stamps = self._stamps(run, job, done, done.encoded_ns[end - 1], sent_ns)
            answers.append(_answer(job, stamps, done.results[at:end], files.get(i, "")))
            if done.results[at].may_pass and not job.is_parcel:
                may_pass.append(i)
            at = end
        statuses = await self._hand_in(run.queue, answers, run.jobs, may_pass)
        confirmed_ns = clock.now_ns()
        for i, file in files.items():
            if statuses[i] in ("STALE", "GONE") and (folder := run.jobs[i].folder):
                folder.drop(file)  # nobody will ask for it
        _tell_failures(run, done)
        times = (run.sealed_ns, done.entered_ns, done.collated_ns, done.done_ns)
        position = 0
        for job, status in zip(run.jobs, statuses, strict=True):
            # As the stamps that travel: a parcel was encoded when its last answer was.
            encoded_ns = done.encoded_ns[position + len(job.members) - 1]
            for member in job.members:
                result = done.results[position]
                outcome = status if status != "OK" else ("FAILED" if result.failed else "DONE")
                if job.is_parcel and result.may_pass and status == "OK":
                    outcome = "SPLIT"
                self._log.write(
                    _wreq(
                        run.queue, job, member, outcome, (*times, encoded_ns, sent_ns, confirmed_ns),
                        (result.error_code, result.error), run.batch_id, position, len(result.body),
                    )
                )  # fmt: skip
                position += 1
        self._log.write(_batch(run, done))
        if "OK" in statuses:
            await self._count(run.queue, _counters(run, done))

    async def _put_long_ones(self, jobs: Sequence[Job], done: Executed) -> dict[int, str]:
        """Files of the answers, by index, that are long and whose gateway reads where their tensors came from."""
        files, at = {}, 0
        for i, job in enumerate(jobs):
            body, folder = done.results[at].body, job.folder
            at += len(job.members)
            if folder is None or len(body) < BULK_BYTES_MIN:
                continue
            expires_in_s = max(0, job.waiting.deadline_at_ns - clock.now_ns()) / 1e9 + EXPIRES_AFTER_S
            try:
                files[i] = await asyncio.to_thread(folder.put, [body], expires_in_s=expires_in_s)
            except OSError:
                continue  # no room: through Redis
        return files

    async def _count(self, queue: Queue, increments: dict[str, int]) -> None:
        """Count now if that was not done lately; else collect, for the next time or the `flush_counts` that follows."""
        due = self._counts.setdefault(queue, {})
        for name, n in increments.items():
            due[name] = due.get(name, 0) + n
        if clock.now_ns() - self._counted_at_ns >= COUNT_INTERVAL_NS:
            await self.flush_counts()

    def note_saved(self, queue: Queue, requests: int, *, expired: bool) -> None:
        """Count requests that were dropped before they were computed; `flush_counts` says it."""
        due = self._counts.setdefault(queue, {})
        name = "expire_saved_count" if expired else "cancel_saved_count"
        due[name] = due.get(name, 0) + requests

    async def flush_counts(self) -> None:
        """Add what was collected to the cumulative statistics in Redis."""
        self._counted_at_ns = clock.now_ns()
        counts, self._counts = self._counts, {}
        for queue, increments in counts.items():
            try:
                at_ms = clock.wall_us() // 1000 if "execution_count" in increments else 0
                await work.count(self._connection, queue, increments, at_ms=at_ms)
            except BrokerError:
                pass  # statistics are not worth a second try that might count twice

    async def reject(self, queue: Queue, jobs: Sequence[Job]) -> None:
        """Answer requests that cannot run with their own errors."""
        now = clock.now_ns()
        answers = []
        for job in jobs:
            assert job.error is not None
            code = wire.AGAIN if job.again else job.error.kind.code
            body = wire.encode_reply_body(wire.ReplyBody(error_code=code, error=job.error.message))
            stamps = wire.WorkerStamps(
                job.w0, job.w1, job.w2, now, now, now, now, now, now, self._worker, self._clock_id,
                job.delivery.attempt, job.delivery.lost_us, "", 0, 0, "", 0, 0,
            )  # fmt: skip
            answers.append(work.Answer(job.delivery.id, job.delivery.attempt, True, wire.encode_reply(stamps, body)))
        statuses = await self._hand_in(queue, answers, jobs)
        failed = sum(status == "OK" and not job.goes_again for job, status in zip(jobs, statuses, strict=True))
        await self._count(queue, {"fail_count": failed})
        for job, status in zip(jobs, statuses, strict=True):
            assert job.error is not None
            error = (job.error.kind.code, job.error.message)
            outcome = status if status != "OK" else ("SPLIT" if job.goes_again else "FAILED")
            for member in job.members:
                self._log.write(_wreq(queue, job, member, outcome, (now,) * 7, error))

    async def _hand_in(
        self, queue: Queue, answers: list[work.Answer], jobs: Sequence[Job], may_pass: Sequence[int] = ()
    ) -> list[str]:
        """`may_pass`: indices of failures that are worth another try."""
        until_ns = max(job.waiting.deadline_at_ns for job in jobs)
        again = [(answers[i], _delay_us(answers[i].attempt)) for i in may_pass]
        while True:
            try:
                if not again:
                    return await work.complete(self._connection, queue, answers)
                tried = dict(zip(may_pass, await work.retry(self._connection, queue, again), strict=True))
                ended = iter(
                    await work.complete(self._connection, queue, [a for i, a in enumerate(answers) if i not in tried])
                )
                return [tried[i] if i in tried else next(ended) for i in range(len(answers))]
            except BrokerError as e:
                # Safe to repeat: the script answers OKDUP for what it has. Pointless once nobody waits any more.
                if clock.now_ns() >= until_ns:
                    now = clock.now_ns()
                    self._log.write(Evt("answers_dropped", now, now, {"requests": len(answers), "error": str(e)}))
                    return ["UNKNOWN"] * len(answers)
            await asyncio.sleep(RETRY_S)

    def _stamps(self, run: Run, job: Job, done: Executed, encoded_ns: int, sent_ns: int) -> wire.WorkerStamps:
        d = job.delivery
        # By position, as in `_wreq`: both are made for every request, and names take 1 us more each.
        return wire.WorkerStamps(
            job.w0, job.w1, job.w2, run.sealed_ns, done.entered_ns, done.collated_ns, done.done_ns, encoded_ns, sent_ns,
            self._worker, self._clock_id, d.attempt, d.lost_us,
            run.batch_id, run.rows, len(run.members), run.reason.value, done.tokens_useful, done.tokens_padded,
        )  # fmt: skip


def _answer(job: Job, stamps: wire.WorkerStamps, results: Sequence[Result], file: str) -> work.Answer:
    d = job.delivery
    if file:
        return work.Answer(d.id, d.attempt, results[0].failed, wire.encode_claimed_reply(stamps, file))
    if job.is_parcel:
        bodies = [_AGAIN if result.may_pass else result.body for result in results]
        return work.Answer(d.id, d.attempt, False, wire.encode_parcel_reply(stamps, bodies))
    return work.Answer(d.id, d.attempt, results[0].failed, wire.encode_reply(stamps, results[0].body))


def _delay_us(attempt: int) -> int:
    """Exponential backoff with jitter, so that what failed together does not come back together."""
    longest_s = min(TRY_AGAIN_MAX_S, TRY_AGAIN_FIRST_S * 2 ** (attempt - 1))
    return int(longest_s * random.uniform(0.5, 1.5) * 1e6)


def _tell_failures(run: Run, done: Executed) -> None:
    """Show the model's author where it failed; the client is told only what."""
    for member, result in zip(run.members, done.results, strict=True):
        if result.traceback:
            humanlog.get().error(
                f"the model failed\n{result.traceback}",
                model=str(run.queue),
                request_id=member.id,
                trace_id=_trace(member)[0],
            )


def _trace(member: Member) -> tuple[str, str]:
    """Trace id and the gateway's span id of a request."""
    parts = member.traceparent.split("-")
    return (parts[1], parts[2]) if len(parts) > 2 else ("", "")


def _wreq(
    queue: Queue,
    job: Job,
    member: Member,
    outcome: str,
    times: tuple[int, int, int, int, int, int, int],
    error: tuple[str, str],
    batch_id: str = "",
    position: int = 0,
    bytes_out: int = 0,
) -> Wreq:
    """The log record of an attempt; `times` are w3 to w9, `error` code and text."""
    d = job.delivery
    trace_id, span_id = _trace(member)
    return Wreq(
        member.id, trace_id, span_id, queue.model, queue.version, d.attempt, outcome, job.w0, job.w1, job.w2, *times,
        d.sent_ns, d.gateway, d.entry_id, d.lost_us,
        batch_id, position, member.request.rows, member.cost, job.bytes_in // len(job.members), bytes_out, *error,
    )  # fmt: skip


def _batch(run: Run, done: Executed) -> Batch:
    return Batch(
        batch_id=run.batch_id,
        model=run.queue.model,
        version=run.queue.version,
        close_reason=run.reason.value,
        w3=run.sealed_ns,
        w4=done.entered_ns,
        w5=done.collated_ns,
        w6=done.done_ns,
        w7=done.encoded_ns[-1],
        requests=len(run.members),
        rows=run.rows,
        rows_max=run.config.max_batch_size or 1,
        cost=sum(m.cost for m in run.members),
        members=[m.id for m in run.members],
        costs=[m.cost for m in run.members],
        oldest_wait=run.sealed_ns - run.jobs[0].w2,
        waiting_after=run.waiting_after,
        tokens_useful=done.tokens_useful,
        tokens_padded=done.tokens_padded,
        h2d=done.h2d_ns,
        compute=done.compute_ns,
        d2h=done.d2h_ns,
        cpu=done.cpu_ns,
        runq=done.runq_ns,
        minflt=done.minflt,
        majflt=done.majflt,
        nvcsw=done.nvcsw,
        nivcsw=done.nivcsw,
        nth=run.nth,
        shape_seen=run.shape_seen,
        splits=done.splits,
        predicted=run.predicted_ns,
        compiles=done.compiles,
    )


def _counters(run: Run, done: Executed) -> dict[str, int]:
    """What the pass adds to the cumulative statistics of its model version (Triton's names and meaning)."""
    n = len(run.members)
    failed = sum(r.failed for r in done.results)  # another try counts as a failure of this pass
    input_ns = done.collated_ns - done.entered_ns
    infer_ns = done.done_ns - done.collated_ns
    output_ns = done.encoded_ns[-1] - done.done_ns
    queue_ns = sum(len(j.members) * (j.delivery.waited_us * 1000 + run.sealed_ns - j.w1) for j in run.jobs)
    total_ns = queue_ns + n * (input_ns + infer_ns + output_ns)
    size = f"b{run.rows}"
    return {
        "success_count": n - failed,
        "success_ns": total_ns * (n - failed) // n,
        "fail_count": failed,
        "fail_ns": total_ns * failed // n,
        "queue_count": n,
        "queue_ns": queue_ns,
        "compute_input_count": n,
        "compute_input_ns": n * input_ns,
        "compute_infer_count": n,
        "compute_infer_ns": n * infer_ns,
        "compute_output_count": n,
        "compute_output_ns": n * output_ns,
        "inference_count": run.rows,
        "execution_count": 1,
        f"{size}_count": 1,
        f"{size}_input_ns": input_ns,
        f"{size}_infer_ns": infer_ns,
        f"{size}_output_ns": output_ns,
    }
