"""Large inputs by way of the host's memory, wherever every worker of the model can read them there.

A long body whose tensors are binary is received straight into a file: where the tensors lie in the body they lie in the
file. Others, and bodies that were packed, are written there once they are understood.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from aiohttp import web
from aiohttp.hdrs import CONTENT_ENCODING

from gateway.headers import IDEMPOTENCY_KEY, PREFER
from shared import humanlog, wire
from shared.bulk import BULK_BYTES_MIN, BulkFile, BulkFolder

SWEEP_INTERVAL_S = 10.0
EXPIRES_AFTER_S = 60.0
"""A file outlives the longest deadline by this; then its owner has been killed."""
RECEIVE_BYTES_MIN = 1 << 20
"""A shorter body is received as usual: a file costs some tenths of a ms."""
HEADER_LENGTH = "Inference-Header-Content-Length"


class Held:
    """The file of a request's tensors, `size` bytes; whoever made it drops it once the request has ended."""

    __slots__ = ("file", "folder", "size")

    def __init__(self, folder: BulkFolder, file: str, size: int) -> None:
        self.folder = folder
        self.file = file
        self.size = size

    def drop(self) -> None:
        """Take it away; who reads it goes on."""
        self.folder.drop(self.file)

    def drop_soon(self) -> None:
        """The same in a thread: it takes a ms for ten megabytes."""
        asyncio.get_running_loop().run_in_executor(None, self.drop)

    def take(self, file: str) -> memoryview:
        """The file of an answer, which nobody else will ask for. Raises OSError."""
        view = self.folder.view(file)
        self.folder.drop(file)
        return view

    def whole(self, payload: bytes) -> bytes:
        """The request itself in place of its claim. Blocks. Raises OSError, WireError."""
        claim = wire.decode_claim(payload)
        return wire.encode_request(wire.claimed(claim, self.folder.view(claim.file))) if claim else payload


class Receiving(Held):
    """A body on its way into a file, from `lead` bytes on, so that its tensors begin where a processor likes it."""

    __slots__ = ("_address", "_begun", "_lead", "_mapped", "_writing")

    def __init__(self, folder: BulkFolder, file: BulkFile, size: int, lead: int) -> None:
        super().__init__(folder, file.name, size)
        self._writing = file
        self._lead = lead
        self._begun = False
        self._mapped: object = None
        self._address = 0

    async def add(self, chunks: Sequence[bytes]) -> None:
        """Write what came. Raises OSError."""
        parts = chunks if self._begun else [bytes(self._lead), *chunks]
        self._begun = True
        await asyncio.to_thread(self._writing.write, parts)

    def drop(self) -> None:
        """Take it away, whether all of it came or not."""
        self._writing.close()
        super().drop()

    def body(self) -> memoryview:
        """All that came. Raises OSError."""
        self._writing.close()
        view = self.folder.view(self.file)
        self._mapped, self._address = view.obj, _address(view)
        return view[self._lead :]

    def offsets_of(self, body: wire.RequestBody) -> list[int] | None:
        """Where the tensors lie in the file; None if they lie elsewhere."""
        if any(tensor.data.obj is not self._mapped for tensor in body.inputs):
            return None
        return [_address(tensor.data) - self._address if len(tensor.data) else 0 for tensor in body.inputs]


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]) if len(view) else 0


class Claims:
    """Encodes requests. `tokens` tells which folders the live workers of a model read; `longest_s`: any deadline."""

    def __init__(
        self, folder: BulkFolder | None, tokens: Callable[[wire.ModelDescriptor], set[str]], *, longest_s: float
    ) -> None:
        self._folder = folder
        self._tokens = tokens
        self._expires_in_s = longest_s + EXPIRES_AFTER_S

    def receive(self, request: web.BaseRequest) -> Receiving | None:
        """Where the body of a request is to be received, if it is long and its tensors are binary; None: as usual."""
        headers, folder = request.headers, self._folder
        head = headers.get(HEADER_LENGTH)
        if head is None or folder is None or not (head.isascii() and head.isdigit() and len(head) < 10):
            return None
        length = request.content_length
        if length is None or length < RECEIVE_BYTES_MIN:
            return None
        if CONTENT_ENCODING in headers or IDEMPOTENCY_KEY in headers or PREFER in headers:
            return None
        try:
            file = folder.begin(length, expires_in_s=self._expires_in_s)
        except OSError as e:
            humanlog.get().debug("a body is received as usual", bytes=length, reason=str(e))
            return None
        return Receiving(folder, file, length, -int(head) % wire.ALIGNMENT)

    async def encode(
        self, body: wire.RequestBody, model: wire.ModelDescriptor, received: Receiving | None = None
    ) -> tuple[bytes, Held | None]:
        """The payload of a request, and the file that its tensors are in if it is only a claim for them."""
        folder = self._folder
        size = sum([len(tensor.data) for tensor in body.inputs])
        if size < BULK_BYTES_MIN or folder is None or self._tokens(model) != {folder.token}:
            return wire.encode_request(body), None
        if received is not None and (offsets := received.offsets_of(body)) is not None:
            return wire.encode_claim(received.file, offsets, body), received
        putting = asyncio.create_task(asyncio.to_thread(self._put, folder, body))
        try:
            file = await asyncio.shield(putting)
        except asyncio.CancelledError:
            # The thread goes on: what it puts there is nobody's.
            putting.add_done_callback(lambda done: folder.drop(done.result()) if not done.exception() else None)
            raise
        except OSError as e:
            humanlog.get().debug("a request goes through Redis", bytes=size, reason=str(e))
            return wire.encode_request(body), None
        return wire.encode_claim(file, wire.offsets_of(body), body), Held(folder, file, size)

    def _put(self, folder: BulkFolder, body: wire.RequestBody) -> str:
        return folder.put(wire.parts_of(body), expires_in_s=self._expires_in_s)

    async def sweep(self) -> None:
        """Take away what gateways and workers that were killed have left, for ever."""
        while True:
            if self._folder is not None:
                await asyncio.to_thread(self._folder.sweep)
            await asyncio.sleep(SWEEP_INTERVAL_S)
