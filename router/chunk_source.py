"""What the core asks of an LMCache controller, so that it need not import one. `router.lmcache.controller` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from router.fleet.view import FleetView
from router.model import IntArray

if TYPE_CHECKING:
    from router.lmcache.chunks import PromptChunks


class ChunkSource(Protocol):
    """Who knows what a worker's LMCache holds (`router.lmcache.controller`)."""

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> PromptChunks: ...

    def raised(
        self, prompt: PromptChunks, view: FleetView, device: IntArray, host: IntArray, disk: IntArray
    ) -> tuple[IntArray, IntArray]:
        """`host` and `disk`, blocks beyond `device`, by what the workers' LMCache holds in addition."""
        ...

    def placed(self, prompt: PromptChunks, worker: str) -> None:
        """The prompt was sent to this worker."""
        ...
