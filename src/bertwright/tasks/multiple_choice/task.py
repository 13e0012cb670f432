"""encoder → task: every choice scored by one vector on C, softmax over a row's choices (paper §4.4).

Shapes: B rows of a batch, C choices of the row that has most, R choices of all rows, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import file_digest
from bertwright.model.config import BackboneConfig, need_segments
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import for_loss
from bertwright.tables.reader import Table
from bertwright.tables.writer import Asked, answer_tables
from bertwright.tasks.binding import Answered, Kind, Work
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.examples import named_table, split_rows, train_file
from bertwright.tasks.classification.model import Classifier, Rows, padded, predict_logits
from bertwright.tasks.inference import ready
from bertwright.tasks.multiple_choice.spec import (
    Choices,
    ChoiceTask,
    add_answers,
    choices_of,
    decode_choices,
    encode_choices,
    read_choices,
)
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.distributed import Trainable


@dataclass(frozen=True)
class ChoiceBatch:
    """All choices of some rows, padded [R, T]; `place` [B, C] says which of them are a row's, and -1 is none."""

    rows: Rows
    place: Tensor
    targets: Tensor

    @property
    def mask(self) -> Tensor:
        """That of the choices [R, T]."""
        return self.rows.mask


def prepare(task: ChoiceTask, data: Path, words: BaseTokenizer, config: BackboneConfig, max_length: int) -> Work[Any]:
    """The task bound to the tables of a folder, or to one table, of which a tenth is then kept for measuring."""
    need_segments(config, task.name)
    train, dev = load_data(task, data)
    encoded, measured = (encode_choices(words, part, max_length=max_length) for part in (train, dev))
    for part, rows in ((train, encoded), (dev, measured)):
        _say_what_is_cut(part, rows, max_length)
    longest = np.array([max(len(encoded.ids[choice]) for choice in range(*span)) for span in pairwise(train.first)])
    dev_file = named_table(data, task.dev)

    def evaluated(model: Any) -> dict[str, float]:
        best, _ = decode_choices(predict_logits(model, measured)[:, 0], dev.first)
        assert dev.targets is not None
        accuracy = float((best == dev.targets).mean())
        same = len(np.unique(best)) == 1 < len(np.unique(dev.targets))
        return {"accuracy": accuracy, "collapsed": float(same)}

    return Work(
        task=task,
        digests={
            "train": file_digest(train_file(data)),
            "dev": {dev_file.name: file_digest(dev_file)} if dev_file else {},
        },
        lengths=longest,
        tokens=longest * np.diff(train.first),
        head="classifier",
        build=lambda shape: Classifier(shape, 1),
        batch=lambda chosen: choice_batch(encoded, train, chosen, pad_id=config.pad_id),
        trainable=lambda model: choice_trainable(_chooser(model)),
        evaluate=lambda model: evaluated(_chooser(model)),
        answered=lambda model: Answered(
            model, "BertForMultipleChoice", (), {"task": task.model_dump(mode="json"), "max_length": max_length}
        ),
    )


def load_data(task: ChoiceTask, data: Path) -> tuple[Choices, Choices]:
    """Train and dev."""
    train = read_choices(task, train_file(data))
    path = named_table(data, task.dev)
    if path:
        return train, read_choices(task, path)
    say(f"{data}: no dev file; a tenth of the rows, chosen by their texts, is kept for measuring")
    texts = ["\n".join([context, *given]) for context, given in zip(train.contexts, train.choices, strict=True)]
    kept, measured = split_rows(texts, train.source)
    return train.select(kept), train.select(measured)


