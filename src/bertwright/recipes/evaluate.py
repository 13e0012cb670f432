"""model → figures and predictions: the commands evaluate and predict."""

import sys
from pathlib import Path
from typing import Any

import torch

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.files import atomic_file
from bertwright.model.folder import open_model
from bertwright.prediction.classifier import open_classifier, open_tokenizer, predict_logits
from bertwright.prediction.fill import open_pretrained, second_objective
from bertwright.recipes.pretrain import HeldOut
from bertwright.recipes.settings import HELD_OUT_ROWS
from bertwright.tasks.classify import (
    ClassificationTask,
    add_predictions,
    decode,
    encode,
    score,
    with_columns,
    with_labels,
    with_texts_of,
)
from bertwright.tasks.examples import dev_files, examples_of, read_examples
from bertwright.tasks.tables import read_table, write_table
from bertwright.training.machine import keep_memory


def evaluate_pretraining(model: str, corpus: Path, *, rows: int = HELD_OUT_ROWS, length: int = 128) -> dict[str, Any]:
    """Held-out figures: the first `rows` rows of `length` tokens of the next-sentence walk with seed 0, 80/10/10.

    Where the model learned sentence order, that is measured on as many rows of its own walk.
    """
    keep_memory()
    saved = open_model(model)
    data = Corpus.open(corpus)
    if rows < 1 or not 8 <= length <= saved.config.max_positions:
        raise InputError(f"rows {rows}, length {length}: at least 1 row of 8 to {saved.config.max_positions} tokens")
    if open_tokenizer(saved).hash != data.tokenizer_hash:
        raise InputError(f"{corpus}: was built with another tokenizer than the one of {model}")
    loaded = open_pretrained(saved, second_sentence=second_objective(saved))
    held_out = HeldOut.of([(data, 1.0)], loaded.second_sentence, rows=rows, length=length)
    with torch.inference_mode():
        return held_out.figures(loaded)


def evaluate_task(
    task: ClassificationTask, *, model: str, data: Path, text: tuple[str, ...] = (), label: str | None = None
) -> dict[str, Any]:
    """The task's metrics of a fine-tuned model on the dev files of a folder, or on one file.

    `text` and `label` name columns that are called otherwise than in training.
    """
    keep_memory()
    saved = open_model(model)
    classifier, trained, max_length = open_classifier(saved)
    asked = with_labels(task, trained.labels) if task.kind == "classification" else task
    if asked.kind != trained.kind:
        raise InputError(f"{model}: was fine-tuned for {trained.kind} ({trained.name}); {task.name} is {task.kind}")
    own: dict[str, Any] = {"centre": trained.centre, "spread": trained.spread}
    if asked.name == trained.name:
        own |= {"text": trained.text, "label": trained.label}
    asked = with_texts_of(with_columns(asked.model_copy(update=own), text=text, label=label), trained, model)
    files = dev_files(asked, data)
    if not files:
        raise InputError(f"{data}: holds no dev file of {task.name}; name a file")
    words = open_tokenizer(saved)
    figures: dict[str, Any] = {}
    for name, path in files.items():
        part = read_examples(asked, path)
        logits = predict_logits(classifier, encode(words, part.texts_a, part.texts_b, max_length=max_length))
        prefix = "" if len(files) == 1 else f"{name}."
        assert part.targets is not None
        figures |= {f"{prefix}{key}": value for key, value in score(asked, logits, part.targets).items()}
        figures[f"{prefix}examples"] = len(part)
    return figures


def predict(model: str, source: str, target: str, *, text: tuple[str, ...] = ()) -> dict[str, Any]:
    """Answer every row of a table; order and fields are kept, label and probabilities (or score) are added."""
    keep_memory()
    if target != "-" and not Path(target).absolute().parent.is_dir():
        raise InputError(f"--output {target}: there is no folder {Path(target).parent}")
    saved = open_model(model)
    classifier, task, max_length = open_classifier(saved)
    task = with_texts_of(with_columns(task, text=text), task, model)
    table = read_table(source, headerless=task.columns)
    part = examples_of(task, table, require_label=False)
    words = open_tokenizer(saved)
    logits = predict_logits(classifier, encode(words, part.texts_a, part.texts_b, max_length=max_length))
    answered = add_predictions(task, table, decode(task, logits))
    if target == "-":
        write_table(answered, sys.stdout.buffer)
        sys.stdout.flush()
    else:
        with atomic_file(Path(target)) as stream:
            write_table(answered, stream)
    return {"rows": len(table), "output": target, "task": task.name, **({"text": None} if target == "-" else {})}
