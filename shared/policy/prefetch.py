"""How much a worker takes from the queue ahead of the device.

Enough for the next batch, so that a freed device never waits for the network; not more, because what one worker holds
another, idle one cannot take. A model that pads needs several batches' worth to choose from. The mean cost of recent
requests turns the cost budget into a number of requests.
"""

import math

from shared.policy.batching import BatchLimits


def how_many(
    *,
    held: int,
    held_rows: int,
    held_cost: int,
    mean_rows: float,
    mean_cost: float,
    limits: BatchLimits,
    batches: int = 1,
) -> int:
    """Requests to ask for, given `held` waiting here already with `held_rows` rows and `held_cost` cost.

    `batches`: how many batches are to be held. At least one request when nothing is held; 0 when enough is.
    """
    room = (batches * limits.rows_max - held_rows) / max(mean_rows, 1.0)
    if limits.cost_max:
        room = min(room, (batches * limits.cost_max - held_cost) / max(mean_cost, 1.0))
    if not held:
        return max(1, math.ceil(room))
    return max(0, math.floor(room))
