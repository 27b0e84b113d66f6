"""Words out of token ids, for APIs that take text: two prompts share as text what their ids share. Pure.

One short common word a token, which most vocabularies hold whole with the space before it: how many tokens an engine
makes of them is close to the plan, and what it counted is in each answer's usage.
"""

from __future__ import annotations

import msgspec

from bench.workload.tokens import Piece, PieceText, piece_tokens

WORDS = tuple(
    """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother area
    money story fact month lot right study book eye job word business issue side kind head house service friend father
    power hour game line end member law car city community name president team minute idea body information back parent
    face others level office door health person art war history party result change morning reason research girl guy
    moment air teacher force education foot boy age policy process music market sense nation plan college interest death
    """.split()  # noqa: SIM905
)


class PieceWords:
    """Pieces as the inside of a JSON string, the recently used ones kept by the `PieceText` they come from."""

    def __init__(self, text: PieceText) -> None:
        self._text = text

    def json(self, pieces: tuple[Piece, ...]) -> bytes:
        """The text of a prompt or message as a JSON string."""
        return b'"' + b"".join(map(self._piece, pieces)) + b'"'

    def _piece(self, piece: Piece) -> bytes:
        if piece.text is not None:
            return msgspec.json.encode(piece.text)[1:-1]
        return self._text.kept(piece, "words", self._words)

    def _words(self, piece: Piece) -> bytes:
        ids = piece_tokens(piece, self._text.vocabulary).tolist()
        return "".join([" " + WORDS[i % len(WORDS)] for i in ids]).encode()
