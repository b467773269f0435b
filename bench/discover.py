"""Asks a server what it is and what a model takes, before anything is measured; what is amiss is a CannotMeasure."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from bench.connections import Exchange, Failure, Pool, Target
from bench.errors import CannotMeasure
from bench.oip import ModelSpec, model_path, model_spec
from bench.responses import Response, request_bytes
from bench.workload import Request, looks_like_inference
from forensics.report import visible
from shared import clock

ASK_S = 10.0
MESSAGE_CHARS_MAX = 300
NAMES_MAX = 10


async def exchange_once(target: Target, message: bytes, *, timeout_s: float = ASK_S) -> Response:
    """One request on a connection of its own. Raises CannotMeasure without a response."""
    ended: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
    pool = Pool(target, 1, int(timeout_s * 1e9), ended.set_result)
    try:
        pool.start(Exchange(clock.now_ns(), message))
        outcome = (await ended).outcome
    finally:
        await pool.close()
    if isinstance(outcome, Response):
        return outcome
    assert isinstance(outcome, Failure)
    raise CannotMeasure(f"{target.url} cannot be asked: {outcome.message}; is the server running?")


async def server_of(target: Target, headers: Mapping[str, str]) -> dict[str, str]:
    """Name and version of the server, by `GET v2`."""
    response, reply = await _get(target, "/v2", headers)
    if response.status == 401:
        raise CannotMeasure(f"{target.url} refuses us: {error_text(response)}; send a key with --header")
    if not (isinstance(reply, dict) and isinstance(reply.get("name"), str)):
        told = f"GET /v2 gave {response.status}: {error_text(response)}"
        raise CannotMeasure(f"{target.url} is no server of the Open Inference Protocol: {told}")
    return {"name": reply["name"], "version": str(reply.get("version", ""))}


async def model_of(target: Target, headers: Mapping[str, str], name: str, version: str) -> ModelSpec:
    """What a model takes; with an empty `name`, of the only one that the server has."""
    name = name or await _only_model(target, headers)
    response, reply = await _get(target, model_path(name, version), headers)
    if response.status != 200:
        which = f"model '{name}'" + (f" version {version}" if version else "")
        told, there = error_text(response), await _names(target, headers)
        advice = "" if all(one in told for one in there) else f"; it serves {_listed(there)}"
        raise CannotMeasure(f"{target.url} has no {which} ({response.status}: {told}){advice}")
    # Only servers with Triton's extension have this; without it the shapes alone must tell where the batch is.
    extra, config = await _get(target, f"{model_path(name, version)}/config", headers)
    return model_spec(name, version, reply, config if extra.status == 200 else None)


async def check(target: Target, request: Request, *, binary: bool, timeout_s: float) -> None:
    """Send one request, so that what the model refuses is told before a thousand times the same."""
    response = await exchange_once(target, request.message, timeout_s=timeout_s)
    if response.status // 100 != 2:
        raise CannotMeasure(f"the model does not answer a first request: {response.status}: {error_text(response)}")
    if response.status == 200 and not looks_like_inference(response.body, binary=binary):
        raise CannotMeasure(f"the answer to a first request is no infer response: {error_text(response)}")


def error_text(response: Response) -> str:
    """What a response says in one line: its `error` if it has one, else the beginning of its body."""
    text: Any = response.body[: 4 * MESSAGE_CHARS_MAX].decode("utf-8", "replace")
    try:
        reply = orjson.loads(response.body)
        if isinstance(reply, dict) and (error := reply.get("error")):
            text = error.get("message", error) if isinstance(error, dict) else error
    except ValueError:
        pass
    line = " ".join(str(text).split())
    return visible(line[:MESSAGE_CHARS_MAX]) or "an empty body"


async def _only_model(target: Target, headers: Mapping[str, str]) -> str:
    names = await _names(target, headers)
    if len(names) == 1:
        return names[0]
    serves = f"it serves {_listed(names)}" if names else "it does not say what it serves"
    raise CannotMeasure(f"name the model with --model: {serves}")


async def _names(target: Target, headers: Mapping[str, str]) -> list[str]:
    """The models of a server with Triton's repository extension; none of another."""
    message = _message(target, "POST", "/v2/repository/index", headers)
    response = await exchange_once(target, message)
    try:
        entries = orjson.loads(response.body)
        return sorted({str(entry["name"]) for entry in entries}) if response.status == 200 else []
    except (ValueError, TypeError, KeyError):
        return []


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(map(visible, names[:NAMES_MAX])) + more


async def _get(target: Target, path: str, headers: Mapping[str, str]) -> tuple[Response, Any]:
    response = await exchange_once(target, _message(target, "GET", path, headers))
    try:
        return response, orjson.loads(response.body)
    except ValueError:
        return response, None


def _message(target: Target, method: str, path: str, headers: Mapping[str, str]) -> bytes:
    return request_bytes(method, f"{target.base}{path}", {"Host": target.authority, **headers})
