"""words → tags or entities: the kind of task of named-entity recognition (paper §5.3)."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.model.config import BackboneConfig
from bertwright.model.folder import SavedModel
from bertwright.model.heads import for_loss
from bertwright.tables.files import FORMATS
from bertwright.tables.writer import PredictRequest, opened_target
from bertwright.tasks.binding import BoundTask, LabelledData, TaskKind, file_digests
from bertwright.tasks.errors import Errors, EvaluateRequest, write_errors
from bertwright.tasks.feature_based import open_with_features
from bertwright.tasks.frozen_features import FeaturePositions
from bertwright.tasks.tagging.conll import Sentences, read_tag_lines, sentences_of
from bertwright.tasks.tagging.errors import tag_errors
from bertwright.tasks.tagging.files import (
    check_columns,
    sentences_of_texts,
    split_tagged,
    tag_dev_file,
    tag_train_file,
    tagged_lines,
    text_answer,
)
from bertwright.tasks.tagging.model import (
    NO_WORD,
    Tagger,
    TaggingWindows,
    TagRows,
    open_tagger,
    predict_tags,
    tag_rows,
    windows_of,
)
from bertwright.tasks.tagging.spec import (
    Context,
    Tagged,
    TaggingTask,
    decode_tags,
    for_model,
    label_ids,
    learn_tags,
    read_tagged,
    score_tags,
    with_tag_columns,
)
from bertwright.text.base_tokenizer import BaseTokenizer

TagFunction = Callable[[Sentences, Context], Tagged]
"""Function (sentences, context) → tags."""


class TaggingKind(TaskKind):
    """Tasks with one tag per word."""

    spec = TaggingTask
    architecture = "BertForTokenClassification"
    unit = "words"
    feature_unit = "position"

    def read(self, task: TaggingTask, data: Path) -> LabelledData:
        """Read the files of a folder, or one file; without a validation file a tenth of the sentences is kept."""
        path = tag_train_file(data)
        train = read_tagged(task, path)
        task = learn_tags(task, train)
        dev_path = tag_dev_file(data)
        digests = file_digests(path, dev_path)
        if dev_path:
            kept = read_tagged(task, dev_path)
        else:
            train, kept = split_tagged(train)
        return LabelledData(task, train, {"dev": kept}, digests)

    def encode(
        self, task: TaggingTask, tokenizer: BaseTokenizer, rows: Sentences, max_length: int, *, train: bool = False
    ) -> TaggingWindows:
        return _windows(tokenizer, rows, task.context, max_length)

    def targets(self, task: TaggingTask, rows: Sentences, inputs: TaggingWindows) -> NDArray[np.int64]:
        """Return the label id of every word [W]."""
        return label_ids(task, rows)

    def collate(self, bound: BoundTask, chosen: NDArray[np.int64]) -> TagRows:
        return tag_rows(bound.train[1], chosen, pad_id=bound.config.pad_id, labels=bound.targets)

    def model(self, task: TaggingTask, config: BackboneConfig) -> Tagger:
        return Tagger(config, len(task.labels))

    def loss(self, task: TaggingTask, model: Tagger, batch: TagRows) -> Tensor:
        """Return the cross entropy, summed over words."""
        logits = for_loss(model(batch))
        assert batch.targets is not None
        # [B·Q, L] against [B·Q]
        return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=NO_WORD, reduction="sum")

    def count(self, batch: TagRows) -> float:
        assert batch.targets is not None
        return float((batch.targets != NO_WORD).sum())

    def flops(self, model: Tagger, batch: TagRows) -> float:
        """Return the floating-point operations; the last layer computes first pieces only."""
        return 3.0 * len(batch.ids) * model.encoder.flops(batch.ids.shape[1], batch.at.shape[1])

    def logits(self, model: Tagger, inputs: TaggingWindows) -> NDArray[np.float32]:
        """Return the logits of each word [W, L]."""
        return predict_tags(model, inputs, sum(map(len, inputs.words)))

    def metrics(
        self, task: TaggingTask, logits: NDArray[np.float32], rows: Sentences, inputs: TaggingWindows
    ) -> dict[str, float]:
        """Return the metrics over all types."""
        assert rows.tags is not None
        tags = decode_tags(task, logits, rows).tags
        metrics = {name: value for name, value in score_tags(task, tags, rows).items() if "." not in name}
        predicted, true = (np.array([tag for row in sentences for tag in row]) for sentences in (tags, rows.tags))
        same = len(set(predicted)) == 1 and bool((true != predicted[0]).any())
        return {**metrics, "collapsed": float(same)}

    def label_names(self, task: TaggingTask) -> tuple[str, ...]:
        return task.labels

    def feature_positions(self, rows: Sentences, inputs: TaggingWindows) -> FeaturePositions:
        return _positions(rows, inputs)

    def feature_targets(self, task: TaggingTask, rows: Sentences) -> NDArray[np.int64]:
        return label_ids(task, rows)

    def errors(self, task: TaggingTask, logits: NDArray[np.float32], rows: Sentences, inputs: TaggingWindows) -> Errors:
        return tag_errors(task, rows, decode_tags(task, logits, rows))

    def evaluate(
        self, task: TaggingTask, saved: SavedModel, tokenizer: BaseTokenizer, request: EvaluateRequest
    ) -> dict[str, Any]:
        """Return the metrics on the validation file of a folder, or on one file, over all types and by type."""
        data = request.data
        path = tag_dev_file(data) if data.is_dir() else data
        if path is None and not request.rows:
            raise InputError(
                f"{data}: expected a dev file (dev.txt, valid.conll, testa …), found none; give the path of a file"
            )
        task = for_model(task, task_of_model(saved))
        sentences = request.rows or read_tagged(task, path or data)
        request.refuse_breaks((word for words in sentences.words for word in words), sentences.source)
        tagged = open_tagging(saved, tokenizer)[1](sentences, task.context)
        if request.errors:
            write_errors(request.errors, {"dev": tag_errors(task, sentences, tagged)})
        counts = {"sentences": len(sentences), "words": sentences.num_words}
        if sentences.left_out:
            counts["left_out"] = sum(sentences.left_out.values())
        return {**score_tags(task, tagged.tags, sentences), **counts}

    def predict(self, saved: SavedModel, tokenizer: BaseTokenizer, request: PredictRequest) -> dict[str, Any]:
        """Tag every word of a file: its lines get one more column or field; in plain text, find entities."""
        task = task_of_model(saved)
        request.refuse_formats(f"words with tags ({task.name})", read=("jsonl", "lines"), write=("jsonl",))
        if request.is_file and FORMATS.get(request.ending) in ("csv", "parquet"):
            raise InputError(
                f"--output {request.target}: {task.name} writes columns for columns, and JSON lines (.jsonl) otherwise"
            )
        if request.input_format == "lines":
            return predict_texts(saved, tokenizer, request)
        request.refuse_explanations("a file of words", "give one text per line, with --raw")
        task = with_tag_columns(task, text=request.text)
        lines = read_tag_lines(request.source, request.input_format)
        if request.output_format == "jsonl" != lines.format:
            raise InputError(
                f"--output-format jsonl: {lines.source} has columns of words, which are kept; use --raw for texts"
            )
        _refuse_ending(request, objects=lines.format == "jsonl")
        check_columns(task, lines)
        sentences = sentences_of(lines, task.columns, with_tags=False)
        tagged = open_tagging(saved, tokenizer)[1](sentences, task.context)
        _write(request, tagged_lines(task, lines, tagged))
        return {"sentences": len(sentences), "words": sentences.num_words}


def _refuse_ending(request: PredictRequest, *, objects: bool) -> None:
    """Raise InputError where the ending of the output is JSON lines' and columns are written, or the reverse."""
    ending = request.ending
    if not request.is_file or request.output_format != "auto":
        return
    if not objects and FORMATS.get(ending) == "jsonl":
        raise InputError(
            f"--output {request.target}: {request.source} has columns of words, which are kept; use --raw for texts"
        )
    if objects and (ending == ".tsv" or ending.startswith(".conll")):
        raise InputError(f"--output {request.target}: expected a file .jsonl, because JSON lines are written")


