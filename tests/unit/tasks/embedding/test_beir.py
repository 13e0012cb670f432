"""Folders in the layout of BEIR: packed files, titles, scores, and judgements of unknown documents."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from bertwright.errors import InputError
from bertwright.tasks.embedding.read import read_measured, read_vector_data
from bertwright.tasks.embedding.spec import EMBED
from bertwright.tasks.spec import with_reading, with_settings


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    queries = [{"_id": str(row), "text": f"query {row}", "metadata": {}} for row in range(30)]
    documents = [{"_id": f"d{row}", "title": f"Title {row}", "text": f"text {row}"} for row in range(30)]
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    lines = ["".join(json.dumps(record) + "\n" for record in records).encode() for records in (queries, documents)]
    (folder / "queries.jsonl.gz").write_bytes(gzip.compress(lines[0]))
    (folder / "corpus.jsonl.xz").write_bytes(lzma.compress(lines[1]))
    rows = [f"{row}\td{row}\t{1 if row else 0}" for row in range(20)] + ["1\td2\t1"]
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n", "utf-8")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n25\td25\t2\n", "utf-8")
    return folder


def test_queries_are_paired_with_their_documents(beir: Path) -> None:
    data = read_vector_data(EMBED, beir)
    train, validation = data.train, data.validation["dev"]
    assert len(train) + len(validation) == 20  # a score of 0 makes no pair
    for pairs in (train, validation):
        assert not pairs.alike
        for row in range(len(pairs)):
            number = pairs.firsts[pairs.anchors[row]].removeprefix("query ")
            document = pairs.seconds[pairs.positives[row]]
            assert document == f"Title {number} text {number}" or (number, document) == ("1", "Title 2 text 2")
    assert not set(train.firsts) & set(validation.firsts)
    assert set(data.digests["train"]) <= set("0123456789abcdef")


def test_a_model_is_measured_on_the_test_judgements(beir: Path) -> None:
    pairs = read_measured(EMBED, beir)["test.tsv"]
    assert (pairs.firsts, pairs.seconds) == (("query 25",), ("Title 25 text 25",))


def test_a_judgement_of_an_unknown_document_is_named_or_left_out(beir: Path) -> None:
    path = beir / "qrels" / "train.tsv"
    path.write_text(path.read_text("utf-8") + "3\td99\t1\n", "utf-8")
    with pytest.raises(InputError, match=r"train\.tsv:23: there is no document 'd99' in .*corpus\.jsonl\.xz"):
        read_vector_data(EMBED, beir)
    skipping = with_reading(EMBED, input_format="auto", on_error="skip")
    assert read_vector_data(skipping, beir).train.left_out == {"with an unknown id": 1}


def test_a_folder_of_another_layout_is_refused(beir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is in BEIR's layout, but the layout is set to corpus"):
        read_vector_data(with_settings(EMBED, ["layout=corpus"]), beir)
    with pytest.raises(InputError, match="spans=twins: expected a folder of corpus build in --data"):
        read_vector_data(with_settings(EMBED, ["spans=twins"]), beir)
    (beir / "corpus.jsonl.xz").unlink()
    with pytest.raises(InputError, match=r"expected corpus\.jsonl"):
        read_vector_data(EMBED, beir)


def test_other_texts_under_the_same_ids_are_other_data(beir: Path) -> None:
    before = read_vector_data(EMBED, beir).digests
    documents = lzma.decompress((beir / "corpus.jsonl.xz").read_bytes()).replace(b"text 3", b"text three")
    (beir / "corpus.jsonl.xz").write_bytes(lzma.compress(documents))
    after = read_vector_data(EMBED, beir).digests
    assert before["train"] == after["train"]
    assert before["texts"] != after["texts"]
