"""choices → logits → the best choice: one vector on C scores each choice, softmax over a row's choices (paper §4.4).

Shapes: B rows of a batch, C choices of the row that has most, R choices of all rows, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.model.config import BackboneConfig
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import for_loss
from bertwright.tables.reader import Table
from bertwright.tables.writer import PredictRequest, answer_tables
from bertwright.tasks.binding import BoundTask, LabelledData, TaskKind, file_digests
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.examples import named_table, train_file
from bertwright.tasks.classification.model import Classifier, TextBatch, padded, predict_logits
from bertwright.tasks.classification.split import split_rows
from bertwright.tasks.errors import Errors, EvaluateRequest, write_errors
from bertwright.tasks.inference import ready
from bertwright.tasks.multiple_choice.errors import choice_errors
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


@dataclass(frozen=True)
class ChoiceBatch:
    """All choices of some rows, padded [R, T]; `index` [B, C] has the choices of each row, and -1 for none."""

    rows: TextBatch
    index: Tensor
    targets: Tensor

    @property
    def ids(self) -> Tensor:
        """Return the ids of the choices [R, T]."""
        return self.rows.ids

    @property
    def mask(self) -> Tensor:
        """Return the mask of the choices [R, T]."""
        return self.rows.mask


class ChoiceKind(TaskKind):
    """Multiple-choice tasks."""

    spec = ChoiceTask
    architecture = "BertForMultipleChoice"
    has_pairs = True

    def read(self, task: ChoiceTask, data: Path) -> LabelledData:
        """Read the tables of a folder, or one table; without a validation file a tenth of the rows is kept."""
        path, dev_path = train_file(data), named_table(data, task.dev)
        train = read_choices(task, path)
        digests = file_digests(path, dev_path)
        if dev_path:
            return LabelledData(task, train, {"dev": read_choices(task, dev_path)}, digests)
        say(f"{data}: there is no dev file, so a tenth of the rows, chosen by their texts, is kept for validation")
        texts = ["\n".join([context, *row]) for context, row in zip(train.contexts, train.choices, strict=True)]
        kept, chosen = split_rows(texts, train.source)
        return LabelledData(task, train.select(kept), {"dev": train.select(chosen)}, digests)

    def encode(
        self, task: ChoiceTask, tokenizer: BaseTokenizer, rows: Choices, max_length: int, *, train: bool = False
    ) -> Encoded:
        encoded = encode_choices(tokenizer, rows, max_length=max_length)
        if cut := encoded.num_truncated:
            say(f"{rows.source}: {cut} of {len(encoded)} choices exceed {max_length} tokens and are cut")
        return encoded

    def targets(self, task: ChoiceTask, rows: Choices, inputs: Encoded) -> Choices:
        """Return the rows: they have the numbers of their choices and of the right ones."""
        return rows

    def lengths(self, rows: Choices, inputs: Encoded) -> NDArray[np.int64]:
        """Return the number of tokens of each row's longest choice [N]."""
        return np.array([max(len(inputs.ids[choice]) for choice in range(*span)) for span in pairwise(rows.first)])

    def tokens(self, data: LabelledData, lengths: NDArray[np.int64], config: BackboneConfig) -> NDArray[np.int64]:
        """Return the number of tokens of each row's choices, padded to the longest [N]."""
        rows: Choices = data.train
        return lengths * np.diff(rows.first)

    def collate(self, bound: BoundTask, chosen: NDArray[np.int64]) -> ChoiceBatch:
        return choice_batch(bound.train[1], bound.targets, chosen, pad_id=bound.config.pad_id)

    def model(self, task: ChoiceTask, config: BackboneConfig) -> Classifier:
        return Classifier(config, 1)

    def loss(self, task: ChoiceTask, model: Classifier, batch: ChoiceBatch) -> Tensor:
        """Return the cross entropy over the choices of each row, summed over rows."""
        scores = for_loss(model(batch.rows)[:, 0])  # [R]
        by_row = scores[batch.index.clamp(min=0)].masked_fill(batch.index < 0, -torch.inf)  # [B, C]
        return F.cross_entropy(by_row, batch.targets, reduction="sum")

    def count(self, batch: ChoiceBatch) -> float:
        return float(len(batch.targets))

    def logits(self, model: Classifier, inputs: Encoded) -> NDArray[np.float32]:
        """Return one logit for each choice [R]."""
        return predict_logits(model, inputs)[:, 0]

    def metrics(
        self, task: ChoiceTask, logits: NDArray[np.float32], rows: Choices, inputs: Encoded
    ) -> dict[str, float]:
        best, _ = decode_choices(logits, rows.first)
        assert rows.targets is not None
        same = len(np.unique(best)) == 1 < len(np.unique(rows.targets))
        return {"accuracy": float((best == rows.targets).mean()), "collapsed": float(same)}

    def errors(self, task: ChoiceTask, logits: NDArray[np.float32], rows: Choices, inputs: Encoded) -> Errors:
        return choice_errors(rows, *decode_choices(logits, rows.first))

    def evaluate(
        self, task: ChoiceTask, saved: SavedModel, tokenizer: BaseTokenizer, request: EvaluateRequest
    ) -> dict[str, Any]:
        """Return the accuracy on the validation file of a folder, or on one file."""
        data = request.data
        path = named_table(data, task.dev) if data.is_dir() else data
        if path is None and not request.rows:
            raise InputError(
                f"{data}: expected a dev file ({', '.join(task.dev)}), found none; give the path of a file"
            )
        rows = request.rows or read_choices(task, path or data)
        request.refuse_breaks(chain(rows.contexts, *rows.choices), rows.source)
        model, max_length = open_chooser(saved)
        inputs = self.encode(task, tokenizer, rows, max_length)
        logits = self.logits(model, inputs)
        if request.errors:
            errors = choice_errors(rows, *decode_choices(logits, rows.first))
            write_errors(request.errors, {"dev": errors})
        accuracy = self.metrics(task, logits, rows, inputs)["accuracy"]
        notes = {"left_out": sum(rows.left_out.values())} if rows.left_out else {}
        return {"accuracy": accuracy, "examples": len(rows), **notes}

    def predict(self, saved: SavedModel, tokenizer: BaseTokenizer, request: PredictRequest) -> dict[str, Any]:
        """Choose in every row of a table: the number of the choice and the probabilities are new columns."""
        if request.text:
            raise InputError("--text-column needs a table of one or two texts; a table of choices has fixed columns")
        formats = ("csv", "tsv", "jsonl", "parquet")
        task = ChoiceTask.model_validate(saved.extra["task"])
        request.refuse_formats(f"a model of choices ({task.name})", read=formats, write=formats)
        open_once = cache(lambda: open_chooser(saved))

        read_rows = partial(choices_of, task, require_label=False)

        def answered(table: Table, written: Table) -> Table:
            rows = read_rows(table)
            model, max_length = open_once()
            logits = self.logits(model, self.encode(task, tokenizer, rows, max_length))
            answers = add_answers(written, *decode_choices(logits, rows.first, table.location))
            return request.with_explanations(answers, zip(rows.contexts, rows.choices, strict=True))

        return {"rows": answer_tables(request, answered, check=read_rows, even=False)}


def choice_batch(
    encoded: Encoded, rows: Choices, chosen: Sequence[int] | NDArray[np.int64], *, pad_id: int
) -> ChoiceBatch:
    """Return these rows with all their choices, padded to the longest choice."""
    first = rows.first
    spans = [range(first[row], first[row + 1]) for row in chosen]
    index = np.full((len(spans), max(len(span) for span in spans)), -1, dtype=np.int64)
    begin = 0
    for row, span in enumerate(spans):
        index[row, : len(span)] = np.arange(begin, begin + len(span))
        begin += len(span)
    assert rows.targets is not None
    return ChoiceBatch(
        rows=padded(encoded, [choice for span in spans for choice in span], pad_id=pad_id),
        index=torch.from_numpy(index),
        targets=torch.from_numpy(rows.targets[np.asarray(chosen)]),
    )


def open_chooser(saved: SavedModel) -> tuple[Classifier, int]:
    """Return the model of a fine-tuned folder, ready for inference, and its maximal length."""
    model = Classifier(saved.config, 1)
    load_weights(model, saved)
    return ready(model, saved), saved.max_length


CHOICE = ChoiceKind()