def predict_texts(saved: SavedModel, tokenizer: BaseTokenizer, request: PredictRequest) -> dict[str, Any]:
    """Find the entities in each line of a plain text alone; write one JSON object for each line, also an empty one."""
    lines = read_tag_lines(request.source)
    if lines.format == "jsonl" and request.source != "-":
        raise InputError(
            f"{request.source}: --raw needs plain text, one per line; JSON lines have words in the field `tokens`"
        )
    _refuse_ending(request, objects=True)
    texts = [line.rstrip("\r\n") for line in lines.lines]
    spans, sentences = sentences_of_texts(tokenizer, texts, lines.source)
    task, tagged = open_tagging(saved, tokenizer)
    predicted = tagged(sentences, "off")
    rows = zip(texts, spans, predicted.tags, predicted.by_sentence, strict=True)
    answers = [text_answer(task, *row) for row in rows]
    _write(request, (json.dumps(answer, ensure_ascii=False) + "\n" for answer in request.explained(answers, texts)))
    return {"texts": len(texts), "words": len(predicted.probabilities)}


def task_of_model(saved: SavedModel) -> TaggingTask:
    """Return the task stored in a model folder, with its labels in the order of the outputs."""
    task = TaggingTask.model_validate(saved.extra["task"])
    if sorted(task.labels) != sorted(saved.labels):
        raise InputError(
            f"{saved.source}: config.json has the labels {', '.join(saved.labels)} in id2label "
            f"and {', '.join(task.labels)} in the task; they must be equal"
        )
    return task.model_copy(update={"labels": saved.labels})


