"""Errors of taggers, by entity."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertwright.tables.writer import PredictRequest
from bertwright.tasks.errors import write_errors
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.errors import tag_errors
from bertwright.tasks.tagging.spec import NER, POS, Tagged

WORDS = (("Ada", "Love", "saw", "Oslo"), ("Rain", "in", "Ulm"))
LINES = ((1, 2, 3, 4), (6, 7, 8))


def test_every_gold_or_predicted_entity_is_a_row_with_both_types() -> None:
    task = NER.model_copy(update={"labels": ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")})
    gold = (("B-PER", "I-PER", "O", "B-LOC"), ("O", "O", "B-LOC"))
    predicted = (("B-PER", "O", "O", "B-LOC"), ("B-PER", "O", "O"))
    probabilities = np.array([0.9, 0.5, 1.0, 0.6, 0.7, 1.0, 0.8])
    errors = tag_errors(task, Sentences("dev", WORDS, gold, LINES), Tagged(predicted, probabilities))
    rows = [row[:6] for row in errors.rows()]
    assert rows == [
        (1, "Ada", "", "PER", True, 0.9),
        (8, "Ulm", "LOC", "", True, 0.8),
        (6, "Rain", "", "PER", True, 0.7),
        (1, "Ada Love", "PER", "", True, 0.45),
        (4, "Oslo", "LOC", "LOC", False, 0.6),
    ]
    assert errors.rows()[0][6] == "Ada Love saw Oslo"


def test_plain_tags_have_a_row_for_each_word() -> None:
    task = POS.model_copy(update={"labels": ("N", "V")})
    sentences = Sentences("dev", (("a", "b"),), (("N", "V"),), ((1, 2),))
    errors = tag_errors(task, sentences, Tagged((("N", "N"),), np.array([0.8, 0.6])))
    assert [row[1:5] for row in errors.rows()] == [("b", "V", "N", True), ("a", "N", "N", False)]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_sentences_without_entities_have_no_rows(tmp_path: Path, ending: str) -> None:
    task = NER.model_copy(update={"labels": ("O", "B-LOC", "I-LOC")})
    sentences = Sentences("dev", (("a",),), (("O",),), ((1,),))
    errors = tag_errors(task, sentences, Tagged((("O",),), np.array([0.8])))
    assert errors.rows() == []
    path = tmp_path / f"errors.{ending}"
    write_errors(PredictRequest("dev", str(path)), {"dev": errors})
    names = ["line", "entity", "gold", "predicted", "wrong", "probability", "sentence"]
    assert (pq.read_table(path).column_names if ending == "parquet" else path.read_text().strip().split(",")) == names
