"""The floor of the HTTP side: bare aiohttp that answers 200 to anything. `python -m bench.floor PORT`."""

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


async def _serve(port: int) -> None:
    app = web.Application()
    app.router.add_post("/v2/models/{model}/infer", _answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