def open_tagging(saved: SavedModel, tokenizer: BaseTokenizer) -> tuple[TaggingTask, TagFunction]:
    """Return the task of a fine-tuned model folder, and the function that tags sentences."""
    task, max_length = task_of_model(saved), saved.max_length
    if "features" in saved.extra:
        logits_of = open_with_features(saved)

        def logits(sentences: Sentences, windows: TaggingWindows) -> NDArray[np.float32]:
            return logits_of(_positions(sentences, windows))
    else:
        model = open_tagger(saved, len(task.labels))

        def logits(sentences: Sentences, windows: TaggingWindows) -> NDArray[np.float32]:
            return predict_tags(model, windows, sentences.num_words)

    def tagged(sentences: Sentences, context: Context) -> Tagged:
        return decode_tags(task, logits(sentences, _windows(tokenizer, sentences, context, max_length)), sentences)

    return task, tagged


def _windows(tokenizer: BaseTokenizer, sentences: Sentences, context: Context, max_length: int) -> TaggingWindows:
    """Return the rows of token ids; print words without pieces, and that a file marks no documents."""
    if context == "documents" and sentences.documents is None and len(sentences) > 1:
        say(f"{sentences.source}: marks no documents; each sentence is read alone")
    windows = windows_of(tokenizer, sentences, context=context, max_length=max_length)
    if windows.vanished:
        ends = np.cumsum([len(row) for row in sentences.words])
        row = int(np.searchsorted(ends, windows.vanished[0], side="right"))
        word = windows.vanished[0] - int(ends[row]) + len(sentences.words[row])
        say(
            f"{sentences.source}: words without pieces, read as [UNK]: "
            f"{len(windows.vanished)}, the first {sentences.location(row, word)} ({sentences.words[row][word]!a})"
        )
    return windows


def _positions(sentences: Sentences, windows: TaggingWindows) -> FeaturePositions:
    """Return the first piece of every word, sentence by sentence."""
    rows = list(zip(windows.ids, windows.at, windows.words, strict=True))
    return FeaturePositions(rows, np.cumsum([0, *map(len, sentences.words)]))


def _write(request: PredictRequest, lines: Iterable[str]) -> None:
    with opened_target(request) as stream:
        for line in lines:
            stream.write(line.encode())


TAGGING = TaggingKind()
