"""Texts in records: Parquet files, and a dataset of the Hub, served by a small Hub of this test's own."""

import csv
import gzip
import hashlib
import io
import json
import os
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from pyarrow import parquet

from bertwright.errors import InputError, RunFailed
from bertwright.interop.import_model import import_model
from bertwright.tables.reader import read_table
from bertwright.text.document import TextSettings
from bertwright.text.documents import find_inputs, read_documents, read_sources
from tests.support.commands import run_bertwright
from tests.support.hub import hub_server

TEXTS = ["One line.\nAnother\xa0line.", "", None, "  ", "Last \U0001f642."]
PARAGRAPHS = [("One line.", "Another line."), ("Last \U0001f642.",)]


def write_parquet(path: Path, column: Any, **more: Any) -> Path:
    parquet.write_table(pa.table({"id": list(range(len(column))), "text": column}), path, **more)
    return path


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()], ids=str
)
def test_a_row_of_parquet_is_a_document(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(TEXTS, pa.string()).cast(kind)
    documents = list(read_documents(write_parquet(tmp_path / "a.parquet", column, row_group_size=2), TextSettings()))
    assert [document.paragraphs for document in documents] == PARAGRAPHS
    assert [document.location[-14:] for document in documents] == ["parquet: row 1", "parquet: row 5"]
    (tmp_path / "a.parquet").rename(tmp_path / "named otherwise")
    documents = list(read_documents(tmp_path / "named otherwise", TextSettings()))
    assert [document.paragraphs for document in documents] == PARAGRAPHS


@pytest.mark.parametrize(
    ("column", "settings", "message"),
    [
        ([1, 2], {}, r"expected text in column 'text', got int64 \(columns of text: none\)"),
        ([["a"], ["b"]], {}, "expected text in column 'text', got list<"),
        (["a"], {"field": "body"}, "expected one column 'body'; the columns are: id, text"),
        (["a" * 200], {}, "row 1: the document has over"),
    ],
)
def test_what_parquet_cannot_give_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: Any, settings: dict[str, str], message: str
) -> None:
    from bertwright.text import document

    monkeypatch.setattr(document, "LONGEST", 100)
    path = write_parquet(tmp_path / "a.parquet", column)
    with pytest.raises(InputError, match=rf"a\.parquet: .*{message}"):
        list(read_documents(path, TextSettings(**settings)))


