"""A vocabulary extended and a model trained on with it, through the command line."""

import json
from pathlib import Path

import pytest

from bertwright.text.wordpiece import Tokenizer
from tests.support.commands import run_json

TINY = ["--lengths", "32", "--batch-size", "8", "--threads", "1", "--precision", "fp32", "--steps", "2"]


def test_a_model_goes_on_with_an_extended_vocabulary(
    tmp_path: Path, own_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = tmp_path
    run_json(capsys, "tokenizer", "train", own_text, "--vocab-size", "450", "--out", at / "tok")
    run_json(capsys, "corpus", "build", own_text, "--tokenizer", at / "tok", "--out", at / "corpus", "--workers", "1")
    run_json(capsys, "pretrain", "--corpus", at / "corpus", "--out", at / "run", "--activation", "gelu_tanh", *TINY)
    extend = ["tokenizer", "extend", at / "run", own_text]
    result, _ = run_json(capsys, *extend, "--add", "30", "--out", at / "more")
    assert result["vocab_size"] == 480
    assert result["pieces_per_word"]["after"] < result["pieces_per_word"]["before"]
    old, new = Tokenizer.load(at / "tok"), Tokenizer.load(at / "more")
    assert new.pieces[:450] == old.pieces
    build = ["corpus", "build", own_text, "--workers", "1"]
    run_json(capsys, *build, "--tokenizer", at / "more", "--out", at / "corpus2")
    start = ["pretrain", "--init-from", at / "run", "--corpus", at / "corpus2", *TINY]
    _, said = run_json(capsys, *start, "--out", at / "run2")
    assert "30 new pieces start with the mean of their old pieces" in said
    record = json.loads((at / "run2" / "run.json").read_text())
    assert (record["settings"]["size"], record["settings"]["activation"]) == ("tiny", "gelu_tanh")
    assert run_json(capsys, *start, "--out", at / "run2", "--resume")[0]["steps"] == 2
    # what was made is a tokenizer source itself, and what cannot be done leaves nothing behind
    assert run_json(capsys, *build, "--tokenizer", at / "run2", "--out", at / "corpus3")[0]["tokens"] > 0
    refused = [
        ([*extend, "--add", "0"], "expected 1 or more"),
        ([*extend, "--add", "100000"], "pieces of the text would shorten it"),
        (["tokenizer", "extend", at / "nowhere", own_text, "--add", "5"], "there is no such file"),
        ([*start[:2], at / "run2", "--corpus", at / "corpus", *TINY], "its tokenizer is neither"),
        ([*start, "--size", "mini"], "expected the size mini (--size mini), got tiny"),
        ([*start, "--activation", "gelu"], "expected the activation gelu (--activation), got gelu_tanh"),
    ]
    for number, (arguments, words) in enumerate(refused):
        assert words in run_json(capsys, *arguments, "--out", at / f"refused{number}", code=2)[1], arguments
        assert not (at / f"refused{number}").exists()
