"""Worker specs and workers files: what is understood, and how a mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.fleet.spec import MAX_FILE, SpecError, check_unique, parse_spec, read_workers_file, spec_from_item
from router.fleet.worker import endpoint_of
from router.model import WorkerSpec
from router.proxy.interface import Endpoint


def test_a_url_alone_gets_an_id_from_its_address() -> None:
    assert parse_spec("http://10.0.0.1:8000") == WorkerSpec(url="http://10.0.0.1:8000", id="10.0.0.1-8000")


def test_every_key_of_a_spec_is_read() -> None:
    spec = parse_spec(
        "http://h:1/base/,id=a,kv=tcp://h:2,replay=tcp://h:3,model=m,device=cuda,ranks=2,block-size=32,taint=x,taint=y"
    )
    assert spec == WorkerSpec("http://h:1/base", "a", "tcp://h:2", "tcp://h:3", "m", "cuda", 2, 32, ("x", "y"))


def test_the_lmcache_instances_of_a_worker_are_one_or_one_a_rank() -> None:
    assert parse_spec("http://h:1,instance=lm-a").instances == ("lm-a",)
    assert parse_spec("http://h:1,ranks=2,instance=a,instance=b").instances == ("a", "b")
    assert spec_from_item({"url": "http://h:1", "instances": ["a"]}, "x").instances == ("a",)
    with pytest.raises(SpecError, match="give one instance, or one for each of its 3 ranks"):
        parse_spec("http://h:1,ranks=3,instance=a,instance=b")


def test_a_scheme_may_be_left_out() -> None:
    assert parse_spec("localhost:8000").url == "http://localhost:8000"


@pytest.mark.parametrize(
    ("given", "url", "id_"),
    [
        ("https://h", "https://h:443", "h-443"),
        ("https://h:8443/base/", "https://h:8443/base", None),
        ("http://h", "http://h:80", "h-80"),
    ],
)
def test_a_scheme_decides_the_port_that_is_left_out(given: str, url: str, id_: str | None) -> None:
    spec = parse_spec(given)
    assert spec.url == url
    assert id_ is None or spec.id == id_


@pytest.mark.parametrize(("url", "tls"), [("https://h:1", True), ("http://h:1", False)])
def test_an_https_url_is_an_endpoint_with_tls(url: str, tls: bool) -> None:
    assert endpoint_of(url) == Endpoint("h", 1, "", tls)


def test_two_paths_on_one_address_get_different_ids() -> None:
    assert parse_spec("http://h:1/a").id != parse_spec("http://h:1/b").id


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("http://h:1,foo=1", "unknown key 'foo'"),
        ("http://h:1,foo", "'foo' is not key=value"),
        ("ftp://h:1", "only http:// and https://"),
        ("http://h:99999", "out of range"),
        ("http://", "HOST:PORT"),
        ("http://h:1,ranks=0", "ranks must be a whole number from 1 to 64"),
        ("http://h:1,block-size=x", "block-size must be"),
        ("http://h:1,device=tpu", "device must be cuda or cpu"),
        ("http://h:1,id=a b", "id 'a b'"),
        ("http://h:1,id=a,id=b", "'id' is given 2 times"),
        ("http://h:1,kv=h:5", "kv must be a ZMQ endpoint"),
        ("http://user:pw@h:1", "HOST:PORT"),
        ("http://:pw@h:1", "HOST:PORT"),
        ("http://h:0", "HOST:PORT"),
        ("http://a b:1,id=a", "HOST:PORT"),
        ("http://h:1/a b", "the path may hold"),
        ("http://h:1/\u0436", "the path may hold"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://h:1,ranks=" + "9" * 5000, "ranks must be"),
        ("http://h:1,kv=tcp://h", "kv: .*expected tcp://HOST:PORT"),
        ("http://h:1,replay=tcp://h:5 6", "replay must be a ZMQ endpoint"),
        ("http://h:1,ranks=4,kv=tcp://h:65533", "dp rank 3"),
    ],
)
def test_a_mistake_in_a_spec_is_named(text: str, named: str) -> None:
    with pytest.raises(SpecError, match=named):
        parse_spec(text)


def test_an_ipv6_worker_gets_an_id_from_its_address() -> None:
    assert parse_spec("http://[::1]:80") == WorkerSpec(url="http://[::1]:80", id="ip6-__1-80")


def test_a_key_with_an_empty_list_of_values_is_a_mistake() -> None:
    with pytest.raises(SpecError, match="'id' is given 0 times"):
        spec_from_item({"url": "http://h:1", "id": []}, "item")


def test_a_file_may_begin_with_a_byte_order_mark_and_have_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "workers.txt"
    path.write_bytes(b"\xef\xbb\xbfhttp://h:1,id=a\r\nhttp://h:2,id=b\r\n")
    assert [spec.id for spec in read_workers_file(path)] == ["a", "b"]


def test_a_file_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    path.write_text("[" * 10_000)
    with pytest.raises(SpecError, match="workers file"):
        read_workers_file(path)


def test_a_yaml_file_with_an_impossible_date_is_named(tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    path.write_text("- 2024-99-99\n")
    with pytest.raises(SpecError, match=r"workers\.yaml"):
        read_workers_file(path)


def test_two_workers_with_one_id_are_refused() -> None:
    with pytest.raises(SpecError, match="two workers have the id 'a'"):
        check_unique([parse_spec("http://h:1,id=a"), parse_spec("http://h:2,id=a")])


def test_a_text_file_holds_a_spec_a_line(tmp_path: Path) -> None:
    path = tmp_path / "workers.txt"
    path.write_text("# the fleet\nhttp://h:1,id=a\n\nhttp://h:2,id=b # spare\n")
    assert [spec.id for spec in read_workers_file(path)] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        '["http://h:1,id=a", {"url": "http://h:2", "id": "b", "block_size": 32, "taints": ["x"]}]',
        "workers:\n  - http://h:1,id=a\n  - {url: 'http://h:2', id: b, block-size: 32, taint: [x]}\n",
    ],
)
def test_a_yaml_or_json_file_holds_specs_and_mappings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "workers.yaml"
    path.write_text(text)
    first, second = read_workers_file(path)
    assert (first.id, second.id, second.block_size, second.taints) == ("a", "b", 32, ("x",))


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("w.yaml", "workers: 3", "expected a list"),
        ("w.yaml", "hosts: []", "unknown key 'hosts'"),
        ("w.yaml", "a: [", "w.yaml"),
        ("w.txt", "http://h:1,x=1", "unknown key 'x'"),
    ],
)
def test_a_mistake_in_a_workers_file_is_named(tmp_path: Path, name: str, text: str, named: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SpecError, match=named):
        read_workers_file(path)


def test_a_missing_workers_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.txt"):
        read_workers_file(tmp_path / "nowhere.txt")


def test_a_device_is_no_workers_file() -> None:
    with pytest.raises(SpecError, match="not a regular file"):
        read_workers_file(Path("/dev/null"))


def test_a_workers_file_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "workers.txt"
    path.write_bytes(b"#" * (MAX_FILE + 1))
    with pytest.raises(SpecError, match=f"more than the {MAX_FILE} bytes"):
        read_workers_file(path)
