"""question and passage → logits of the vectors S and E on every token → answers (paper §4.2, §4.3).

Shapes: B windows of a batch, T tokens, N windows in all.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_folder, write_json
from bertwright.model.backbones import build_backbone
from bertwright.model.config import BackboneConfig, predicts_next
from bertwright.model.encoder import gather_rows
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import SpanHead, token_transform
from bertwright.tables.files import FORMATS
from bertwright.tables.writer import PredictRequest, opened_target
from bertwright.tasks.binding import BoundTask, LabelledData, ModelToSave, TaskKind, file_digests
from bertwright.tasks.classification.split import split_rows
from bertwright.tasks.errors import Errors, EvaluateRequest, write_errors
from bertwright.tasks.inference import answered_batches, evaluating, padded_inputs, ready
from bertwright.tasks.question_answering.answers import Answer, SpanLogits, decode_spans, score_spans
from bertwright.tasks.question_answering.data import (
    Questions,
    read_labelled,
    read_unlabelled,
    refuse_version,
)
from bertwright.tasks.question_answering.errors import question_errors
from bertwright.tasks.question_answering.files import dev_questions_file, train_questions_file
from bertwright.tasks.question_answering.score import flat_metrics, squad_metrics
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.question_answering.windows import Windows, cached_windows, encode_windows
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.hardware import module_device, move_to_device

_FILES: Final = ("predictions.json", "nbest.json", "null_odds.json")


@dataclass(frozen=True)
class SpanRows:
    """A padded batch: `ids`, `segments`, `mask` [B, T]; `targets` [B, 2] are the answer's first and last position."""

    ids: Tensor
    segments: Tensor
    mask: Tensor
    targets: Tensor


