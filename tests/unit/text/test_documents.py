"""Reading documents: layouts, compression, line ends, and every error with its line."""

import bz2
import gzip
import json
import lzma
import os
import re
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.text import decompress as opening
from bertwright.text.document import Document, TextSettings
from bertwright.text.documents import find_inputs, read_all, read_documents, read_paragraphs, read_sources
from tests.support.texts import OWN_TEXT

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}
ARTICLES = (
    '<doc id="1" url="http://x/?id=1" title="Oak &amp; Elm">\nOak & Elm\n\nTwo trees.\nBoth are tall.\n</doc>\n'
    '<doc id="2" url="http://x/?id=2" title="Only a title">\nOnly a title\n\n</doc>\n\n'
    '<doc id="3" url="http://x/?id=3" title="A "Mill"">\nA "Mill"\nIt has 3 &lt; 4 wheels &amp;amp; a dam.\n</doc>\n'
)
ARTICLE_PARAGRAPHS = [("Two trees.", "Both are tall."), ("It has 3 < 4 wheels &amp; a dam.",)]


def read_content(path: Path, content: str | bytes, **chosen: str) -> list[Document]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_documents(path, TextSettings.model_validate(chosen)))


def paragraphs(documents: list[Document]) -> list[tuple[str, ...]]:
    return [document.paragraphs for document in documents]


def test_blank_lines_part_documents_and_places_are_their_first_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    documents = read_content(path, "\n \nOne.\nTwo.\n\n\t\n\nThree.")
    assert documents == [Document(("One.", "Two."), f"{path}:3"), Document(("Three.",), f"{path}:8")]


def test_one_document_per_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    assert read_content(path, "\nOne.\n\nTwo.\n", documents="file") == [Document(("One.", "Two."), f"{path}:2")]
    assert read_content(path, "\n \n", documents="file") == []
    each = [Document(("One. Two.",), f"{path}:2"), Document(("Three.",), f"{path}:4")]
    assert read_content(path, "\nOne.  Two.\n\nThree.", documents="lines") == each


def test_wrapped_lines_are_joined_within_a_block(tmp_path: Path) -> None:
    text = "One line\nbroken here.\n\nAnother\nblock."
    assert paragraphs(read_content(tmp_path / "a", text, lines="wrapped")) == [
        ("One line broken here.",),
        ("Another block.",),
    ]
    whole = read_content(tmp_path / "a", text, lines="wrapped", documents="file")
    assert paragraphs(whole) == [("One line broken here.", "Another block.")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_byte_order_mark_and_form_feeds(tmp_path: Path, end: str) -> None:
    content = ("\ufeffOne\fpage.\n\fTwo\u00a0 words\t. \n\f\nThree.\n").replace("\n", end)
    documents = read_content(tmp_path / "a.txt", content)
    assert paragraphs(documents) == [("One page.", "Two words ."), ("Three.",)]
    assert documents[1].location.endswith(":4")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Z"]), min_size=1), min_size=1),
        min_size=0,
    ),
    st.integers(1, 3),
)
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, written: list[list[str]], gap: int) -> None:
    # a leading "{" or "<doc " may mean another layout, and a byte order mark at the beginning is dropped
    content = "Begin.\n\n" + ("\n" * (gap + 1)).join("\n".join(lines) for lines in written)
    documents = read_content(tmp_path_factory.mktemp("written") / "a.txt", content)
    assert paragraphs(documents) == [("Begin.",), *(tuple(lines) for lines in written)]


@pytest.mark.parametrize("suffix", list(PACK))
@pytest.mark.parametrize("named", [True, False])
def test_compressed_files_are_known_by_name_and_by_content(tmp_path: Path, suffix: str, named: bool) -> None:
    packed = PACK[suffix](OWN_TEXT.read_bytes())
    documents = read_content(tmp_path / f"own.txt{suffix if named else ''}", packed)
    plain = list(read_documents(OWN_TEXT, TextSettings()))
    assert paragraphs(documents) == paragraphs(plain)
    assert len(plain) == 12


