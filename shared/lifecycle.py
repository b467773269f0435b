"""The states of a request's record, and the legal moves between them, as a table.

Each move is one Lua script of `shared/broker/`; a test drives the scripts through every illegal move too.
"""

from enum import StrEnum


class State(StrEnum):
    """What the record says. Terminal states are written once."""

    WAITING = "WAITING"
    QUEUED = "QUEUED"
    DELAYED = "DELAYED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    DEAD = "DEAD"


MOVES: dict[State, frozenset[State]] = {
    # For its tenant's turn.
    State.WAITING: frozenset({State.QUEUED, State.CANCELLED, State.EXPIRED}),
    # For another try.
    State.DELAYED: frozenset({State.QUEUED, State.CANCELLED, State.EXPIRED}),
    # QUEUED -> DONE or FAILED is a worker that had been given up for dead: its answer counts until somebody starts the
    # request again.
    State.QUEUED: frozenset({State.RUNNING, State.DONE, State.FAILED, State.CANCELLED, State.EXPIRED, State.DEAD}),
    # RUNNING -> RUNNING is a worker that takes its own entry again after a reply of Redis was lost: a new attempt.
    State.RUNNING: frozenset(
        {
            State.RUNNING,
            State.QUEUED,
            State.DELAYED,
            State.DONE,
            State.FAILED,
            State.CANCELLED,
            State.EXPIRED,
            State.DEAD,
        }
    ),
    State.DONE: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
    State.EXPIRED: frozenset(),
    State.DEAD: frozenset(),
}


def is_terminal(state: State) -> bool:
    """True when nothing can change the state any more."""
    return not MOVES[state]
