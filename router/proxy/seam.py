"""Stop strings where a broken stream goes on elsewhere.

The engine that goes on looks for stop strings in what it generates itself; one that begins before the seam and ends
behind it is found here. Text that the broken engine had generated and kept back, because it could have become a stop
string, is put out here as well. Pure.
"""

from __future__ import annotations


class StopSeam:
    """Holds the first characters behind a seam until it is clear that no stop string lies across it."""

    __slots__ = ("_before", "_include", "_longest", "_sent", "_stops", "_text")

    def __init__(self, before: str, sent: int, stops: tuple[str, ...], include: bool) -> None:
        """`before`: the last text before the seam, of which the client has `sent` characters; `include`: the answer
        shows the stop string that ended it."""
        self._before = len(before)
        self._text = before
        self._sent = sent
        self._stops = stops
        self._include = include
        self._longest = max(map(len, stops))

    def feed(self, text: str, last: bool) -> tuple[str, bool, str | None]:
        """Takes the engine's next text. `last`: there is no more.

        Returns:
            What the client gets now, whether the seam is passed, and the stop string that ends the answer here.
        """
        self._text += text
        hit = self._hit()
        if hit is not None:
            stop, start = hit
            end = start + len(stop) if self._include else start
            return self._text[self._sent : max(end, self._sent)], True, stop
        if not last and len(self._text) - self._before < self._longest - 1:
            return "", False, None
        return self._text[self._sent :], True, None

    def _hit(self) -> tuple[str, int] | None:
        """The stop string across the seam that is complete first, and where it begins."""
        found: tuple[int, str, int] | None = None
        for stop in self._stops:
            start = self._text.find(stop, max(self._before - len(stop) + 1, 0))
            if 0 <= start < self._before and (found is None or start + len(stop) < found[0]):
                found = start + len(stop), stop, start
        return None if found is None else found[1:]
