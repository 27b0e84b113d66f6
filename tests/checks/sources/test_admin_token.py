"""The admin port's token goes to the admin port that the user named, and nowhere else."""

from __future__ import annotations

import pytest

from checks.request import CollectRequest
from checks.sources.http import Pages
from checks.sources.pages import Reader, admin_token
from checks.sources.tape import Answer, Tape


class Asked(Pages):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def get(self, url: str, token: str = "") -> Answer:
        self.asked.append((url, token))
        return Answer(200, "{}")


def test_token_is_sent_with_pages_of_the_admin_port() -> None:
    with Asked() as http:
        Reader(Tape.live(), None, http, "abc").base("http://127.0.0.1:9090", "router", "/workers")
        assert http.asked == [("http://127.0.0.1:9090/workers", "abc")]


def test_address_that_was_only_guessed_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCTL_ADMIN_TOKEN", "abc")
    assert admin_token(CollectRequest(routers=("http://r:8000",))) == ""
    assert admin_token(CollectRequest(admin="http://r:9090")) == "abc"


def test_token_is_in_no_picture_of_the_reader() -> None:
    assert "abc" not in repr(Reader(Tape.live(), None, None, "abc"))
