"""corpus duplicates: a corpus and a table, printed and written, beside plain comparisons."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bertwright.cli import main
from bertwright.commands import corpora
from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.text.open_tokenizer import open_tokenizer_folder
from tests.support.commands import run_json
from tests.support.texts import own_lines


def documents() -> list[str]:
    """Each line of the text of some length, then the first ones again: equal, without the last word, and cut in two."""
    lines = [line for line in own_lines() if len(line.split()) >= 14][:12]
    return [*lines, lines[0], lines[1].rsplit(" ", 1)[0], " ".join(lines[2].split()[:5])]


def token_similarity(first: list[int], second: list[int], size: int) -> float:
    a, b = ({tuple(ids[n : n + size]) for n in range(max(1, len(ids) - size + 1))} for ids in (first, second))
    return len(a & b) / len(a | b)


def test_a_corpus(own_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = documents()
    (tmp_path / "text.txt").write_text("\n\n".join(texts), "utf-8")
    build_corpus([tmp_path / "text.txt"], tokenizer=own_tokenizer, out=tmp_path / "corpus", workers=1)
    equal, _ = run_json(capsys, "corpus", "duplicates", tmp_path / "corpus")
    assert (equal["documents"], equal["duplicates"], equal["groups"]) == (15, 1, 1)
    assert [(row["document"], row["like"]) for row in equal["first"]] == [(12, 0)]
    assert Corpus.open(tmp_path / "corpus").duplicates.tolist() == [12]
    assert main(["corpus", "duplicates", str(tmp_path / "corpus"), "--text-column", "x"]) == 2
    near, _ = run_json(capsys, "corpus", "duplicates", tmp_path / "corpus", "--near", "--threshold", "0.5")
    ids = open_tokenizer_folder(own_tokenizer).ids(texts)
    expected = [(12, 0, 1.0), (13, 1, token_similarity(ids[13], ids[1], 5))]
    assert [(row["document"], row["like"], row["similarity"]) for row in near["first"]] == expected
    assert expected[1][2] > 0.6
    assert near["first"][1]["like_text"].startswith(texts[1][:10].lower())


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "parquet"])
def test_a_table_and_the_list_in_blocks(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "_LISTED_AT_ONCE", 1)
    texts = documents()
    table, out = tmp_path / "reviews.csv", tmp_path / f"list.{ending}"
    with table.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("id", "review"), *enumerate(texts)])
    options = ["--text-column", "review", "--near", "--shingle", "2", "--out", out]
    result, _ = run_json(capsys, "corpus", "duplicates", table, *options)
    if ending == "parquet":
        rows = pq.read_table(out).to_pylist()
    elif ending == "jsonl":
        rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    else:
        with out.open(encoding="utf-8", newline="") as stream:
            rows = [*csv.DictReader(stream, delimiter="\t" if ending == "tsv" else ",")]
    assert [(int(row["document"]), int(row["like"])) for row in rows] == [(14, 2), (15, 3)]  # lines of the file
    words = len(texts[1].split())
    assert float(rows[1]["similarity"]) == pytest.approx(1 - 1 / (words - 1), abs=0.05)
    assert rows[0]["text"] == rows[0]["like_text"] == " ".join(texts[0][:200].split())
    assert (result["documents"], result["duplicates"], result["out"]) == (15, 2, str(out))


def test_lines_and_words_for_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in documents()), "utf-8")
    command = ["corpus", "duplicates", str(tmp_path / "texts.txt"), "--input-format", "lines"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["1 of 15 documents equal an earlier one, in 1 groups", "13 like 1: 1.000"]


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "parquet"])
def test_a_list_without_a_row(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("text\none\ntwo\n", "utf-8")
    out = tmp_path / f"list.{ending}"
    assert main(["corpus", "duplicates", str(tmp_path / "t.csv"), "--near", "--out", str(out)]) == 0
    assert capsys.readouterr().out == "0 of 2 documents are like an earlier one\n"
    names = ["document", "like", "similarity", "text", "like_text"]
    if ending == "parquet":
        assert (pq.read_table(out).column_names, pq.read_table(out).num_rows) == (names, 0)
    else:
        separator = {"tsv": "\t", "csv": ","}.get(ending)
        assert out.read_text("utf-8") == (f"{separator.join(names)}\n" if separator else "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threshold", "0.7"], "--threshold and --shingle need --near"),
        (["--near", "--shingle", "0"], "--shingle 0: expected 1 or more"),
        (["--near", "--threshold", "2"], "--threshold 2.0: expected a similarity from 0.1 to 1"),
        (["--out", "list.zip"], "--out list.zip: expected the name of a table"),
        (["--text-column", "review"], "there is no column 'review'"),
    ],
)
def test_what_is_refused(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("text\none\ntwo\n", "utf-8")
    assert main(["corpus", "duplicates", str(tmp_path / "t.csv"), *options]) == 2
    assert message in capsys.readouterr().err
    assert main(["corpus", "duplicates", str(tmp_path), "--near"]) == 2
    assert "expected a corpus folder or a file" in capsys.readouterr().err
