"""Texts that a vocabulary does not know are told, for every kind of task and for an index."""

import re
from pathlib import Path

import numpy as np
import pytest

from bertwright.finetuning.prepare import prepare
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.spec import get_spec
from bertwright.tasks.unknown_pieces import UnknownPieces
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import write_encoder
from tests.support.task_examples import example_data


def test_special_tokens_are_no_pieces(own_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer.load(own_tokenizer)
    unknown = UnknownPieces(tokenizer)
    unknown.say("no texts", "model")
    [begin], [between], [end] = tokenizer.row_frame
    rain = tokenizer.ids(["rain"])[0]
    known = [[begin, *rain, between, *rain, end]] * 99
    unknown.add(np.array(row, dtype=np.int32) for row in known)
    assert unknown.fraction == 0
    unknown.add([np.array([begin, *tokenizer.ids(["한국 ☃"])[0], end], dtype=np.int32)])
    assert unknown.fraction == 2 / (2 * len(rain) * 99 + 2)
    unknown.say("a few", "model")
    assert capsys.readouterr().err == ""
    unknown.add([np.array([tokenizer.unk_id] * 99, dtype=np.int32)])
    unknown.say("the texts", "small")
    assert f"the texts: {unknown.fraction:.0%} of the pieces are [UNK], and small cannot see" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sst2", "mrpc", "swag", "ner", "squad1", "embed"])
def test_each_kind_of_task_counts_its_texts(
    name: str,
    own_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted: list[int] = []
    add = UnknownPieces.add

    def add_and_note(unknown: UnknownPieces, rows: list[np.ndarray]) -> None:
        add(unknown, rows)
        counted.append(unknown._pieces)

    monkeypatch.setattr(UnknownPieces, "add", add_and_note)
    monkeypatch.setattr("bertwright.tasks.unknown_pieces.UNKNOWN_LIMIT", -1.0)
    task = get_spec(name)
    data = example_data(task, tmp_path).data
    model = write_encoder(tmp_path / "model", own_tokenizer, second_sentence="next")
    prepared = prepare(FinetuneSettings(max_length=64), task, model, data, None, cache=tmp_path / "cache")
    said = capsys.readouterr().err
    assert re.search(rf"{re.escape(str(data))}: the training texts: \d% of the pieces are \[UNK\], and ", said)
    assert f"and {model} cannot see" in said
    [pieces] = counted
    assert 8 <= pieces <= prepared.bound.tokens.sum()
