"""Which requests share the next pass, chosen by what they cost: batch what pays, with whom it pays, when it pays.

Theory of operation. `batching.decide` keeps the order of arrival and knows only limits. `decide` here knows also how
long a pass takes (`service_time.Law`); without a law it is `batching.decide`. It looks at the oldest `LOOK_AHEAD_MAX`
requests and asks, in this order,

1. *deadlines*: would a request miss its deadline because of the batch that would be chosen otherwise? Then the earliest
   deadline goes first, with whom it and its companions can still make theirs. One that cannot make it even alone has no
   such claim and goes only if nobody else waits: soon it is the caller's (`batching.overdue`).
2. *patience*: has the oldest been overtaken for long enough? Then it goes now, with whom it pays.
3. *cost*: else the batch that does most requests for its time (`company`).

What this guarantees: after its patience a request waits only for passes that have an older request in them, or one
whose deadline is at stake. So as soon as nobody older waits it is in the next pass: patience plus one pass.

The patience is `limits.patience_ns`, but never more than half the time in which all that waits could be served. Short
requests first is best for the mean, and worst for the long ones just when the queue is long: they would wait until the
end of the rush. With this bound the slowest are about as slow as in order of arrival, however patient the limits are.

`crowd`, the N of `company`, counts also who will come: while N requests of mean time s are served, others come, and
while these are served others again, N / (1 - rho) in all, with rho = rate · s.

An idle device waits for company (without a linger of the model's) only if that pays: the next request comes in 1 / rate
on average and then saves itself a pass, t0, less the wait; the n members lose 1 / rate and its work. That its pass
would also cost those who come later is not counted: where this matters they come during a pass, and the device is never
idle. It waits for t0 at most, so that a guess that was wrong costs no more than a right one gains, and for the patience
at most. For models that pad it does not wait, since nobody knows how long the next one will be. (Counting those who
come later makes the mean worse; not waiting at all is hardly worse, but takes more passes:
`tests/policy/test_composing_simulated.py`.)

The model's knobs go first: `linger_ns` is honoured as in `batching`, and a batch beyond a preferred size is cut back.
"""

from collections.abc import Hashable, Sequence

from shared.policy import batching, company
from shared.policy.batching import BatchLimits, CloseReason, Dispatch, Idle, Waiting, WaitUntil
from shared.policy.company import Draft, Scene
from shared.policy.service_time import Form, Law

LOOK_AHEAD_MAX = 256
RHO_MAX = 0.98
"""The rate is an estimate: near saturation the crowd would be any number."""
CAUTION = 1.25
"""A pass may take so many times what is predicted before a deadline is missed for it."""


def decide(
    waiting: Sequence[Waiting],
    *,
    device_free: bool,
    now_ns: int,
    limits: BatchLimits,
    draining: bool = False,
    law: Law | None = None,
    arrivals_per_s: float = 0.0,
    behind: int = 0,
) -> Dispatch | WaitUntil | Idle:
    """Choose what to do at `now_ns` with the `waiting` requests, which are oldest first.

    `law`: how long passes take; None = unknown, then this is `batching.decide`. `arrivals_per_s`: how many requests
    come to this device; 0 = unknown, then nobody waits for company. `behind`: how many more are queued elsewhere.
    """
    if law is None or not waiting or not device_free:
        return batching.decide(waiting, device_free=device_free, now_ns=now_ns, limits=limits, draining=draining)
    scene = Scene(waiting[:LOOK_AHEAD_MAX], limits, law)
    here, waits = len(scene.waiting), len(waiting) + behind
    rho = min(RHO_MAX, arrivals_per_s / 1e9 * (law.t0 + scene.ahead) / here)
    scene.crowd = waits / (1 - rho)
    draft = _choose(scene, now_ns, min(limits.patience_ns, (law.t0 + scene.ahead * waits / here) / 2))
    if limits.preferred_rows:
        draft = _cut_to_preferred(scene, draft)
    if len(draft.members) == len(waiting) and draft.reason is CloseReason.IDLE and not draining:
        until_ns = _linger_until_ns(waiting, limits) or _company_until_ns(scene, draft, arrivals_per_s)
        if until_ns > now_ns:
            return WaitUntil(until_ns)
    batch = tuple(waiting[i] for i in sorted(draft.members))
    return Dispatch(batch, _reason(scene, draft, draining, len(waiting)), max(1, round(draft.took)))


# -- who goes ----------------------------------------------------------------------------------------------------------


