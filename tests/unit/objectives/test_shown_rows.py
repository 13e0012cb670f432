"""Rows that are shown, put back together and looked up in the documents of the corpus."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.cli import main
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.objectives.settings import ExampleSettings, MaskingSettings
from bertwright.objectives.shown_rows import ShownRow, first_rows


def documents_of(corpus: Corpus) -> list[list[str]]:
    first, pieces = corpus.document_first(), corpus.tokenizer.pieces
    shards, starts, lengths = corpus.locate(first[:-1], np.diff(first).astype(np.int32))
    return [
        [pieces[id] for id in corpus.views[shard][start : start + length]]
        for shard, start, length in zip(shards, starts, lengths, strict=True)
    ]


def sides(row: ShownRow) -> list[list[str]]:
    """Return the text of A and B before masking, without special tokens."""
    pieces = list(row.pieces)
    for prediction in row.predictions:
        assert pieces[prediction.position] == prediction.read
        pieces[prediction.position] = prediction.piece
    text = [[piece for piece, of in zip(pieces, row.segments, strict=True) if of == side] for side in (0, 1)]
    assert text[0][0] == "[CLS]"
    assert {side[-1] for side in text if side} == {"[SEP]"}
    return [text[0][1:-1], *(side[:-1] for side in text[1:] if side)]


def places(text: list[str], documents: list[list[str]]) -> set[tuple[int, int]]:
    """Return (document, position) of each occurrence of a text."""
    return {
        (number, at)
        for number, document in enumerate(documents)
        for at in range(len(document) - len(text) + 1)
        if document[at : at + len(text)] == text
    }


@pytest.mark.parametrize("second", ["next", "order", "none"])
def test_rows_are_texts_of_the_corpus_with_the_meaning_of_their_labels(own_corpus: Path, second: Any) -> None:
    masking = MaskingSettings(share=0.3, mask=0.4, same=0.3, random=0.3)
    settings = ExampleSettings(second_sentence=second, masking=masking)
    rows = first_rows(own_corpus, settings, rows=40, length=32, seed=5)
    documents = documents_of(Corpus.open(own_corpus))
    for row in rows:
        assert len(row.predictions) == min(max(1, round(0.3 * len(row.pieces))), round(0.3 * 32))
        sources = [places(text, documents) for text in sides(row)]
        assert all(sources)
        if second == "none":
            assert (len(sources), row.label, row.second) == (1, None, None)
            continue
        in_order = any(a[0] == b[0] and a[1] < b[1] for a in sources[0] for b in sources[1])
        assert in_order == (row.label == 0)
        assert (row.second == "B follows A") == (row.label == 0)
        if second == "order" and row.label:
            assert any(a[0] == b[0] and b[1] < a[1] for a in sources[0] for b in sources[1])
    predictions = [prediction for row in rows for prediction in row.predictions]
    replaced = [(each.replacement, each.read == "[MASK]", each.read == each.piece) for each in predictions]
    assert set(replaced) == {("masked", True, False), ("kept", False, True), ("random", False, False)}


def test_the_command_prints_rows(own_corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["corpus", "inspect", str(own_corpus), "--rows", "2", "--length", "24", "--mask-share", "0.2"]
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert text.count("second sentence: label ") == len(rows) == 2
    for row in rows:
        assert f"{len(row['pieces'])} tokens, {len(row['predictions'])} predicted" in text
        for prediction in row["predictions"]:
            assert f"position {prediction['position']}: {prediction['piece']!r} " in text
        assert " ".join(piece for piece, of in zip(row["pieces"], row["segments"], strict=True) if of == 1) in text
    assert main(["corpus", "inspect", str(own_corpus), "--mask-share", "0.2"]) == 2
    assert "need --rows N" in capsys.readouterr().err


@pytest.mark.parametrize(("rows", "length"), [(0, 32), (3, 4), (10_000, 32)])
def test_numbers_out_of_range_are_refused(own_corpus: Path, rows: int, length: int) -> None:
    with pytest.raises(InputError, match=f"--rows {rows} --length {length}: expected 1 to 1000 rows"):
        first_rows(own_corpus, ExampleSettings(), rows=rows, length=length, seed=0)


def test_causal_rows_are_refused(own_corpus: Path) -> None:
    with pytest.raises(InputError, match=r"--causal-share 0\.5: only rows of masked LM are shown"):
        first_rows(own_corpus, ExampleSettings(causal_share=0.5), rows=2, length=32, seed=0)
