"""Closed loops by wrk, a load generator in C: where requests are cheap it takes less from the server than ours does."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from bench.measure import FILES_BESIDE, allow_files

HERE = Path(__file__).parent
WARM_CONNECTIONS = 8
WARM_S = 1


def check_wrk() -> None:
    """End the process with advice when there is no wrk."""
    if not shutil.which("wrk"):
        sys.exit("the load generator wrk is missing: apt-get install wrk")


async def wrk(url: str, connections: int, seconds: int, script: str = "mlp.lua") -> dict[str, Any]:
    """One closed loop with one thread: what the script's RESULT line says, and `per_s`, answers a second."""
    allow_files(connections + FILES_BESIDE)  # wrk inherits it
    process = await asyncio.create_subprocess_exec(
        "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(HERE / script), url, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    line = next(line for line in output.decode().splitlines() if line.startswith("RESULT "))
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result | {"per_s": result["requests"] / result["seconds"]}


async def warm(*urls: str) -> None:
    """Some requests that do not count."""
    for url in urls:
        await wrk(url, WARM_CONNECTIONS, WARM_S)
