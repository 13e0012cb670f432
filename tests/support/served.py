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
from bertwright.text.wordpiece import train_tokenizer

TEXTS = ["the quiet harbour", "a garden behind the library", "rain", "the tower and the bridge over the river"]
SST = ClassificationTask(name="t", text=("text",), labels=("no", "yes", "who knows"))


def write_models(place: Path, text: str) -> dict[str, str]:
    """Random models of several kinds, by name, in folders below `place`; their vocabulary is learned from `text`."""
    words = train_tokenizer([text], vocab_size=500)
    words.save(place / "tok")
    config = EncoderConfig(vocab_size=words.vocab_size, hidden=64, layers=2, heads=4, intermediate=96, max_positions=64)
    torch.manual_seed(3)
    given: dict[str, Any] = {"config": config, "tokenizer": place / "tok"}
    save_model(
        place / "lm", PretrainingModel(config, second_sentence="next"), architecture="BertForPreTraining", **given
    )
    kinds = {
        "sst": SST,
        "pair": SST.model_copy(update={"text": ("a", "b")}),
        "many": ClassificationTask(
            name="m", text=("text",), kind="multilabel", labels=("x", "y"), metrics=("micro_f1",)
        ),
        "number": ClassificationTask(name="r", text=("text",), kind="regression", metrics=("pearson",)),
    }
    for name, task in kinds.items():
        model = Classifier(config, task.num_outputs)
        torch.nn.init.normal_(model.classifier.linear.weight, std=1.0)
        extra = {"task": task.model_dump(mode="json"), "max_length": 64}
        save_model(
            place / name,
            model,
            architecture="BertForSequenceClassification",
            labels=task.labels or ("score",),
            extra=extra,
            **given,
        )
    return {name: str(place / name) for name in ("lm", *kinds)}


def broken(folder: str, place: Path) -> Path:
    """A copy of a model whose numbers are none."""
    saved = open_model(folder)
    model = Classifier(saved.config, 3)
    with torch.no_grad():
        model.classifier.linear.weight.fill_(math.nan)
    save_model(
        place,
        model,
        config=saved.config,
        tokenizer=saved.tokenizer,
        architecture=saved.architecture,
        labels=saved.labels,
        extra=saved.extra,
    )
    return place


def overflowing(folder: str, path: Path, word: str) -> str:
    """Copy a model to `path`, with finite weights of which those of `word` are so large that its states are NaN."""
    saved = open_model(folder)
    shutil.copytree(folder, path)
    (path / "model.safetensors.sha256").unlink()
    weights = load_file(path / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("word_embeddings.weight"))
    (piece,) = open_tokenizer(saved).ids([word])[0]
    weights[name][piece] = torch.tensor([3e38, -3e38]).repeat(weights[name].shape[1] // 2)
    assert all(tensor.isfinite().all() for tensor in weights.values())
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return str(path)