class SpanModel(nn.Module):
    """A backbone and the vectors S and E on each of its last states.

    "No answer" is the position 0, at [CLS]. Where tokens attend to the left, the state of [CLS] depends on [CLS] alone.
    It then changes places with the state of the row's last token, which depends on question and passage.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.encoder = build_backbone(config)
        self.pooler = token_transform(config)
        self.span = SpanHead(config)
        self.swaps = predicts_next(config)

    def forward(self, rows: SpanRows) -> tuple[Tensor, Tensor]:
        """Return logits of the first and of the last position, each [B, T]; those of "no answer" are at position 0."""
        last = self.encoder(rows.ids, rows.segments, rows.mask).last
        if self.swaps:
            last = gather_rows(last, _ends_swapped(rows.mask))
        start, end = self.span(self.pooler(last)).unbind(-1)
        return start, end


def _ends_swapped(mask: Tensor) -> Tensor:
    """Return the positions 0 to T - 1 [B, T], with those of the first and the last real token exchanged."""
    ends = mask.sum(1, keepdim=True) - 1
    positions = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    return torch.where(positions == 0, ends, torch.where(positions == ends, 0, positions))


class SpanKind(TaskKind):
    """Tasks whose answers are spans of a passage."""

    spec = SpanTask
    architecture = "BertForQuestionAnswering"
    head = "span"
    has_pairs = True

    def read(self, task: SpanTask, data: Path) -> LabelledData:
        """Read the files of a folder, or one file; without a validation file a tenth of the passages is kept."""
        path, dev_path = train_questions_file(task, data), dev_questions_file(task, data)
        train = read_labelled(task, path)
        digests = file_digests(path, dev_path)
        if dev_path:
            return LabelledData(task, train, {"dev": read_labelled(task, dev_path)}, digests)
        say(
            f"{data}: there is no dev file, so the questions on a tenth of {path.name}'s passages are kept for "
            "validation"
        )
        sides = split_rows([question.context for question in train.items], train.source)
        train, kept = (replace(train, items=tuple(train.items[row] for row in rows)) for rows in sides)
        return LabelledData(task, train, {"dev": kept}, digests)

    def encode(
        self, task: SpanTask, tokenizer: BaseTokenizer, rows: Questions, max_length: int, *, train: bool = False
    ) -> Windows:
        """Return the cached windows of questions, with the answers' positions for training; print long questions."""
        windows = cached_windows(tokenizer, rows, task, max_length=max_length, targets=train)
        _say_what_is_cut(windows, rows)
        return windows

    def token_ids(self, inputs: Windows) -> tuple[NDArray[np.int32], ...]:
        """Return the ids of all passages, and of all questions."""
        return inputs.pieces, inputs.question_ids

    def targets(self, task: SpanTask, rows: Questions, inputs: Windows) -> None:
        """Return None: the windows have the positions of the answers."""

    def row_names(self, rows: Questions) -> tuple[str, ...]:
        return tuple(question.id for question in rows.items)

    def lengths(self, rows: Questions, inputs: Windows) -> NDArray[np.int64]:
        return inputs.lengths

    def collate(self, bound: BoundTask, chosen: NDArray[np.int64]) -> SpanRows:
        return span_batch(bound.train[1], chosen, pad_id=bound.config.pad_id)

    def model(self, task: SpanTask, config: BackboneConfig) -> SpanModel:
        return SpanModel(config)

    def loss(self, task: SpanTask, model: SpanModel, batch: SpanRows) -> Tensor:
        """Return the mean of the cross entropies of the first and the last position, summed over windows."""
        start, end = (
            # without padding, so that a row's loss does not depend on its batch
            F.cross_entropy(logits.float().masked_fill(~batch.mask, -torch.inf), targets, reduction="sum")
            for logits, targets in zip(model(batch), batch.targets.unbind(1), strict=True)
        )
        return (start + end) / 2

    def flops(self, model: SpanModel, batch: SpanRows) -> float:
        """Return the floating-point operations; every position of the last layer is computed."""
        num_rows, width = batch.ids.shape
        return 3.0 * num_rows * model.encoder.flops(width, width)

    def logits(self, model: SpanModel, inputs: Windows) -> SpanLogits:
        return span_logits(model, inputs)

    def metrics(self, task: SpanTask, logits: SpanLogits, rows: Questions, inputs: Windows) -> dict[str, float]:
        """Return F1 and exact match in percent; in 2.0 also the threshold of the null odds with the best F1."""
        scores, threshold, same = score_spans(inputs, logits, rows, task)
        notes = {"null_threshold": threshold} if task.null else {}
        return {
            **flat_metrics(scores, null=task.null),
            **notes,
            "collapsed": float(same and len(rows) > 1 and scores.em.min() < 1),
        }

    def errors(self, task: SpanTask, logits: SpanLogits, rows: Questions, inputs: Windows) -> Errors:
        scores, threshold, _ = score_spans(inputs, logits, rows, task)
        answers = decode_spans(inputs, logits, rows, task, threshold=threshold)
        return question_errors(rows, answers, scores)

    def to_save(self, task: SpanTask, model: nn.Module, metrics: Mapping[str, float], max_length: int) -> ModelToSave:
        """Return the model as it is saved; in 2.0 with the threshold that was chosen for it."""
        saved = super().to_save(task, model, metrics, max_length)
        if not task.null:
            return saved
        return replace(saved, extra={**saved.extra, "null_threshold": metrics.get("null_threshold", 0.0)})

    def evaluate(
        self, task: SpanTask, saved: SavedModel, tokenizer: BaseTokenizer, request: EvaluateRequest
    ) -> dict[str, Any]:
        """Return F1 and exact match in percent on the validation file, at the threshold chosen in training."""
        model, trained, max_length, threshold = open_span_model(saved)
        if task.null and not trained.null:
            raise InputError(f"{saved.source}: expected a model for {task.name}, got one for {trained.name}")
        path = dev_questions_file(task, request.data, needed=not request.rows)
        questions = request.rows or read_labelled(task, path or request.data)
        refuse_version(task, questions)
        request.refuse_breaks(chain.from_iterable((q.id, q.text, q.context) for q in questions.items), questions.source)
        windows = self.encode(trained, tokenizer, questions, max_length)
        logits = span_logits(model, windows)
        scores, _, _ = score_spans(windows, logits, questions, task, threshold=threshold)
        if request.errors:
            answers = decode_spans(windows, logits, questions, task, threshold=threshold)
            write_errors(request.errors, {"dev": question_errors(questions, answers, scores)})
        notes: dict[str, Any] = {"null_threshold": threshold} if task.null else {}
        notes |= {"left_out": sum(questions.left_out.values())} if questions.left_out else {}
        return squad_metrics(scores, null=task.null) | notes

    def predict(self, saved: SavedModel, tokenizer: BaseTokenizer, request: PredictRequest) -> dict[str, Any]:
        """Answer every question. "-" and *.jsonl get one line each; any other name is a folder of three files."""
        if request.text:
            raise InputError("--text-column needs a table; questions have the fields id, question and context")
        model, task, max_length, threshold = open_span_model(saved)
        request.refuse_formats(f"questions ({task.name})", read=("jsonl", "parquet"), write=("jsonl",))
        target = request.target
        as_lines = target == "-" or request.ending == ".jsonl" or request.output_format == "jsonl"
        if as_lines and Path(target).is_dir():
            raise InputError(f"--output {target}: expected a file or - for JSON lines, got a folder")
        if not as_lines:
            request.refuse_explanations("a folder", "name a file *.jsonl, or -")
            _refuse_other_content(Path(target), request.ending)
        questions = read_unlabelled(request.source, request.input_format)
        windows = encode_windows(tokenizer, questions, task, max_length=max_length)
        _say_what_is_cut(windows, questions)
        answers = decode_spans(windows, span_logits(model, windows), questions, task, threshold=threshold)
        if not as_lines:
            with atomic_folder(Path(target)) as folder:
                _refuse_other_content(Path(target), request.ending)  # it may have been made meanwhile
                _write_folder(folder, answers, task)
            return {"questions": len(answers)}
        objects = request.explained([*map(_line, answers)], [(each.text, each.context) for each in questions.items])
        lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in objects).encode()
        with opened_target(request) as stream:
            stream.write(lines)
        return {"questions": len(answers)}


