"""The model of Redis in the place of a real one, for the tests of the protocol."""

from collections.abc import AsyncIterator

import pytest_asyncio
from simulation.direct import DirectConnection
from support.scene import Scene

from shared.broker import scripts


@pytest_asyncio.fixture
async def connection() -> AsyncIterator[DirectConnection]:
    """A connection to an empty model, which knows the scripts."""
    c = DirectConnection()
    await scripts.load_all(c)
    yield c


@pytest_asyncio.fixture
async def scene(connection: DirectConnection) -> Scene:
    """A queue with a gateway that listens, and its workers."""
    scene = Scene(connection)
    await scene.open()
    return scene
