"""A GPT-BERT in use: scores from both sides and from the left, candidates for [MASK], continuations, its outputs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bertwright as bw
from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.model.bert import open_architecture
from bertwright.model.folder import open_model
from bertwright.scoring.scorer import open_scorer
from bertwright.scoring.settings import Direction, ScoreSettings
from bertwright.text.wordpiece import Tokenizer
from tests.support.commands import run_json
from tests.support.gpt_bert import both_classes, random_gpt_bert, saved_gpt_bert

SENTENCES = ("The old bridge leads over the river.", "Bread was bought in the harbour.")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> tuple[str, Any, Any]:
    """A model folder, and the two classes of transformers with its weights."""
    folder, model = tmp_path_factory.mktemp("gpt-bert"), random_gpt_bert(own_tokenizer)
    return (saved_gpt_bert(folder / "model", model, own_tokenizer), *both_classes(folder, model, own_tokenizer))


def framed(tokenizer: Tokenizer, text: str) -> Tensor:
    """Return the ids of a text between [CLS] and [SEP], [1, T]."""
    return torch.tensor([[tokenizer.cls_id, *tokenizer.ids([text], special=True)[0], tokenizer.sep_id]])


@torch.inference_mode()
def plain_scores(saved: tuple[str, Any, Any], tokenizer: Tokenizer, text: str) -> dict[str, float]:
    """Return the score of a sentence by direction: a row for each masked piece, or the sentence itself."""
    _, masked_class, causal_class = saved
    ids = framed(tokenizer, text)
    causal = causal_class(input_ids=ids).logits[0].log_softmax(-1)
    total = {"both": 0.0, "left": 0.0}
    for at in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        masked[0, at] = tokenizer.mask_id
        total["both"] += float(masked_class(input_ids=masked).logits[0, at - 1].log_softmax(-1)[ids[0, at]])
        total["left"] += float(causal[at - 1, ids[0, at]])
    return total


def test_scores_either_way_are_those_of_two_classes_of_transformers(
    saved: tuple[str, Any, Any], own_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [plain_scores(saved, Tokenizer.load(own_tokenizer), sentence) for sentence in SENTENCES]
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES) + "\n", "utf-8")
    start = ["score", "sentences", "--model", saved[0], "--input", tmp_path / "in.txt", "--precision", "fp32"]
    for direction, options in (("both", ["--masking", "piece"]), ("left", ["--direction", "left"])):
        out = tmp_path / f"{direction}.jsonl"
        result, _ = run_json(capsys, *start, "--output", out, *options)
        scores = [json.loads(line)["score"] for line in out.read_text("utf-8").splitlines()]
        assert scores == pytest.approx([each[direction] for each in expected], abs=1e-4)
        assert result["score"] == pytest.approx(sum(scores), abs=1e-4)
    scored = bw.load(saved[0], precision="fp32").score(list(SENTENCES), masking="piece")
    assert [each.score for each in scored] == pytest.approx([each["both"] for each in expected], abs=1e-4)


def test_minimal_pairs_are_measured_either_way(
    saved: tuple[str, Any, Any], own_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (plain_scores(saved, Tokenizer.load(own_tokenizer), sentence) for sentence in SENTENCES)
    pair = {"sentence_good": SENTENCES[0], "sentence_bad": SENTENCES[1]}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n", "utf-8")
    start = ["evaluate", "blimp", "--model", saved[0], "--data", tmp_path, "--precision", "fp32"]
    for direction, options in (("both", ["--masking", "piece"]), ("left", [])):
        metrics, _ = run_json(capsys, *start, "--direction", direction, *options, "--out", tmp_path / direction)
        assert (metrics["accuracy"], metrics["direction"]) == (float(good[direction] > bad[direction]), direction)
    left = run_json(capsys, *start, "--direction", "left", "--out", tmp_path / "both", code=2)[1]
    assert "another folder" in left
    assert "--direction" in run_json(capsys, "evaluate", "sst2", *start[2:4], "--direction", "left", code=2)[1]


def test_directions_that_are_refused(saved: tuple[str, Any, Any]) -> None:
    with pytest.raises(InputError, match="direction left: is for a GPT-BERT"):
        open_scorer("small-wiki", direction="left")
    with pytest.raises(InputError, match="direction 'right': allowed are both, left"):
        ScoreSettings(**dict[str, Any](direction="right"))
    directions: list[tuple[Direction, Direction]] = [("both", "left"), ("left", "both")]
    for opened, other in directions:
        with pytest.raises(InputError, match=f"was opened with the direction {opened}"):
            open_scorer(saved[0], direction=opened).resolve(ScoreSettings(direction=other))


def test_candidates_for_a_mask_are_predicted_from_the_token_before(
    saved: tuple[str, Any, Any], own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer, text = Tokenizer.load(own_tokenizer), "[MASK] old [MASK]."
    ids = framed(tokenizer, text)
    with torch.inference_mode():
        probabilities = saved[1](input_ids=ids).logits[0].softmax(-1)
    expected = [probabilities[at - 1].max(0) for at in (ids[0] == tokenizer.mask_id).nonzero()[:, 0].tolist()]
    masks = run_json(capsys, "fill", text, "--model", saved[0])[0]["masks"]
    assert [each[0]["piece"] for each in masks] == [tokenizer.pieces[int(best.indices)] for best in expected]
    assert [each[0]["probability"] for each in masks] == pytest.approx(
        [float(best.values) for best in expected], abs=1e-6
    )
    assert bw.load(saved[0], precision="fp32").fill(text).masks[0][0].piece == masks[0][0]["piece"]
    # the model with named outputs, which is exported, has the logits of a piece at its own position
    outputs = open_architecture(open_model(saved[0]))(ids, torch.zeros_like(ids), torch.ones_like(ids).bool())
    torch.testing.assert_close(outputs["logits"][0, 1:].double().softmax(-1), probabilities[:-1], atol=1e-5, rtol=1e-4)


def test_a_continuation_is_that_of_a_model_that_reads_the_text_anew(
    saved: tuple[str, Any, Any], own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer, prompt = Tokenizer.load(own_tokenizer), "The old bridge"
    ids = framed(tokenizer, prompt)[:, :-1]
    begin = ids.shape[1]
    with torch.inference_mode():
        while ids.shape[1] <= 40:
            chosen = saved[2](input_ids=ids).logits[:, -1:].argmax(-1)
            if int(chosen) == tokenizer.sep_id:
                break
            ids = torch.cat((ids, chosen), dim=1)
    expected = tokenizer.decode(ids[0, begin:].tolist())
    start = ["generate", saved[0], "--prompt", prompt, "--precision", "fp32"]
    (printed,) = run_json(capsys, *start)[0]["continuations"]
    reached_end = ids.shape[1] <= 40
    assert (printed["text"], printed["stopped"] == "end") == (expected, reached_end)
    assert bw.load(saved[0], precision="fp32").generate(prompt).text == expected
    assert main(["generate", saved[0], "--prompt", "bridge " * 60]) == 2
