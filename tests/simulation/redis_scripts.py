"""Lua scripts of the model: the very language, version 5.1, with Redis' sandbox and conversions around it."""

import hashlib
import struct
from functools import cache
from pathlib import Path
from typing import Any

import lupa.lua51  # type: ignore[import-untyped]  # it ships no type information
import msgpack
from simulation import redis_reading
from simulation.redis_values import COMMANDS, Database, RedisError, Reply, Status

OOM = "OOM command not allowed when used memory > 'maxmemory'."
_IN_SCRIPT_FORBIDDEN = {b"EVAL", b"EVALSHA", b"SCRIPT", b"CLIENT", b"CONFIG", b"SUBSCRIBE", b"MULTI", b"EXEC"}


class _NotRun(RedisError):
    """The script asked for something that is no command, or not now."""


class Lua:
    """The interpreter. It runs one script at a time, for whichever database asks."""

    def __init__(self) -> None:
        self._runtime = lupa.lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._table_from = self._runtime.table_from
        self._ok = self._table_from({b"ok": b"OK"})
        prelude = self._runtime.execute(
            b"return loadstring(...)", Path(__file__).with_name("redis_prelude.lua").read_bytes(), b"@prelude"
        )
        self._compile, self._run = prelude(self._dispatch, self._pack, self._unpack, _sha1hex)
        self._db: Database
        self._written = False
        self._defect: Exception | None = None

    @cache  # noqa: B019  (there is one of these, and few scripts)
    def compile(self, text: bytes) -> Any:
        """A script ready to run. Raises RedisError."""
        script = self._compile(text)
        if isinstance(script, bytes):
            raise RedisError(f"ERR Error compiling script (new function): {script.decode()}")
        return script

    def run(self, db: Database, script: Any, sha: bytes, keys: list[bytes], argv: list[bytes]) -> bytes:
        """Run a script. Returns its reply as it goes over the wire."""
        self._db, self._written, self._defect = db, False, None
        reply: bytes = self._run(script, self._table_from(keys), self._table_from(argv), sha)
        if self._defect:
            raise self._defect
        return reply

    def _dispatch(self, *words: Any) -> Any:
        """`redis.pcall`."""
        try:
            return self._to_lua(self._execute([w if type(w) is bytes else _word(w) for w in words]))
        except _NotRun as e:
            # Redis says where in the script; that it was the first line is as good as any.
            return self._table_from({b"err": b"@user_script: 1: " + str(e).encode()})
        except RedisError as e:
            return self._table_from({b"err": str(e).encode()})
        except Exception as e:
            self._defect = e
            raise

    def _execute(self, words: list[bytes]) -> Reply:
        if not words:
            raise _NotRun("Please specify at least one argument for redis.call()")
        name, db = words[0], self._db
        found = COMMANDS.get(name) or COMMANDS.get(name.upper())
        if found is None:
            name = name.upper()
            if name in (b"XREAD", b"XREADGROUP"):
                self._written = True
                in_group = name == b"XREADGROUP"
                return redis_reading.serve(db, redis_reading.parse(db, words[1:], in_group=in_group))
            if name in _IN_SCRIPT_FORBIDDEN:
                raise _NotRun("This Redis command is not allowed from scripts")
            raise _NotRun("Unknown Redis command called from Lua script")
        if len(words) != found.arity if found.arity > 0 else len(words) < -found.arity:
            raise _NotRun("Wrong number of args calling Redis command From Lua script")
        if found.deny_oom and db.out_of_memory and not self._written:
            raise _NotRun(f"-{OOM}\r\n")
        if found.writes:
            self._written = True
        return found.run(db, words[1:])

    def _to_lua(self, reply: Reply) -> Any:
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if kind is list:
            to_lua = self._to_lua
            return self._table_from([x if type(x) is bytes else to_lua(x) for x in reply])
        if reply == b"OK":
            return self._ok
        return self._table_from({b"ok": bytes(reply)})

    def _pack(self, *values: Any) -> bytes:
        return b"".join(_packed(value) for value in values)

    def _unpack(self, data: bytes) -> Any:
        unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
        unpacker.feed(data)
        return tuple(self._from_message(v) for v in unpacker)

    def _from_message(self, value: Any) -> Any:
        if isinstance(value, list):
            return self._table_from([self._from_message(v) for v in value])
        if isinstance(value, dict):
            return self._table_from({self._from_message(k): self._from_message(v) for k, v in value.items()})
        return value


def _packed(value: Any) -> bytes:
    """A message as Redis' msgpack writes it: texts are not bytes, and a fraction is as short as it can be."""
    packer = msgpack.Packer(use_bin_type=True, unicode_errors="surrogateescape")
    packed: bytes
    if isinstance(value, bytes):
        packed = packer.pack(value.decode("utf-8", "surrogateescape"))
    elif isinstance(value, float):
        short = struct.unpack("f", struct.pack("f", value))[0] == value
        packed = msgpack.packb(value, use_single_float=short)
    elif lupa.lua51.lua_type(value) == "table":
        found = dict(value.items())
        if sorted(found, key=str) == sorted(range(1, len(found) + 1), key=str):
            items = [found[i + 1] for i in range(len(found))]
            return b"".join([packer.pack_array_header(len(items)), *map(_packed, items)])
        pairs = [part for pair in found.items() for part in pair]
        return b"".join([packer.pack_map_header(len(found)), *map(_packed, pairs)])
    else:
        packed = packer.pack(value)
    return packed


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def _word(value: Any) -> bytes:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return b"%.17g" % value
    raise _NotRun("Lua redis() command arguments must be strings or integers")


@cache
def lua() -> Lua:
    """The interpreter of this process: compiling our scripts costs as much as a whole simulated request."""
    return Lua()


class Encoded(bytes):
    """A reply that is encoded already."""


def encoded(reply: Reply) -> bytes:
    """A reply as it goes over the wire."""
    kind = type(reply)
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if kind is int:
        return b":%d\r\n" % reply
    if reply is None:
        return b"$-1\r\n"
    if kind is list:
        return b"*%d\r\n%b" % (len(reply), b"".join([encoded(item) for item in reply]))
    if isinstance(reply, Encoded):
        return bytes(reply)
    if isinstance(reply, Status):
        return b"+%b\r\n" % bytes(reply)
    return b"-%b\r\n" % str(reply).encode()
