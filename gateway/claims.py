"""Large inputs by way of the host's memory, wherever every worker of the model can read them there."""

import asyncio
from collections.abc import Callable

from shared import humanlog, wire
from shared.bulk import BULK_BYTES_MIN, BulkFolder

SWEEP_INTERVAL_S = 10.0
EXPIRES_AFTER_S = 60.0
"""A file outlives the longest deadline by this; then its owner has been killed."""


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

    def take(self, file: str) -> memoryview:
        """The file of an answer, which nobody else will ask for. Raises OSError."""
        view = self.folder.view(file)
        self.folder.drop(file)
        return view

    def whole(self, payload: bytes) -> bytes:
        """The request itself in place of its claim. Blocks. Raises OSError, WireError."""
        claim = wire.decode_claim(payload)
        return wire.encode_request(wire.claimed(claim, self.folder.view(claim.file))) if claim else payload


class Claims:
    """Encodes requests. `tokens` tells which folders the live workers of a model read; `longest_s`: any deadline."""

    def __init__(
        self, folder: BulkFolder | None, tokens: Callable[[wire.ModelDescriptor], set[str]], *, longest_s: float
    ) -> None:
        self._folder = folder
        self._tokens = tokens
        self._expires_in_s = longest_s + EXPIRES_AFTER_S

    async def encode(self, body: wire.RequestBody, model: wire.ModelDescriptor) -> tuple[bytes, Held | None]:
        """The payload of a request, and the file that its tensors are in if it is only a claim for them."""
        folder = self._folder
        size = sum([len(tensor.data) for tensor in body.inputs])
        if size < BULK_BYTES_MIN or folder is None or self._tokens(model) != {folder.token}:
            return wire.encode_request(body), None
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
        return wire.encode_claim(file, body), Held(folder, file, size)

    def _put(self, folder: BulkFolder, body: wire.RequestBody) -> str:
        return folder.put(wire.parts_of(body), expires_in_s=self._expires_in_s)

    async def sweep(self) -> None:
        """Take away what gateways and workers that were killed have left, for ever."""
        while True:
            if self._folder is not None:
                await asyncio.to_thread(self._folder.sweep)
            await asyncio.sleep(SWEEP_INTERVAL_S)