@pytest.mark.parametrize("name", ["wiki_00", "wiki_00.xz", "articles.txt", "articles.json"])
def test_wikiextractor_is_known_by_content(tmp_path: Path, name: str) -> None:
    content = lzma.compress(ARTICLES.encode()) if name.endswith(".xz") else ARTICLES.encode()
    documents = read_content(tmp_path / name, content, documents="file")
    assert paragraphs(documents) == ARTICLE_PARAGRAPHS
    assert [document.location for document in documents] == [f"{tmp_path / name}:1", f"{tmp_path / name}:12"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz", "wiki_00", "a.txt"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    records = [
        {"id": "1", "url": "http://x", "title": "Oak", "text": "Oak\n\nA tree.\r\nIt is tall."},
        {"text": "Oak\nis wood."},
        {"title": "Elm", "text": " \n"},
        {"title": None, "text": "Last \U0001f642."},
    ]
    lines = "\n".join(json.dumps(record) for record in records[:2]) + "\n\n" + "\n".join(map(json.dumps, records[2:]))
    content = gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode()
    documents = read_content(tmp_path / name, content)
    assert paragraphs(documents) == [("A tree.", "It is tall."), ("Oak", "is wood."), ("Last \U0001f642.",)]
    assert [document.location[-2:] for document in documents] == [":1", ":2", ":5"]


def test_json_field_is_a_setting(tmp_path: Path) -> None:
    line = json.dumps({"text": "no", "body": "yes"})
    assert paragraphs(read_content(tmp_path / "a.jsonl", line, field="body")) == [("yes",)]


def test_text_that_begins_with_a_brace_stays_text(tmp_path: Path) -> None:
    assert paragraphs(read_content(tmp_path / "a.txt", "{braces} are not JSON\n")) == [("{braces} are not JSON",)]


@pytest.mark.parametrize(
    ("name", "content", "line", "words"),
    [
        ("a.txt", b"fine\n\nbad \xff here\n", 3, "not UTF-8 text: byte 0xff at byte 11"),
        ("a.txt", b"one\rtwo\r\xffthree\r", 3, "not UTF-8 text: byte 0xff at byte 9"),
        ("a.txt", "하나\n둘".encode()[:-1], 2, "it ends in the middle of a character; was the file cut short?"),
        ("a.txt", "fine\n".encode("utf-16"), 1, "a third NUL bytes; convert UTF-16 to UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xc3\x28"}\n', 2, "not UTF-8 text: byte 0xc3 at byte 11 of the line"),
        ("a.txt", "end of an article\n</doc>\n" + ARTICLES, 3, "expected plain text, got an article of WikiExtractor"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', 2, "not valid JSON"),
        ("a.jsonl", b"just words\n", 1, "one JSON object"),
        ("a.jsonl", b'["text"]\n', 1, "got a JSON list"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"body": "b", "id": 3}\n',
            2,
            "expected a field 'text'; the fields are: 'body', 'id'",
        ),
        ("a.jsonl", b'{"text": ["a"]}\n', 1, "expected text in field 'text', got [\"a\"]"),
        ("a.jsonl", b'{"text": null}\n', 1, "expected text in field 'text', got null"),
        ("a.jsonl", b'\n{"text": "\\ud83d!"}\n', 2, "half of a surrogate pair (\\ud83d)"),
        ("a.jsonl", b"[" * 100_000, 1, "JSON that cannot be read"),
        ("wiki_00", b'<doc id="1" title="A">\nA\ntext\n', 1, "expected </doc> after this <doc …>"),
        (
            "wiki_00",
            b'<doc id="1" title="A">\nA\n<doc id="2" title="B">\n</doc>\n',
            1,
            "expected </doc> before the next <doc …> on line 3",
        ),
        (
            "wiki_00",
            b'<doc id="1" title="A">\nA\n</doc>\nstray\n',
            4,
            "expected <doc …>, got text outside of an article",
        ),
        ("wiki_00", b'<doc id="1" title="A">\nA\n</doc>\n</doc>\n', 4, "</doc> without a <doc"),
    ],
)
def test_bad_content_is_named_with_file_and_line(
    tmp_path: Path, name: str, content: str | bytes, line: int, words: str
) -> None:
    with pytest.raises(InputError, match=rf"^{re.escape(str(tmp_path / name))}:{line}: .*{re.escape(words)}"):
        read_content(tmp_path / name, content)


