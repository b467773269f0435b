"""The floor of the HTTP side: bare aiohttp that answers 200 to anything. `python -m bench.floor PORT`.

It says of itself that it serves `mlp`, so `tailrace bench` can be tried on it: that shows what the generator can do.
"""

import asyncio
import sys

import uvloop
from aiohttp import web

REPLY = (
    b'{"model_name":"mlp","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1,8],"data":[0.0]}]}'
)


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