def test_broken_parquet_is_named_and_bad_rows_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"Text {n}." for n in range(5000)]}), path, row_group_size=1000)
    data = path.read_bytes()
    for harmed in (data[: len(data) // 2], data[:4] + b"\xff" * 3000 + data[3004:], b"PAR1"):
        path.write_bytes(harmed)
        with pytest.raises(InputError, match=r"a\.parquet: after row \d+: not a readable Parquet file"):
            list(read_documents(path, TextSettings()))
    bad = pa.array([b"fine", b"\xff", b"good"], pa.binary()).view(pa.string())
    errors: list[InputError] = []
    sources = list(read_sources(write_parquet(path, bad), TextSettings(), errors.append))
    assert len(sources) == 2
    assert [str(error).removeprefix(str(path))[:7] for error in errors] == [": row 2"]


REVISION = "1f" * 20


class DatasetHub(BaseHTTPRequestHandler):
    """As much of the Hub as reading a dataset of one Parquet file takes."""

    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/datasets/own/talks"):
            rest = path.removeprefix("/api/datasets/own/talks")
            if "/tree/" in rest:
                self.answer(json.dumps(self.listing(rest.partition(f"{REVISION}")[2].strip("/"))).encode())
            else:
                siblings = [{"rfilename": name} for name in self.files]
                self.answer(json.dumps({"id": "own/talks", "sha": REVISION, "siblings": siblings}).encode())
        elif path.startswith(f"/datasets/own/talks/resolve/{REVISION}/"):
            name = path.rpartition(f"{REVISION}/")[2]
            self.answer(self.files.get(name), name)
        else:
            self.answer(None)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        paths = self.rfile.read(int(self.headers["Content-Length"])).decode()
        requested = json.loads(paths)["paths"] if paths.startswith("{") else [unquote(paths.partition("paths=")[2])]
        self.answer(json.dumps([entry for entry in self.listing("") if entry["path"] in requested]).encode())

    def listing(self, under: str) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in self.files.items()
            if name.startswith(under)
        ]

    def answer(self, body: bytes | None, name: str = "") -> None:
        status, first = (200, 0) if body is not None else (404, 0)
        whole = body or b"{}"
        if body is not None and (requested := self.headers.get("Range")):
            begin, _, end = requested.removeprefix("bytes=").partition("-")
            first, body, status = int(begin), whole[int(begin) : int(end) + 1 if end else None], 206
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound" if "/api/" in self.path else "EntryNotFound")
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{first + len(body or b'') - 1}/{len(whole)}")
        if name:
            self.send_header("ETag", f'"{hashlib.sha1(whole).hexdigest()}"')
            self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body or b"")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A Hub that serves one dataset, and the environment in which it is the Hub."""
    data = io.BytesIO()
    parquet.write_table(pa.table({"text": [f"Talk {n} was long. Nobody slept." for n in range(40)]}), data)
    DatasetHub.files = {"README.md": b"", "train.parquet": data.getvalue()}
    with hub_server(DatasetHub, tmp_path / "hub") as environment:
        yield environment


@pytest.mark.slow
def test_a_dataset_of_the_hub_is_read_at_the_revision_it_has(
    hub: dict[str, str], own_tokenizer: Path, tmp_path: Path
) -> None:
    def build(name: str) -> subprocess.CompletedProcess[str]:
        command = ("corpus", "build", name, "--tokenizer", own_tokenizer, "--out", tmp_path / "c", "--json")
        return run_bertwright(*command, env=os.environ | hub)

    completed = build("hub:own/absent")
    assert completed.returncode == 2, completed.stderr
    assert "hub:own/absent: the Hub has no such dataset" in completed.stderr
    completed = build("hub:own/talks:test")
    assert completed.returncode == 2, completed.stderr
    assert "hub:own/talks:test: after row 0" in completed.stderr
    assert not (tmp_path / "c").exists()
    completed = build("hub:own/talks")
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["documents"] == 40
    (source,) = json.loads((tmp_path / "c" / "manifest.json").read_text())["sources"]
    assert source == {"path": "hub:own/talks:train", "bytes": 0, "fingerprint": f"revision {REVISION}"}


def test_the_column_of_a_table_is_the_text(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text('id,text,label\n1,"A good, long film.\nIt ends well.",yes\n2,,no\n3,"""Bad"", they said.",no\n')
    documents = list(read_documents(path, TextSettings(lines="sentences")))
    assert [document.paragraphs for document in documents] == [
        ("A good, long film.", "It ends well."),
        ('"Bad", they said.',),
    ]
    assert [document.location for document in documents] == [f"{path}:2", f"{path}:5"]
    table = tmp_path / "table.tsv.gz"
    table.write_bytes(gzip.compress(b'title\tbody\nA\t"One" text.\n'))
    (document,) = read_documents(table, TextSettings(field="body"))
    assert document.paragraphs == ('"One" text.',)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "id,review\n1,Good.\n",
            "expected one column 'text'; the columns are: id, review; corpus build and tokenizer train take",
        ),
        ("id,text\n1,Good,film.\n", "reviews.csv:2: expected 2 cells, as in the header line, got 3"),
        ('id,text\n1,"Good.\n', "reviews.csv:2: not valid csv"),
        ('"id" x,text\n1,Good.\n', "reviews.csv:1: not valid csv"),
        ('\n"id,text\n', "reviews.csv:2: not valid csv"),
    ],
)
def test_a_table_whose_text_cannot_be_read_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        list(read_documents(path, TextSettings()))


def test_a_cell_of_csv_is_as_long_as_every_system_allows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"text\n{'a' * 140_000}\n", "utf-8")
    (document,) = read_documents(path, TextSettings())
    csv.field_size_limit(10)
    assert read_table(path).texts("text") == document.paragraphs
    assert csv.field_size_limit() == 2**31 - 1  # a C long of Windows


def test_bad_rows_of_a_table_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text('\n\nid,text\n1\n2,Good.\n3,"Bad" x\n4,Fine.\n\n5,"Long\nenough."\n')
    errors: list[str] = []
    documents = list(read_sources(path, TextSettings(), lambda error: errors.append(str(error))))
    assert [str(document.location) for document in documents] == [f"{path}:{line}" for line in (5, 7, 9)]
    assert [error.partition(": ")[0] for error in errors] == [f"{path}:4", f"{path}:6"]
    path.write_text("")
    assert list(read_sources(path, TextSettings())) == []


def test_a_table_that_breaks_is_no_bad_row(tmp_path: Path) -> None:
    """The rest of the file cannot be read, so the whole file is at fault."""
    path = tmp_path / "reviews.csv"
    path.write_bytes(b"text\nGood.\nCaf\xe9.\nFine.\n")
    errors: list[InputError] = []
    documents = read_sources(path, TextSettings(), errors.append)
    assert str(next(iter(documents)).location) == f"{path}:2"
    with pytest.raises(InputError, match=r"reviews\.csv:3: .*UTF-8"):
        next(iter(documents))
    assert not errors


class Unreachable(Exception):
    """An error of the library below the Hub's, which is no OSError."""


def test_a_hub_that_cannot_be_reached_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise Unreachable

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    with pytest.raises(RunFailed, match="hub:own/texts: the Hub cannot be reached: Unreachable"):
        find_inputs(["hub:own/texts"])
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(InputError, match="hub:own/model: cannot be fetched: Unreachable"):
        import_model("hub:own/model", tmp_path / "model")
