"""Model folders to answer with: random weights of several kinds, and one whose numbers are none."""

import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model, save_model
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.model import Classifier
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.text.wordpiece import train_wordpiece
from tests.support.encoders import save_classifier

TEXTS = ["the quiet harbour", "a garden behind the library", "rain", "the tower and the bridge over the river"]
SST = ClassificationTask(name="t", text=("text",), labels=("no", "yes", "who knows"))


def write_models(folder: Path, text: str) -> dict[str, str]:
    """Write random models of several kinds, their vocabulary learned from `text`; return their folders by name."""
    words = train_wordpiece([text], vocab_size=500)
    words.save(folder / "tok")
    config = EncoderConfig(vocab_size=words.vocab_size, hidden=64, layers=2, heads=4, intermediate=96, max_positions=64)
    torch.manual_seed(3)
    common: dict[str, Any] = {"config": config, "tokenizer": folder / "tok"}
    save_model(
        folder / "lm", PretrainingModel(config, second_sentence="next"), architecture="BertForPreTraining", **common
    )
    kinds = {
        "sst": SST,
        "pair": SST.model_copy(update={"text": ("a", "b")}),
        "many": ClassificationTask(
            name="m", text=("text",), kind="multilabel", labels=("x", "y"), metrics=("micro_f1",)
        ),
        "relevance": SST.model_copy(update={"text": ("query", "document"), "labels": ("irrelevant", "relevant")}),
        "number": ClassificationTask(name="r", text=("text",), kind="regression", metrics=("pearson",)),
    }
    for name, task in kinds.items():
        model = Classifier(config, task.num_outputs)
        torch.nn.init.normal_(model.classifier.linear.weight, std=1.0)
        save_classifier(folder / name, model, task, folder / "tok", 64)
    return {name: str(folder / name) for name in ("lm", *kinds)}


def broken(folder: str, path: Path) -> Path:
    """A copy of a model whose numbers are none."""
    saved = open_model(folder)
    model = Classifier(saved.config, 3)
    with torch.no_grad():
        model.classifier.linear.weight.fill_(math.nan)
    save_model(
        path,
        model,
        config=saved.config,
        tokenizer=saved.tokenizer,
        architecture=saved.architecture,
        labels=saved.labels,
        extra=saved.extra,
    )
    return path


def overflowing(folder: str, path: Path, word: str) -> str:
    """Copy a model to `path`, with finite weights of which those of `word` are so large that its states are NaN."""
    saved = open_model(folder)
    shutil.copytree(folder, path)
    (path / "model.safetensors.sha256").unlink()
    weights = load_file(path / "model.safetensors")
    (name,) = (name for name in weights if name.endswith(("word_embeddings.weight", "wte.weight")))
    (piece,) = open_tokenizer(saved).ids([word])[0]
    weights[name][piece] = torch.tensor([3e38, -3e38]).repeat(weights[name].shape[1] // 2)
    assert all(tensor.isfinite().all() for tensor in weights.values())
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return str(path)