def test_a_title_is_part_of_the_text_but_in_wikiextractors_lines(tmp_path: Path) -> None:
    review = {"title": "Great", "text": "Great\nReally."}
    article = {"id": "7", "url": "http://x/?id=7", **review}
    lines = "\n".join(map(json.dumps, (review, article)))
    assert paragraphs(read_content(tmp_path / "a.jsonl", lines)) == [("Great", "Really."), ("Really.",)]
    assert paragraphs(read_content(tmp_path / "a.jsonl", lines, field="title")) == [("Great",), ("Great",)]


def read_to_the_error(path: Path) -> tuple[list[tuple[str, ...]], str]:
    """Return the paragraphs of the documents before an error, and its message."""
    texts: list[tuple[str, ...]] = []
    try:
        texts += (document.paragraphs for document in read_documents(path, TextSettings()))
    except InputError as error:
        return texts, str(error)
    raise AssertionError(f"{path} was read without an error")


def test_what_stands_before_a_bad_byte_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"".join(b"Document %d.\n\n" % number for number in range(3000)) + b"bad \xff\n")
    texts, error = read_to_the_error(path)
    assert "a.txt:6001: not UTF-8" in error
    assert texts == [(f"Document {number}.",) for number in range(3000)]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_what_stands_before_the_end_of_a_cut_archive_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    lines = b"".join(b"Document %d.\n\n" % number for number in range(3000))
    path.write_bytes(PACK[suffix](lines)[:-4])  # the end of the last check sum
    texts, error = read_to_the_error(path)
    assert "broken or cut short" in error
    assert texts == [(f"Document {number}.",) for number in range(3000)]


