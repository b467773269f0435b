"""How much a worker takes from the queue ahead of the device.

Enough for the next batch, so that a freed device never waits for the network; not more, because what one worker holds
another, idle one cannot take. The mean cost of recent requests turns the cost budget into a number of requests.
"""

import math

from shared.policy.batching import BatchLimits


def how_many(
    *, held: int, held_rows: int, held_cost: int, mean_rows: float, mean_cost: float, limits: BatchLimits
) -> int:
    """Requests to ask for, given `held` waiting here already with `held_rows` rows and `held_cost` cost.

    At least one when nothing is held; 0 when a whole batch is.
    """
    room = (limits.rows_max - held_rows) / max(mean_rows, 1.0)
    if limits.cost_max:
        room = min(room, (limits.cost_max - held_cost) / max(mean_cost, 1.0))
    if not held:
        return max(1, math.ceil(room))
    return max(0, math.floor(room))
