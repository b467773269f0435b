"""The floor of the HTTP side: bare aiohttp that answers 200 to anything. `python -m bench.floor PORT`.

It says of itself that it serves `mlp`, so `tailrace bench` can be tried on it: that shows what the generator can do.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop
from aiohttp import web

REPLY = (
    b'{"model_name":"mlp","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1,8],"data":[0.0]}]}'
)

START_S = 10.0


@contextlib.asynccontextmanager
async def floor() -> AsyncIterator[str]:
    """The URL of a floor that listens, in a process of its own."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    root = Path(__file__).parents[1]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.floor", str(port), cwd=root)
    try:
        async with asyncio.timeout(START_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        writer.close()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def _answer(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=REPLY, content_type="application/json")


async def _about(request: web.Request) -> web.Response:
    x = {"name": "x", "datatype": "FP32", "shape": [-1, 64]}
    return web.json_response({"name": "floor", "version": "1", "inputs": [x], "outputs": []})


async def _serve(port: int) -> None:
    app = web.Application()
    app.router.add_post("/v2/models/{model}/infer", _answer)
    app.router.add_get("/v2", _about)
    app.router.add_get("/v2/models/{model}", _about)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
