"""A file of a store: its bytes, its mark, and the faults of stores as messages."""

import io
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError, MissingExtra, RunFailed
from bertwright.stores.remote import current_file, is_url, named_faults, open_store, remote_file, url_of_path
from tests.support.stores import Lost, always_lost, put

CONTENT = bytes(range(256)) * 4096  # several blocks


def test_the_bytes_are_read_in_any_order(store: Any) -> None:
    put("b/x", CONTENT)
    file = current_file("faulty://b/x")
    assert file is not None
    with file.open() as stream:
        assert stream.read() == CONTENT
        assert stream.seek(-3, io.SEEK_END) == len(CONTENT) - 3
        assert stream.read() == CONTENT[-3:]
    file.refuse_changed()
    assert current_file("faulty://b/absent") is None
    assert current_file("faulty://b") is None  # a folder


def test_another_content_has_another_mark(store: Any) -> None:
    put("b/x", b"one")
    file = current_file("faulty://b/x")
    assert file is not None
    put("b/x", b"two")
    with pytest.raises(RunFailed, match="b/x: was changed while it was read; give the same command again"):
        file.refuse_changed()


@pytest.mark.parametrize(
    ("info", "mark"),
    [
        ({"ETag": '"abc"', "LastModified": datetime(2026, 1, 1, tzinfo=UTC)}, "etag abc"),
        ({"md5Hash": "qq==", "updated": "2026"}, "md5hash qq=="),
        ({"mtime": 12.5}, "mtime 12.5"),
        ({"LastModified": datetime(1970, 1, 1, 0, 1, tzinfo=UTC)}, "lastmodified 60.0"),
        ({"blob_id": "e69de2", "last_commit": None}, "blob_id e69de2"),
        ({"modificationTime": 17}, "modificationtime 17"),
        ({"last_write_time": 17.5}, "last_write_time 17.5"),
        ({"modify": "20260101000000"}, "modify 20260101000000"),
        ({"ETag": None}, "size 3"),
    ],
)
def test_a_checksum_comes_before_a_time(info: dict[str, Any], mark: str) -> None:
    file = remote_file("s3://b/x", {"size": 3, **info})
    assert (file.mark, file.has_mark) == (mark, mark != "size 3")


def test_a_store_that_vanishes_is_named_with_the_position(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put("b/x", CONTENT)
    file = current_file("faulty://b/x")
    assert file is not None
    with file.open() as stream:
        stream.read(10)
        monkeypatch.setattr(type(stream.raw._stream), "read", lambda *_: always_lost("", ""))
        with pytest.raises(RunFailed, match=r"b/x: the store failed after [\d,]+ of 1,048,576 bytes: connection lost"):
            stream.read()


def test_a_short_answer_is_no_end_of_the_file(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put("b/x", CONTENT)
    file = current_file("faulty://b/x")
    assert file is not None
    with file.open() as stream:
        stream.read(10)
        monkeypatch.setattr(type(stream.raw._stream), "read", lambda *_: b"")
        with pytest.raises(RunFailed, match=r"expected 1,048,576 bytes, got [\d,]+: the store ended the file early"):
            stream.read()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (FileNotFoundError("x"), InputError, "there is no such file or folder in the store"),
        (PermissionError("Forbidden"), InputError, r"refuses access \(Forbidden\); set credentials"),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate"), InputError, r"refuses access \(Unable to l"),
        (Lost("gone"), RunFailed, "the store failed: gone; give the same command again"),
    ],
)
def test_faults_are_sentences(store: Any, error: Exception, kind: type[Exception], text: str) -> None:
    def fault(name: str, path: str) -> None:
        if name != "info":
            raise error

    put("b/x", b"x")
    file = current_file("faulty://b/x")
    store.fault = fault
    assert file is not None
    with pytest.raises(kind, match=f"faulty://b/x: (the store )?{text}"):
        file.open()


def test_a_scheme_without_its_package_names_it() -> None:
    with pytest.raises(InputError, match=r"oci://b/x: Install ocifs .*: pip install ocifs"):
        open_store("oci://b/x")
    with pytest.raises(InputError, match="nope://x: no store has the scheme 'nope'"):
        open_store("nope://x")
    system, path = open_store("MEMORY://b/x")
    assert (system.protocol, path) == ("memory", "/b/x")


@pytest.mark.parametrize(("scheme", "end"), [("HTTPS", r": pip install 'fsspec\[http\]'"), ("smb", "")])
def test_a_scheme_of_fsspec_itself_names_what_it_lacks(monkeypatch: pytest.MonkeyPatch, scheme: str, end: str) -> None:
    def missing(url: str, **options: Any) -> Any:
        raise ImportError(f'{url} requires "x" to be installed')

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(InputError, match=rf'h/x requires "x" to be installed{end}$'):
        open_store(f"{scheme}://h/x")


def test_a_query_of_http_is_not_shown(store: Any) -> None:
    """A signature in it gives access. The `?` of other schemes begins no query."""
    file = remote_file("HTTPS://h/b/rows.csv.gz?sig=SECRET", {"size": 3})
    assert (str(file), file.name, file.suffix, file.stem) == (
        "HTTPS://h/b/rows.csv.gz",
        "rows.csv.gz",
        ".gz",
        "rows.csv",
    )
    assert (file.url.partition("?")[2], str(remote_file("s3://b/a?b", {}))) == ("sig=SECRET", "s3://b/a?b")
    for error in (
        PermissionError("403, url='https://h/x?sig=SECRET'"),
        FileNotFoundError(),
        Lost("https://h/x?SECRET"),
    ):
        with (
            pytest.raises((InputError, RunFailed), match=r"h/rows\.csv: ") as raised,
            named_faults("https://h/rows.csv?sig=SECRET"),
        ):
            raise error
        assert "SECRET" not in str(raised.value)


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtra, match=r"pip install 'bertwright\[stores\]'"):
        open_store("memory://b/x")


def test_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match="has a password") as raised:
        open_store("ftp://me:secret@host/x")
    assert "secret" not in str(raised.value)


def test_urls_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_url("s3://b/x")
    assert not any(map(is_url, ("hub:name", "random:tiny", "/s3/b", "C:/x", "C://x", "a=s3://b", Path("s3://b"))))
    assert url_of_path(Path("s3://b/x y")) == "s3://b/x y"
    assert url_of_path(Path("file:///tmp/x")) == "file:///tmp/x"
    assert url_of_path(Path("C:/x")) is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "b").mkdir(parents=True)
    assert url_of_path(Path("s3://b")) is None  # a folder of this machine
