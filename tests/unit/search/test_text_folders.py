"""A folder of text files → a row for each, with its path as its id; other files are told, bad ones named."""

import gzip
import os
from pathlib import Path

import pytest

from bertwright.errors import InputError
from bertwright.search import text_folders as text_folders_module
from bertwright.search.texts import TextTables


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder with three text files, a table and a picture."""
    folder = tmp_path / "notes"
    (folder / "old").mkdir(parents=True)
    (folder / "b.txt").write_text("Rain falls.\n\nSnow too.\n", "utf-8")
    (folder / "old" / "a.MD").write_text('# A title\n\n{"text": "no JSON"}\n', "utf-8")
    (folder / "old" / "c.rst.gz").write_bytes(gzip.compress(b"Packed.\n"))
    (folder / "table.csv").write_text("id,text\n", "utf-8")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("Hidden.\n", "utf-8")
    return folder


def test_each_file_is_a_text_with_its_path_as_id(
    notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines.txt").write_text("One.\nTwo.\n", "utf-8")
    blocks = list(TextTables((str(notes), str(tmp_path / "lines.txt"))).blocks())
    texts = [text for block in blocks for text in block]
    assert [len(block) for block in blocks] == [1, 1, 1, 2]
    assert [(text.row.id, text.number, text.row.passage) for text in texts] == [
        ("b.txt", 1, 1),
        ("old/a.MD", 2, 1),
        ("old/c.rst.gz", 3, 1),
        ("4", 4, 0),
        ("5", 5, 0),
    ]
    assert texts[0].row.text == "Rain falls.\n\nSnow too.\n"
    assert texts[0].location == str(notes / "b.txt")
    assert f"{notes}: the files with other endings than .txt, .md, .rst are not read: 1 .csv, 1 .png" in (
        capsys.readouterr().err
    )


def test_files_that_cannot_be_used_are_named_or_left_out(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (notes / "empty.txt").write_text(" \n", "utf-8")
    (notes / "latin.txt").write_bytes(b"caf\xe9\n")
    (notes / "torn.txt.gz").write_bytes(gzip.compress(b"Packed.\n" * 99)[:-9])
    with pytest.raises(InputError, match=r"empty\.txt: expected a text, got an empty file; --on-error skip leaves"):
        list(TextTables((str(notes),)).blocks())
    os.mkfifo(notes / "pipe.txt")
    blocks = TextTables((str(notes),), on_error="skip").blocks()
    assert [text.number for [text] in blocks] == [1, 4, 5]
    said = capsys.readouterr().err
    assert "4 files are left out: 3 that cannot be read, 1 without a text" in said
    assert "latin.txt:1: not UTF-8" in said


def test_a_text_is_read_once_whatever_links_lead_to_it(notes: Path) -> None:
    (notes / "a.bak").symlink_to(notes / "b.txt")
    (notes / "b-again.txt").symlink_to(notes / "b.txt")
    assert [block[0].row.id for block in TextTables((str(notes),)).blocks()] == [
        "b-again.txt",
        "old/a.MD",
        "old/c.rst.gz",
    ]


def test_a_file_of_too_many_letters_is_to_be_divided(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_folders_module, "LONGEST", 20)
    with pytest.raises(InputError, match=r"b\.txt: expected at most 20 characters in a file; divide the text"):
        list(TextTables((str(notes),)).blocks())


def test_a_folder_without_texts_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("{}\n", "utf-8")
    (tmp_path / "LICENSE").write_text("x\n", "utf-8")
    words = r"with text files \(\.txt, \.md, \.rst\), found 1 \.jsonl, 1 without an ending; name a table itself"
    with pytest.raises(InputError, match=words):
        list(TextTables((str(tmp_path),)).blocks())
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"found 1 without an ending$"):
        list(TextTables((str(tmp_path),)).blocks())


@pytest.mark.parametrize("option", [{"text": ("body",)}, {"id": "id"}, {"format": "csv"}])
def test_options_of_tables_are_refused_for_a_folder(notes: Path, option: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"--(text-column|id-column|input-format): is for tables, but .*notes is a"):
        list(TextTables((str(notes),), **option).blocks())  # type: ignore[arg-type]