@pytest.mark.parametrize(("documents", "expected"), [("lines", 4), ("blank-lines", 2), ("file", 1)])
def test_of_plain_text_the_bad_lines_alone_are_left_out(tmp_path: Path, documents: Any, expected: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo \xff\nthree\n\nfour\n\xff\nfive\n")
    errors: list[InputError] = []
    texts = [*read_documents(path, TextSettings(documents=documents), errors.append)]
    assert len(texts) == expected
    assert [line for text in texts for line in text.paragraphs] == ["one", "three", "four", "five"]
    first, second = map(str, errors)
    assert first.startswith(f"{path}:2: not UTF-8 text: byte 0xff at byte 9 of the text")
    assert second == f"{path}:6: not UTF-8 text; convert it to UTF-8"


def test_of_json_lines_the_bad_ones_alone_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n{"text": "\xff"}\n{"text": \n{"text": "four"}\n')
    errors: list[InputError] = []
    documents = [source for source in read_sources(path, TextSettings(), errors.append) if isinstance(source, Document)]
    assert paragraphs(documents) == [("one",), ("four",)]
    messages = "\n".join(map(str, errors))
    assert re.findall(r"a\.jsonl:(\d): (not \S+)", messages) == [("2", "not UTF-8"), ("3", "not valid")]


@pytest.mark.parametrize("harm", [-1, 0])
def test_a_damaged_later_stream_of_bz2_is_reported(tmp_path: Path, harm: int) -> None:
    """In its check sum, or where its mark stands; Python's own reader takes the second for the end of the file."""
    second = bytearray(bz2.compress(b"Second.\n"))
    second[harm if harm == 0 else -5] ^= 0xFF
    with pytest.raises(InputError, match=r"b\.txt\.bz2:\d+: the compressed file is broken"):
        read_content(tmp_path / "b.txt.bz2", bz2.compress(b"First.\n\n") + bytes(second))
    two = bz2.compress(b"First.\n\n") + bz2.compress(b"Second.\n")
    assert paragraphs(read_content(tmp_path / "b.txt.bz2", two)) == [("First.",), ("Second.",)]


def test_much_padding_between_streams_of_xz_is_none_of_the_text(tmp_path: Path) -> None:
    packed = lzma.compress(b"First.\n\n") + bytes(400_000) + lzma.compress(b"Second.\n")
    assert paragraphs(read_content(tmp_path / "a.txt.xz", packed)) == [("First.",), ("Second.",)]


@pytest.mark.parametrize("begin", ["BZh", "BZhang Wei wrote this.", "PAR1", "PAR1 is how a Parquet file begins."])
def test_a_text_may_begin_as_other_files_do(tmp_path: Path, begin: str) -> None:
    assert paragraphs(read_content(tmp_path / "a.txt", f"{begin}\n\nMore.")) == [(begin,), ("More.",)]


def test_a_pipe_and_a_strange_name_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: not a regular file"):
        find_inputs([tmp_path / "pipe"])
    folder = tmp_path / "names"
    folder.mkdir()
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xf0\x9f\x98\x80\xff.txt"))).write_text("Text.")
    with pytest.raises(InputError, match="the name of this file is not UTF-8"):
        find_inputs([folder])


@pytest.mark.parametrize("suffix", list(PACK))
@pytest.mark.parametrize("harm", ["cut", "garbage", "changed", "empty"])
def test_broken_archives_are_named(tmp_path: Path, suffix: str, harm: str) -> None:
    packed = PACK[suffix](OWN_TEXT.read_bytes() * 3)
    middle = len(packed) // 2 if suffix != ".zst" else 4  # Arrow writes no checksum there: only its header tells
    content = {
        "cut": packed[:middle],
        "garbage": b"this was never packed at all",
        "changed": packed[:middle] + bytes(255 - byte for byte in packed[middle : middle + 8]) + packed[middle + 8 :],
        "empty": b"",
    }[harm]
    with pytest.raises(InputError, match=r"a\.\w+:\d+: the compressed file is broken or cut short"):
        read_content(tmp_path / f"a{suffix}", content)


@pytest.mark.parametrize(
    "suffix", [".xz", ".zst", *(pytest.param(one, marks=pytest.mark.slow) for one in (".gz", ".bz2"))]
)
def test_an_archive_without_end_is_refused(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_ALWAYS_UNPACKED", 500_000)
    for line, times in ((b"word " * 200 + b"\n\n", 60_000), (b"\n", 2_000_000)):
        path = tmp_path / f"bomb{suffix}"
        path.write_bytes(PACK[suffix](line * times))
        tracemalloc.start()
        with pytest.raises(InputError, match=r"bomb\.\w+: unpacks to more than 300 times its size"):
            for _ in read_documents(path, TextSettings()):
                pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10_000_000


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LONGEST", 1000)
    assert len(read_content(tmp_path / "a.txt", "fine\n\n" + "x" * 1000)) == 2
    with pytest.raises(InputError, match=r"a\.txt:3: the line has over"):
        read_content(tmp_path / "a.txt", "fine\n\n" + "x" * 1001)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.txt: cannot be opened"):
        next(read_documents(tmp_path / "absent.txt", TextSettings()))
    with pytest.raises(InputError, match="cannot be opened: Is a directory"):
        next(read_documents(tmp_path, TextSettings()))


def test_reading_streams(tmp_path: Path) -> None:
    path = tmp_path / "long.txt.gz"
    text = b"A paragraph of some words, again and again.\n" * 20 + b"\n"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(3_000):
            stream.write(text)
        stream.write(b"\xff\n")
    documents = read_documents(path, TextSettings())
    tracemalloc.start()
    count = sum(len(document.paragraphs) == 20 for document in islice(documents, 2_900))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2_900  # they came out before the bad byte was met
    assert peak < 700_000 < 2_900 * len(text)
    with pytest.raises(InputError, match=f":{3_000 * 21 + 1}: not UTF-8"):
        list(documents)


def test_read_all_refuses_inputs_without_a_document(tmp_path: Path) -> None:
    for name, content in (("a.txt", " \n"), ("b.jsonl", ""), ("c.txt", "Text.\n")):
        (tmp_path / name).write_text(content)
    assert paragraphs(list(read_all(find_inputs([tmp_path]), TextSettings()))) == [("Text.",)]
    with pytest.raises(InputError, match=r"no document in the 2 input file\(s\) \(.*a\.txt, .*b\.jsonl\)"):
        list(read_all([tmp_path / "a.txt", tmp_path / "b.jsonl"], TextSettings()))


def test_inputs_are_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/10.txt", "b/.hidden", "b/.git/x.txt", "b/c/1.txt", "a.txt", "[odd].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def names(*inputs: str) -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in find_inputs([tmp_path / name for name in inputs])]

    assert names("b") == ["b/10.txt", "b/2.txt", "b/c/1.txt"]
    assert names("b/2.txt", "a.txt", "b") == ["b/2.txt", "a.txt", "b/10.txt", "b/c/1.txt"]
    assert names("**/1*.txt") == ["b/10.txt", "b/c/1.txt"]
    assert names("[odd].txt") == ["[odd].txt"]
    assert names("?") == ["b/10.txt", "b/2.txt", "b/c/1.txt"]


def test_inputs_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for given_input in ("absent.txt", "*.txt"):
        with pytest.raises(InputError, match="no file or folder has this name or pattern"):
            find_inputs([str(tmp_path / given_input)])
    with pytest.raises(InputError, match="folder: the folder holds no file"):
        find_inputs([tmp_path / "folder"])
    with pytest.raises(InputError, match="expected one input or more"):
        find_inputs([])
    with pytest.raises(InputError, match=r"an input is empty; .*, the current one as '\.'"):
        find_inputs([""])


def test_a_link_to_itself_is_one_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("x")
    (tmp_path / "a.txt").write_text("A text.")
    assert [path.name for path in find_inputs([tmp_path]) if isinstance(path, Path)] == ["a.txt", "x"]
    with pytest.raises(InputError, match="x: cannot be opened"):
        list(read_documents(tmp_path / "x", TextSettings()))


def test_paragraphs_of_several_inputs_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("first line\nsecond line\n\nthird line\n")
    (tmp_path / "a.txt").write_text("fourth line\n")
    sources = find_inputs([tmp_path / "b.txt", tmp_path / "a.txt"])
    assert list(read_paragraphs(sources, TextSettings())) == ["first line", "second line", "third line", "fourth line"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="no document in the 1 input file"):
        list(read_paragraphs([tmp_path / "empty.txt"], TextSettings()))


def test_wikipedia_articles_are_all_found(shared_data: Path) -> None:
    path = shared_data / "enwiki" / "heldout.xz"
    raw = lzma.decompress(path.read_bytes()).decode()
    documents = list(read_documents(path, TextSettings()))
    articles = re.findall(
        r"^<doc id=.*\n.*\n((?:.*\n)*?)</doc>$", raw, flags=re.MULTILINE
    )  # the first line is the title
    assert len(documents) == len(articles) == raw.count("<doc id=")
    for document, article in zip(documents, articles, strict=True):
        body = article.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        assert [line.split() for line in body.split("\n") if line.strip()] == [p.split() for p in document.paragraphs]
