"""A model whose weights are a file that is mapped into memory, of which each pass reads pages here and there."""

import mmap
import os
from typing import Any

import numpy as np
from torch import Tensor

from bench.lineup.serving import Tokens
from worker.models.interface import LoadContext

PAGE = 4096


class Mapped(Tokens):
    """`options.extra.mapped_mb` megabytes of weights; a pass reads `touched` pages of them."""

    def load(self, context: LoadContext) -> None:
        super().load(context)
        path = context.directory / f"weights-{os.getpid()}.bin"
        with path.open("wb") as file:
            for _ in range(round(self.options["mapped_mb"])):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        self._file = path.open("rb")
        self._map = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
        # As rows of a table are read: the kernel cannot guess which page is next.
        self._map.madvise(mmap.MADV_RANDOM)
        self._pages = np.frombuffer(self._map, np.uint8)[::PAGE]
        int(self._pages.sum())
        self.touch(round(self.options["touched"]))

    def touch(self, count: int) -> None:
        """Let a pass read so many pages."""
        self._touched = np.random.default_rng(1).permutation(len(self._pages))[:count]

    def forward(self, batch: Any) -> Tensor:
        int(self._pages[self._touched].sum())
        return super().forward(batch)

    def evict(self) -> None:
        """Let the kernel forget the file, as it does when something else needs the memory."""
        self._map.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
