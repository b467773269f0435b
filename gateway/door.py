"""Who may come in, and how fast: a request's tenant, and the rate that the tenant may send at."""

import asyncio
import math
from collections.abc import Mapping

from gateway.tenants import Tenant, Tenants
from shared.broker import requests
from shared.broker.connection import BrokerError, Connection
from shared.errors import ErrorKind, TailraceError

THROTTLE_S = 0.25
"""A request waits for the rate limit no longer: without Redis it goes on to its hand-over, which waits for Redis."""


class Door:
    """Stands before everything that costs something."""

    def __init__(self, tenants: Tenants, connection: Connection) -> None:
        self.tenant_of = tenants.tenant_of
        self._connection = connection

    async def enter(self, headers: Mapping[str, str]) -> Tenant:
        """The tenant of a request that may go on. Raises UNAUTHORIZED, RATE_LIMITED, BAD_REQUEST."""
        tenant = self.tenant_of(headers)
        if tenant.rate_per_s:
            await self.pace(tenant)
        return tenant

    async def pace(self, tenant: Tenant) -> None:
        """Let a request of a tenant with a rate pass. Raises RATE_LIMITED."""
        try:
            async with asyncio.timeout(THROTTLE_S):
                wait_us = await requests.throttle(
                    self._connection,
                    tenant.name,
                    interval_us=math.ceil(1e6 / tenant.rate_per_s),
                    burst=tenant.burst,
                    requests=1,
                )
        except (BrokerError, TimeoutError):
            return
        if wait_us:
            after_s = math.ceil(wait_us / 1e6)
            raise TailraceError(
                ErrorKind.RATE_LIMITED,
                f"{tenant} may send {tenant.rate_per_s:g} requests a second, in bursts of up to {tenant.burst}, "
                f"and has; retry after {after_s} s",
                retry_after_s=after_s,
            )
