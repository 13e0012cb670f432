"""Two finished models side by side: the states of both, one folder, and what is no pair."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bertwright.cli import main
from bertwright.model.backbones import build_backbone
from bertwright.model.families.elmo import PairConfig
from bertwright.model.folder import load_weights, open_model, save_model
from bertwright.model.system import System, system_config
from bertwright.objectives.language_model import LanguageModel
from bertwright.text.wordpiece import Tokenizer, train_wordpiece


def saved(folder: Path, system: System, words: Path, *, size: str = "tiny", **extra: Any) -> Path:
    """A language model of random weights in a folder."""
    config = system_config(system, size, Tokenizer.load(words).vocab_size)
    torch.manual_seed(len(system))
    model = LanguageModel(config) if config.attends != "both" else torch.nn.ModuleDict({})
    save_model(
        folder / system, model, config=config, tokenizer=words, architecture="BertwrightLanguageModel", extra=extra
    )
    return folder / system


def joined(left: Path, right: Path, out: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["join", str(left), str(right), "--out", str(out)]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


@pytest.mark.parametrize("kind", ["bert", "lstm"])
def test_a_pair_has_the_states_of_its_two_models(
    kind: str, tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [saved(tmp_path, f"{kind}-{side}", own_tokenizer) for side in ("left", "right")]  # type: ignore[arg-type]
    joined(*folders, tmp_path / "pair", capsys)
    opened = open_model(str(tmp_path / "pair"))
    assert isinstance(opened.config, PairConfig)
    assert (opened.config.hidden, opened.architecture) == (256, "BertwrightPair")
    assert set(opened.weights or {}) == {f"encoder.{name}" for name in build_backbone(opened.config).state_dict()}
    pair = torch.nn.ModuleDict({"encoder": build_backbone(opened.config)}).eval()
    load_weights(pair, opened)
    ids = torch.randint(5, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    inputs = ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)
    with torch.inference_mode():
        states = []
        for folder in folders:
            half = open_model(str(folder))
            model = LanguageModel(half.config)  # type: ignore[arg-type]
            load_weights(model, half)
            states.append(model.eval().encoder(*inputs).last)
        torch.testing.assert_close(pair["encoder"](*inputs).last, torch.cat(states, -1), atol=1e-6, rtol=1e-5)
    card = (tmp_path / "pair" / "README.md").read_text("utf-8")
    assert "side by side" in card
    assert str(tmp_path) not in card
    assert json.loads((tmp_path / "pair" / "config.json").read_text())["model_type"] == "bertwright-pair"
    assert (tmp_path / "pair" / "vocab.txt").read_bytes() == (own_tokenizer / "vocab.txt").read_bytes()


def test_what_is_no_pair(
    tmp_path: Path, own_tokenizer: Path, own_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right, lstm = (saved(tmp_path, name, own_tokenizer) for name in ("bert-left", "bert-right", "lstm-right"))  # type: ignore[arg-type]
    out = tmp_path / "pair"
    assert "got right and left" in joined(right, left, out, capsys, 2)
    assert "attend to the left and to the right, got left and left" in joined(left, left, out, capsys, 2)
    assert "an LSTM and a Transformer are no pair" in joined(left, lstm, out, capsys, 2)
    assert "is a GPT-1; a pair is" in joined(saved(tmp_path, "gpt", own_tokenizer), right, out, capsys, 2)
    deep = saved(tmp_path / "deep", "bert-right", own_tokenizer, size="mini")
    assert "layers is 2 in one of the two models and 4 in the other" in joined(left, deep, out, capsys, 2)
    tuned = saved(tmp_path / "tuned", "bert-right", own_tokenizer, task={"name": "sst2"})
    assert "was fine-tuned" in joined(left, tuned, out, capsys, 2)
    train_wordpiece([own_text.read_text("utf-8")[::-1]], vocab_size=500).save(tmp_path / "other")
    foreign = saved(tmp_path / "foreign", "bert-right", tmp_path / "other")
    assert "has another tokenizer than" in joined(left, foreign, out, capsys, 2)
    assert not out.exists()
    out.mkdir()
    assert "already exists" in joined(left, right, out, capsys, 2)
    assert not list(out.iterdir())


def test_a_pair_is_not_joined_again(tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [saved(tmp_path, name, own_tokenizer) for name in ("lstm-left", "lstm-right")]  # type: ignore[arg-type]
    joined(*folders, tmp_path / "pair", capsys)
    assert "is a composition of models" in joined(tmp_path / "pair", folders[1], tmp_path / "again", capsys, 2)
