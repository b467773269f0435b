"""Who asks: the tenants, their API keys and what each may take up."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody whose requests are counted, limited and queued together.

    `weight`: turns in a backlog relative to others. `live_max`: requests of one model queued or running, 0 = the
    queue's own limit for a tenant. `rate_per_s` requests of all models, in bursts of up to `burst`; 0 = no limit.
    """

    name: str
    weight: float = 1.0
    live_max: int = 0
    rate_per_s: float = 0.0
    burst: int = 1

    def __str__(self) -> str:
        return "this client" if self.name == "-" else f"tenant '{self.name}'"


ANYONE = Tenant("-")
"""Of requests that name no tenant."""
