"""Texts of a store: each kind of file gives the documents of the same file on the disk."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bertwright.errors import InputError, RunFailed
from bertwright.text import decompress
from bertwright.text.document import TextSettings
from bertwright.text.documents import find_inputs, read_all, read_documents
from tests.support.stores import put


def jsonl(text: bytes) -> bytes:
    return b"".join(json.dumps({"text": block}).encode() + b"\n" for block in text.decode().split("\n\n"))


def table(text: bytes) -> bytes:
    stream = pa.BufferOutputStream()
    parquet.write_table(pa.table({"text": text.decode().split("\n\n")}), stream)
    return bytes(stream.getvalue())


def zstd(text: bytes) -> bytes:
    return bytes(pa.compress(text, codec="zstd", asbytes=True))


KINDS: dict[str, Callable[[bytes], bytes]] = {
    "a.txt": bytes,
    "a.txt.gz": gzip.compress,
    "a.txt.bz2": bz2.compress,
    "a.txt.xz": lzma.compress,
    "a.txt.zst": zstd,
    "packed": gzip.compress,
    "a.jsonl": jsonl,
    "a.parquet": table,
    "table": table,
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_file_has_the_documents_of_the_disk(store: Any, own_text: Path, name: str) -> None:
    put(f"b/{name}", KINDS[name](own_text.read_bytes()))
    expected = [each.paragraphs for each in read_documents(own_text, TextSettings())]
    documents = list(read_all(find_inputs([f"faulty://b/{name}"]), TextSettings()))
    assert [each.paragraphs for each in documents] == expected
    assert documents[0].location.startswith(f"faulty://b/{name}:")


def test_files_and_urls_are_named_together_and_once(store: Any, own_text: Path) -> None:
    put("b/a.txt", b"a")
    assert [str(each) for each in find_inputs(["faulty://b/a.txt", own_text, "faulty://b/*"])] == [
        "faulty://b/a.txt",
        str(own_text),
    ]


def test_a_broken_archive_is_named_by_its_url(store: Any, own_text: Path) -> None:
    put("b/a.gz", gzip.compress(own_text.read_bytes())[:-500])
    with pytest.raises(InputError, match=r"faulty://b/a\.gz:\d+: the compressed file is broken or cut short"):
        list(read_documents(find_inputs(["faulty://b/a.gz"])[0], TextSettings()))


def test_a_file_that_changes_while_it_is_read_stops_the_work(store: Any, own_text: Path) -> None:
    put("b/a.txt", own_text.read_bytes())
    documents = read_documents(find_inputs(["faulty://b/a.txt"])[0], TextSettings())
    next(documents)
    put("b/a.txt", own_text.read_bytes())
    with pytest.raises(RunFailed, match=r"faulty://b/a\.txt: was changed while it was read; give the same command"):
        list(documents)


def test_a_packed_file_whose_size_is_unknown_is_read(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put("b/text.txt.gz", gzip.compress(b"One line.\n" * 1000))
    monkeypatch.setattr(decompress, "_ALWAYS_UNPACKED", 100)
    monkeypatch.setattr(decompress, "MOST_UNPACKED", 2)
    (file,) = find_inputs(["faulty://b/text.txt.gz"])
    with pytest.raises(InputError, match="unpacks to more than 2 times its size"):
        list(decompress.read_lines(file))
    unsized = replace(file, size=0)  # as of an answer of http without its length
    assert sum(1 for _ in decompress.read_lines(unsized)) == 1000