def span_batch(windows: Windows, rows: NDArray[np.int64], *, pad_id: int) -> SpanRows:
    """Return these windows, padded to the longest."""
    inputs = padded_inputs([windows.row(int(row)) for row in rows], windows.first_piece[rows], pad_id=pad_id)
    return SpanRows(*inputs, targets=torch.from_numpy(windows.target[rows].astype(np.int64)))


def span_logits(model: SpanModel, windows: Windows) -> SpanLogits:
    """Return the logits of all windows, computed in batches of similar length with dropout off."""
    lengths, sizes = windows.lengths, windows.sizes
    begins, firsts = np.cumsum(sizes) - sizes, windows.first_piece
    start_end = [np.zeros(int(sizes.sum()), dtype=np.float32) for _ in range(2)]
    null = np.zeros(len(windows), dtype=np.float32)
    with evaluating(model):
        for rows in answered_batches(lengths, "windows answered"):
            batch = move_to_device(span_batch(windows, rows, pad_id=model.encoder.config.pad_id), module_device(model))
            for flat, logits in zip(start_end, model(batch), strict=True):
                values = logits.float().cpu().numpy()
                null[rows] += values[:, 0]
                for index, row in enumerate(rows):
                    first = firsts[row]
                    flat[begins[row] : begins[row] + sizes[row]] = values[index, first : first + sizes[row]]
    return SpanLogits(start_end[0], start_end[1], null)


def open_span_model(saved: SavedModel) -> tuple[SpanModel, SpanTask, int, float]:
    """Return the model of a fine-tuned folder, its task, its maximal length and its threshold of the null odds."""
    task = SpanTask.model_validate(saved.extra["task"])
    model = SpanModel(saved.config)
    load_weights(model, saved)
    return ready(model, saved), task, saved.max_length, float(saved.extra.get("null_threshold", 0.0))


def _say_what_is_cut(windows: Windows, questions: Questions) -> None:
    if num_cut := int(windows.cut.sum()):
        longest = np.diff(windows.question_at).max()  # the cut questions have this length
        say(f"{questions.source}: {num_cut} of {len(questions)} questions exceed {longest} pieces and are cut")


def _line(answer: Answer) -> dict[str, Any]:
    line = {"id": answer.id, "answer": answer.chosen.text, "start": answer.chosen.first, "end": answer.chosen.last}
    odds = {} if answer.null_odds is None else {"null_odds": answer.null_odds}
    return {**line, "probability": answer.probability, **odds}


def _write_folder(folder: Path, answers: list[Answer], task: SpanTask) -> None:
    write_json(folder / _FILES[0], {answer.id: answer.chosen.text for answer in answers})
    candidates = {
        answer.id: [
            {"text": span.text, "probability": probability, "score": span.score, "start": span.first, "end": span.last}
            for span, probability in answer.candidates
        ]
        for answer in answers
    }
    write_json(folder / _FILES[1], candidates)
    if task.null:
        write_json(folder / _FILES[2], {answer.id: answer.null_odds for answer in answers})


def _refuse_other_content(target: Path, ending: str) -> None:
    """Raise InputError for a file, a name with a table's `ending`, or a folder with anything but earlier answers."""
    if target.exists() and not target.is_dir():
        raise InputError(f"--output {target}: expected a folder, a new file *.jsonl, or -, got a file")
    if ending in FORMATS and not target.exists():  # a folder of that name would be a surprise
        raise InputError(f"--output {target}: expected a folder, a file *.jsonl, or -")
    others = sorted(path.name for path in target.iterdir() if path.name not in _FILES) if target.exists() else []
    if others:
        raise InputError(
            f"--output {target}: the folder has {others[0]}; name a new folder, or one with earlier answers only"
        )


SPAN = SpanKind()
