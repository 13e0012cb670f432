"""Copies of files of a store: whole or absent, and made once."""

from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError, RunFailed
from bertwright.stores import cache
from bertwright.stores.cache import fetch_model, fetch_tables, local_name
from tests.support.stores import FaultyStore, lost_from, put


def num_read() -> int:
    return sum(name == "read" for name, _ in FaultyStore.calls)


def test_a_table_is_copied_once_until_it_changes(store: Any) -> None:
    put("b/rows.tsv", b"text\tlabel\n")
    first = fetch_tables("faulty://b/rows.tsv")
    assert (first.name, first.read_bytes(), num_read()) == ("rows.tsv", b"text\tlabel\n", 1)
    assert fetch_tables("faulty://b/rows.tsv") == first
    assert num_read() == 1
    put("b/rows.tsv", b"text\tother\n")
    second = fetch_tables("faulty://b/rows.tsv")
    assert (second.read_bytes(), first.read_bytes()) == (b"text\tother\n", b"text\tlabel\n")


def test_a_table_without_a_mark_is_copied_each_time(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unmarked(self: Any, path: str, **options: Any) -> Any:
        return {key: value for key, value in info(self, path, **options).items() if key != "created"}

    info = store.info
    monkeypatch.setattr(store, "info", unmarked)
    put("b/rows.tsv", b"first")
    assert fetch_tables("faulty://b/rows.tsv").read_bytes() == b"first"
    assert capsys.readouterr().err == ""
    put("b/rows.tsv", b"other")
    assert fetch_tables("faulty://b/rows.tsv").read_bytes() == b"other"
    assert "b/rows.tsv: the store gives no checksum and no time of change; the files are" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/b/rows.csv?sig=SECRET/x", "rows.csv"),
        (f"s3://b/{'é' * 300}.tsv", "é" * 48 + ".tsv"),
        ("s3://b/..", "files"),
        ("s3://b/run/", "run"),
    ],
)
def test_the_name_of_a_copy_is_one_that_a_disk_takes(url: str, name: str) -> None:
    assert local_name(url) == name


def test_a_pattern_is_no_table(store: Any) -> None:
    put("b/a.csv", b"1")
    with pytest.raises(InputError, match=r"b/\*\.csv: expected one file or folder, got a pattern"):
        fetch_tables("faulty://b/*.csv")


def test_a_folder_of_tables_keeps_its_names(store: Any) -> None:
    put("b/glue/train.tsv", b"1")
    put("b/glue/deep/dev.tsv", b"2")
    folder = fetch_tables("faulty://b/glue/")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert (folder.name, files) == ("glue", {"train.tsv", "deep/dev.tsv"})


@pytest.mark.parametrize("call", range(1, 8))
def test_a_store_that_vanishes_at_any_call_leaves_no_half_file(store: Any, tmp_path: Path, call: int) -> None:
    contents = {"config.json": b"{}", "model.safetensors": b"w" * 3_000_000, "vocab.txt": b"a\n"}
    for name, content in contents.items():
        put(f"b/m/{name}", content)
    store.fault = lost_from(call)
    with pytest.raises(RunFailed, match="connection lost"):
        fetch_model("faulty://b/m")
    store.fault = None
    kept = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert all(contents[name] == content for name, content in kept.items())
    store.calls.clear()
    folder = fetch_model("faulty://b/m")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    assert num_read() == len(contents) - len(kept)


def test_a_file_that_changes_during_its_download_is_not_taken(store: Any, tmp_path: Path) -> None:
    put("b/rows.tsv", b"old")

    def change(name: str, path: str) -> None:
        if name == "read":
            store.fault = None
            put("b/rows.tsv", b"new")

    store.fault = change
    with pytest.raises(RunFailed, match="was changed while it was read"):
        fetch_tables("faulty://b/rows.tsv")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["run.json", "model/config.json", "checkpoints/step-000000001/state.json"], {"model/config.json"}),
        (["manifest.json", "tokenizer/vocab.txt", "shard.arrow"], {"tokenizer/vocab.txt"}),
        (
            ["config.json", "1_Pooling/config.json", "tokenizer/x"],
            {"config.json", "1_Pooling/config.json", "tokenizer/x"},
        ),
    ],
)
def test_of_a_run_or_corpus_only_the_model_is_copied(store: Any, keys: list[str], expected: set[str]) -> None:
    for key in keys:
        put(f"b/m/{key}", key.encode())
    folder = fetch_model("faulty://b/m")
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == expected


def test_a_model_is_a_folder(store: Any) -> None:
    put("b/vocab.txt", b"a")
    with pytest.raises(InputError, match=r"b/vocab\.txt: expected a folder, got a file of 1 bytes"):
        fetch_model("faulty://b/vocab.txt")


def test_a_disk_without_room_is_named_before_the_download(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put("b/rows.tsv", b"x" * 100)
    usage = type("Usage", (), {"free": 99})
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(RunFailed, match=r"where 0\.0 MB are free; set BERTWRIGHT_CACHE to a folder with more room"):
        fetch_tables("faulty://b/rows.tsv")
    assert num_read() == 0
