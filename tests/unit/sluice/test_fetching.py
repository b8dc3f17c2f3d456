"""Models at addresses: brought whole, under their content's hash, or refused in one line that gives no secret away."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import fsspec
import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.profiles.formats.addresses import shown
from sluicegate.sluice.registration import link_local
from sluicegate.sluice.registration.model_download import FOLDER, fetch, forget, is_address

CONTENT = b"a model" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ADDRESS = "memory://models/my model.onnx"


@pytest.fixture(autouse=True)
def there() -> None:
    with fsspec.open(ADDRESS, "wb") as file:
        file.write(CONTENT)


@pytest.mark.parametrize("sha256", ["", DIGEST, DIGEST.upper()])
def test_what_is_fetched_lies_under_the_hash_of_its_content(tmp_path: Path, sha256: str) -> None:
    path = fetch(ADDRESS, tmp_path, len(CONTENT), sha256)
    assert path == tmp_path / FOLDER / DIGEST / "my_model.onnx"
    assert path.read_bytes() == CONTENT
    assert fetch(ADDRESS, tmp_path, len(CONTENT)) == path
    assert [p.name for p in (tmp_path / FOLDER).iterdir()] == [DIGEST]


def test_a_file_is_fetched_by_its_address_too(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(CONTENT)
    assert fetch(f"file://{tmp_path}/model.onnx", tmp_path / "home", 1 << 20).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("url", "limit", "sha256", "told"),
    [
        ("memory://models/none.onnx", 1 << 20, "", "not there"),
        (ADDRESS, len(CONTENT) - 1, "", f"over {len(CONTENT) - 1} bytes"),
        (ADDRESS, 1 << 20, "0" * 64, "not 0000"),
        (ADDRESS, 1 << 20, "zz", "64 hexadecimal digits"),
        ("gopher://host/model.onnx", 1 << 20, "", "'gopher'"),
        ("memory://a::file://b", 1 << 20, "", "not one of"),
        ("zip://model.onnx::file:///models.zip", 1 << 20, "", "not one of"),
        ("s3://[bad/model.onnx", 1 << 20, "", "is no address"),
        ("http://name:secret@[::1/model.onnx", 1 << 20, "", "is no address"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line_and_leaves_nothing(
    tmp_path: Path, url: str, limit: int, sha256: str, told: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        fetch(url, tmp_path, limit, sha256)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)
    assert list(tmp_path.glob(f"{FOLDER}/*")) == []


def test_neither_an_error_nor_its_cause_repeats_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(url: str, mode: str, **options: object) -> None:
        raise PermissionError(f"denied: {url}")

    monkeypatch.setattr(fsspec, "open", leak)
    with pytest.raises(InvalidInputError) as refused:
        fetch("https://me:s3cret@host/model.onnx?signature=s3cret#s3cret", tmp_path, 1 << 20)
    assert str(refused.value).startswith("model: https://host/model.onnx cannot be read (PermissionError)")
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


@pytest.mark.parametrize("cause", [ModuleNotFoundError("no s3fs", name="s3fs"), ImportError("install a package")])
def test_a_protocol_whose_client_is_missing_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: ImportError
) -> None:
    def absent(url: str, mode: str, **options: object) -> None:
        raise cause

    monkeypatch.setattr(fsspec, "open", absent)
    with pytest.raises(ConfigurationError, match="needs the package s3fs"):
        fetch("s3://bucket/model.onnx", tmp_path, 1 << 20)


def test_an_address_is_told_from_a_path() -> None:
    assert [is_address(text) for text in ("s3://a/b", "FILE:///a", "models/a.onnx", "c:\\a", "://")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert shown("s3://key:secret@bucket/a?x=1") == "s3://bucket/a"


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "100.100.100.200",
    ],
)
def test_addresses_where_clouds_hand_out_credentials_are_refused(address: str) -> None:
    assert link_local.refused(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "192.0.2.1", "2001:db8::1"])
def test_addresses_of_servers_are_not(address: str) -> None:
    assert not link_local.refused(address)


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "http://[fe80:0:0:0:0:0:0:1]/x", "ftp://169.254.169.254/x"]
)
def test_nothing_is_asked_of_a_link_local_address(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot be read \(LinkLocalError\)"):
        fetch(url, tmp_path, 1 << 20)
    assert list(tmp_path.glob(f"{FOLDER}/*")) == []


def test_no_redirection_leads_to_a_link_local_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.2:{self.server.server_address[1]}/credentials")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - as it is called

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(link_local, "refused", lambda address: address == "127.0.0.2")  # for one that can be had here
    server = HTTPServer(("0.0.0.0", 0), Redirecting)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(InvalidInputError, match="is not there"):  # as its client says
            fetch(f"http://127.0.0.1:{server.server_address[1]}/model.onnx", tmp_path, 1 << 20)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked
    assert "/credentials" not in asked


def test_a_model_that_is_refused_is_forgotten(tmp_path: Path) -> None:
    path = fetch(ADDRESS, tmp_path, len(CONTENT))
    forget(path)
    assert list((tmp_path / FOLDER).iterdir()) == []