def _choose(scene: Scene, now_ns: int, patience_ns: float) -> Draft:
    waiting, works, t0 = scene.waiting, scene.works, scene.law.t0
    everybody = range(len(waiting))
    if len(waiting) == 1:
        return company.best(scene, everybody)
    # The usual case first: no deadline is near enough to matter, whatever is chosen.
    if scene.soonest_ns > now_ns + 2 * CAUTION * (t0 + scene.ahead):
        return _draft(scene, everybody, now_ns, patience_ns)
    hopeful = [i for i in everybody if now_ns + t0 + works[i] <= waiting[i].deadline_at_ns]
    draft = _draft(scene, hopeful or everybody, now_ns, patience_ns)
    at_stake = _at_stake(scene, hopeful, draft, now_ns)
    if not at_stake:
        return draft
    # The earliest deadline of all: putting off one that is not tight yet could make it miss.
    first = min(hopeful, key=lambda i: waiting[i].deadline_at_ns)
    left_ns = [(w.deadline_at_ns - now_ns) / CAUTION for w in waiting]
    same_key = [i for i in hopeful if waiting[i].key == waiting[first].key]
    before = [i for i in at_stake if waiting[i].key == waiting[first].key]
    return company.around(scene, first, before, company.by_size(scene, same_key), left_ns)


def _at_stake(scene: Scene, hopeful: Sequence[int], draft: Draft, now_ns: int) -> list[int]:
    """Who would miss its deadline if `draft` went now, the earliest deadline first."""
    waiting, members = scene.waiting, set(draft.members)
    ends_ns = now_ns + CAUTION * draft.took
    at_stake = [
        i
        for i in hopeful
        if waiting[i].deadline_at_ns
        < (ends_ns if i in members else ends_ns + CAUTION * (scene.law.t0 + scene.works[i]))
    ]
    return sorted(at_stake, key=lambda i: waiting[i].deadline_at_ns)


def _draft(scene: Scene, indices: Sequence[int], now_ns: int, patience_ns: float) -> Draft:
    waiting = scene.waiting
    oldest = indices[0]
    impatient_since_ns = now_ns - patience_ns
    if waiting[oldest].since_ns <= impatient_since_ns:
        if scene.mixed:
            indices = [i for i in indices if waiting[i].key == waiting[oldest].key]
        impatient = [i for i in indices if waiting[i].since_ns <= impatient_since_ns]
        return company.around(scene, oldest, impatient, company.by_size(scene, indices))
    if not scene.mixed:
        return company.best(scene, company.by_size(scene, indices))
    groups: dict[Hashable, list[int]] = {}
    for i in indices:
        groups.setdefault(waiting[i].key, []).append(i)
    drafts = [company.best(scene, company.by_size(scene, group)) for group in groups.values()]
    return max(drafts, key=lambda draft: len(draft.members) / max(1.0, draft.took))


def _cut_to_preferred(scene: Scene, draft: Draft) -> Draft:
    """Back to the largest preferred size that was passed while the batch grew."""
    rows, cut = 0, 0
    for n, i in enumerate(draft.members, 1):
        rows += scene.waiting[i].rows
        if rows in scene.limits.preferred_rows:
            cut = n
    if not cut or cut == len(draft.members):
        return draft
    members = draft.members[:cut]
    return Draft(members, company.time_of(scene, members), CloseReason.PREFERRED)


# -- when --------------------------------------------------------------------------------------------------------------


def _linger_until_ns(waiting: Sequence[Waiting], limits: BatchLimits) -> int:
    """When the linger of the model ends; 0 without one, and when a preferred size is reached."""
    if not limits.linger_ns or sum(w.rows for w in waiting) in limits.preferred_rows:
        return 0
    return waiting[0].since_ns + limits.linger_ns


def _company_until_ns(scene: Scene, draft: Draft, arrivals_per_s: float) -> int:
    """Until when waiting for the next request pays; 0 if it does not."""
    waiting, limits, law, n = scene.waiting, scene.limits, scene.law, len(draft.members)
    if arrivals_per_s <= 0 or limits.linger_ns or law.form is Form.PADDED:
        return 0
    gap_ns, work_ns = 1e9 / arrivals_per_s, scene.ahead / n
    if law.t0 - gap_ns <= n * (gap_ns + work_ns):
        return 0
    if limits.cost_max and sum(w.cost for w in waiting) * (n + 1) / n > limits.cost_max:
        return 0
    latest_ns = scene.soonest_ns - CAUTION * (draft.took + gap_ns + work_ns)
    return int(min(waiting[0].since_ns + min(law.t0, limits.patience_ns), latest_ns))


def _reason(scene: Scene, draft: Draft, draining: bool, waits: int) -> CloseReason:
    if draft.reason is not CloseReason.IDLE:
        return draft.reason
    limits, members = scene.limits, draft.members
    if len(members) < waits:
        key = scene.waiting[members[0]].key
        joinable = any(w.key == key for i, w in enumerate(scene.waiting) if i not in members)
        return CloseReason.DEADLINE if joinable else CloseReason.KEY
    if not limits.linger_ns:
        return CloseReason.IDLE
    if draining:
        return CloseReason.DRAIN
    preferred = sum(scene.waiting[i].rows for i in members) in limits.preferred_rows
    return CloseReason.PREFERRED if preferred else CloseReason.LINGER