def choice_batch(
    encoded: Encoded, rows: Choices, chosen: Sequence[int] | NDArray[np.int64], *, pad_id: int
) -> ChoiceBatch:
    """The given rows with all their choices, padded to the longest choice."""
    first = rows.first
    spans = [range(first[row], first[row + 1]) for row in chosen]
    place = np.full((len(spans), max(len(span) for span in spans)), -1, dtype=np.int64)
    begin = 0
    for row, span in enumerate(spans):
        place[row, : len(span)] = np.arange(begin, begin + len(span))
        begin += len(span)
    assert rows.targets is not None
    return ChoiceBatch(
        rows=padded(encoded, [choice for span in spans for choice in span], pad_id=pad_id),
        place=torch.from_numpy(place),
        targets=torch.from_numpy(rows.targets[np.asarray(chosen)]),
    )


def choice_trainable(model: Classifier) -> Trainable[ChoiceBatch]:
    """What the loop trains: cross entropy over the choices of each row, summed over rows."""

    def step(batch: ChoiceBatch) -> dict[str, tuple[Tensor, str]]:
        scores = for_loss(model(batch.rows)[:, 0])  # [R]
        by_row = scores[batch.place.clamp(min=0)].masked_fill(batch.place < 0, -torch.inf)  # [B, C]
        return {"loss": (F.cross_entropy(by_row, batch.targets, reduction="sum"), "rows")}

    return Trainable(
        module=model,
        blocks=model.encoder.blocks(),
        step=step,
        counts=lambda batch: {"rows": float(len(batch.targets))},
        flops=lambda batch: 3.0 * len(batch.rows.ids) * model.encoder.flops(batch.rows.ids.shape[1], 1),
        tokens=lambda batch: int(batch.rows.mask.sum()),
    )


def evaluate(task: ChoiceTask, saved: SavedModel, words: BaseTokenizer, data: Path) -> dict[str, Any]:
    """Accuracy on the dev file of a folder, or on one file."""
    path = named_table(data, task.dev) if data.is_dir() else data
    if path is None:
        raise InputError(f"{data}: holds no dev file ({', '.join(task.dev)}); name a file")
    rows = read_choices(task, path)
    best, _ = _answers(open_chooser(saved), words, rows)
    assert rows.targets is not None
    return {"accuracy": float((best == rows.targets).mean()), "examples": len(rows)}


def predict(saved: SavedModel, words: BaseTokenizer, asked: Asked) -> dict[str, Any]:
    """Choose in every row of a table; order and fields are kept, the choice's number and probabilities are added."""
    if asked.text:
        raise InputError("--text-column is for tables of one or two texts; a table of choices has columns of its own")
    every = ("csv", "tsv", "jsonl", "parquet")
    task = ChoiceTask.model_validate(saved.extra["task"])
    asked.refuse_formats(f"a model of choices ({task.name})", read=every, write=every)
    opened = cache(lambda: open_chooser(saved))

    def answered(table: Table, written: Table) -> Table:
        rows = choices_of(task, table, require_label=False)
        return add_answers(written, *_answers(opened(), words, rows))

    return {"rows": answer_tables(asked, answered, even=False)}


def _say_what_is_cut(rows: Choices, encoded: Encoded, max_length: int) -> None:
    if cut := encoded.num_truncated:
        say(f"{rows.source}: {cut} of {len(encoded)} choices exceed {max_length} tokens and are cut")


def open_chooser(saved: SavedModel) -> tuple[Classifier, int]:
    """The model of a fine-tuned folder, ready to answer, and its maximal length."""
    model = Classifier(saved.config, 1)
    load_weights(model, saved)
    return ready(model, saved), saved.max_length


def _answers(
    opened: tuple[Classifier, int], words: BaseTokenizer, rows: Choices
) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    model, max_length = opened
    encoded = encode_choices(words, rows, max_length=max_length)
    _say_what_is_cut(rows, encoded, max_length)
    return decode_choices(predict_logits(model, encoded)[:, 0], rows.first)


def _chooser(model: Any) -> Classifier:
    assert isinstance(model, Classifier)
    return model


CHOICE = Kind(ChoiceTask, prepare, evaluate, predict)
