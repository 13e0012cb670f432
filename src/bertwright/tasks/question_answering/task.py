"""encoder → task: the vectors S and E on every token, and the answers that they point at (paper §4.2, §4.3).

Shapes: B windows of a batch, T tokens, N windows in all.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_folder, file_digest, write_json
from bertwright.model.backbones import build_backbone
from bertwright.model.config import BackboneConfig, need_segments
from bertwright.model.encoder import gather_rows
from bertwright.model.folder import SavedModel, load_weights
from bertwright.model.heads import SpanHead
from bertwright.tables.files import FORMATS
from bertwright.tables.writer import Asked, opened_target
from bertwright.tasks.auxiliary_lm import predicts_next
from bertwright.tasks.binding import Answered, Kind, Work
from bertwright.tasks.classification.examples import split_rows
from bertwright.tasks.inference import answered_batches, ready
from bertwright.tasks.question_answering.answers import Answer, SpanLogits, decode_spans, score_spans
from bertwright.tasks.question_answering.data import (
    Questions,
    dev_questions_file,
    read_asked,
    read_labelled,
    train_questions_file,
)
from bertwright.tasks.question_answering.score import figures
from bertwright.tasks.question_answering.spec import SpanTask
from bertwright.tasks.question_answering.windows import Windows, cached_windows, encode_windows, padded_rows
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.distributed import Trainable
from bertwright.training.hardware import module_device, move_to_device

_ARCHITECTURE: Final = "BertForQuestionAnswering"
_FILES: Final = ("predictions.json", "nbest.json", "null_odds.json")


@dataclass(frozen=True)
class SpanRows:
    """A padded batch: `ids`, `segments`, `mask` [B, T]; `targets` [B, 2] are the answer's first and last position."""

    ids: Tensor
    segments: Tensor
    mask: Tensor
    targets: Tensor


class SpanModel(nn.Module):
    """A body and the vectors S and E on each of its last states.

    "No answer" is pointed at in place 0, at [CLS]. Where tokens attend to the left alone its state there knows neither
    question nor passage: then the row's last token, which knows both, changes places with it.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.encoder = build_backbone(config)
        self.span = SpanHead(config)
        self.swaps = predicts_next(config)

    def forward(self, rows: SpanRows) -> tuple[Tensor, Tensor]:
        """Logits of the first and of the last position, each [B, T]; those of "no answer" are at place 0."""
        last = self.encoder(rows.ids, rows.segments, rows.mask).last
        if self.swaps:
            last = gather_rows(last, _ends_swapped(rows.mask))
        start, end = self.span(last).unbind(-1)
        return start, end


def _ends_swapped(mask: Tensor) -> Tensor:
    """The places [B, T] of rows whose first and last real tokens have changed places."""
    ends = mask.sum(1, keepdim=True) - 1
    places = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    return torch.where(places == 0, ends, torch.where(places == ends, 0, places))


def prepare(task: SpanTask, data: Path, words: BaseTokenizer, config: BackboneConfig, max_length: int) -> Work[Any]:
    """The task bound to the files of a folder, or to one file, of which a tenth of the passages is then kept."""
    need_segments(config, task.name)
    train, dev, digests = load_data(task, data)
    windows = cached_windows(words, train, task, max_length=max_length, targets=True)
    measured = cached_windows(words, dev, task, max_length=max_length)
    _say_what_is_cut(windows, train)
    _say_what_is_cut(measured, dev)
    chosen = [0.0]  # the threshold of the newest evaluation, which is saved with the model that it was chosen for

    def evaluated(model: Any) -> dict[str, float]:
        scores, chosen[0], same = score_spans(measured, span_logits(_span(model), measured), dev, task)
        found = _flat(figures(scores, null=task.null))
        notes = {"null_threshold": chosen[0]} if task.null else {}
        return {**found, **notes, "collapsed": float(same and len(dev) > 1)}

    def answered(model: Any) -> Answered:
        notes = {"null_threshold": chosen[0]} if task.null else {}
        extra = {"task": task.model_dump(mode="json"), "max_length": max_length, **notes}
        return Answered(model, _ARCHITECTURE, (), extra)

    return Work(
        task=task,
        digests=digests,
        lengths=windows.lengths,
        head="span",
        build=SpanModel,
        batch=lambda rows: span_batch(windows, rows, pad_id=config.pad_id),
        trainable=lambda model: span_trainable(_span(model)),
        evaluate=evaluated,
        answered=answered,
    )


def load_data(task: SpanTask, data: Path) -> tuple[Questions, Questions, dict[str, Any]]:
    """Train, dev, and the files' digests; without a dev file no passage of the tenth that is kept is trained on."""
    path, dev_path = train_questions_file(task, data), dev_questions_file(task, data)
    train = read_labelled(task, path)
    digests = {"train": file_digest(path), "dev": {dev_path.name: file_digest(dev_path)} if dev_path else {}}
    if dev_path:
        return train, read_labelled(task, dev_path), digests
    say(f"{data}: no dev file; the questions on a tenth of {path.name}'s passages are kept for measuring")
    kept, measured = split_rows([question.context for question in train.items], train.source)
    parts = [replace(train, items=tuple(train.items[row] for row in rows)) for rows in (kept, measured)]
    return parts[0], parts[1], digests


def span_batch(windows: Windows, rows: NDArray[np.int64], *, pad_id: int) -> SpanRows:
    """The given windows, padded to the longest of them."""
    ids, segments, mask = padded_rows(windows, rows, pad_id=pad_id)
    targets = torch.from_numpy(windows.target[rows].astype(np.int64))
    return SpanRows(torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(mask), targets)


def span_trainable(model: SpanModel) -> Trainable[SpanRows]:
    """What the loop trains: half the cross entropy of the first position and half that of the last, over a row."""

    def step(rows: SpanRows) -> dict[str, tuple[Tensor, str]]:
        start, end = (
            # padding is nothing that could be pointed at: a row's loss does not depend on its batch
            F.cross_entropy(logits.float().masked_fill(~rows.mask, -torch.inf), targets, reduction="sum")
            for logits, targets in zip(model(rows), rows.targets.unbind(1), strict=True)
        )
        return {"loss": ((start + end) / 2, "rows")}

    return Trainable(
        module=model,
        blocks=model.encoder.blocks(),
        step=step,
        counts=lambda rows: {"rows": float(len(rows.ids))},
        flops=lambda rows: 3.0 * len(rows.ids) * model.encoder.flops(rows.ids.shape[1], rows.ids.shape[1]),
        tokens=lambda rows: int(rows.mask.sum()),
    )


def span_logits(model: SpanModel, windows: Windows) -> SpanLogits:
    """What `decode_spans` takes, in batches of like length with dropout off."""
    was_training = model.training
    model.eval()
    lengths = windows.lengths
    sizes = windows.span[:, 1].astype(np.int64) - windows.span[:, 0]
    begins, firsts = np.cumsum(sizes) - sizes, windows.first_piece
    found = [np.zeros(int(sizes.sum()), dtype=np.float32) for _ in range(2)]
    null = np.zeros(len(windows), dtype=np.float32)
    with torch.inference_mode():
        for rows in answered_batches(lengths, "windows answered"):
            batch = move_to_device(span_batch(windows, rows, pad_id=model.encoder.config.pad_id), module_device(model))
            for flat, logits in zip(found, model(batch), strict=True):
                values = logits.float().cpu().numpy()
                null[rows] += values[:, 0]
                for place, row in enumerate(rows):
                    first = firsts[row]
                    flat[begins[row] : begins[row] + sizes[row]] = values[place, first : first + sizes[row]]
    model.train(was_training)
    return SpanLogits(found[0], found[1], null)


def evaluate(task: SpanTask, saved: SavedModel, words: BaseTokenizer, data: Path) -> dict[str, Any]:
    """F1 and exact match in percent on the folder's dev file, or on one file, at the threshold chosen in training."""
    model, trained, max_length, threshold = open_span_model(saved)
    if task.null and not trained.null:
        raise InputError(f"{saved.place}: was fine-tuned for {trained.name}, and never leaves a question unanswered")
    path = dev_questions_file(task, data, needed=True)
    assert path is not None
    questions = read_labelled(task, path)
    windows = cached_windows(words, questions, trained, max_length=max_length)
    _say_what_is_cut(windows, questions)
    logits = span_logits(model, windows)
    scores, _, _ = score_spans(windows, logits, questions, task, threshold=threshold)
    return {**figures(scores, null=task.null), **({"null_threshold": threshold} if task.null else {})}


def predict(saved: SavedModel, words: BaseTokenizer, asked: Asked) -> dict[str, Any]:
    """Answer every question; "-" and a file *.jsonl get a line each, any other name becomes a folder of three files."""
    if asked.text:
        raise InputError("--text-column is for tables; questions have the fields id, question and context")
    model, task, max_length, threshold = open_span_model(saved)
    asked.refuse_formats(f"questions ({task.name})", read=("jsonl",), write=("jsonl",))
    target = asked.target
    as_lines = target == "-" or asked.bare.suffix == ".jsonl" or asked.output_format == "jsonl"
    if as_lines and Path(target).is_dir():
        raise InputError(f"--output {target}: is a folder; JSON lines are a file, or - for standard output")
    if not as_lines:
        _refuse_foreign(Path(target), asked.bare.suffix)
    questions = read_asked(asked.source)
    windows = encode_windows(words, questions, task, max_length=max_length)
    _say_what_is_cut(windows, questions)
    answers = decode_spans(windows, span_logits(model, windows), questions, task, threshold=threshold)
    if not as_lines:
        with atomic_folder(Path(target)) as folder:
            _write_folder(folder, answers, task)
        return {"questions": len(answers)}
    lines = "".join(json.dumps(_line(answer), ensure_ascii=False) + "\n" for answer in answers).encode()
    with opened_target(asked) as stream:
        stream.write(lines)
    return {"questions": len(answers)}


def open_span_model(saved: SavedModel) -> tuple[SpanModel, SpanTask, int, float]:
    """The model of a fine-tuned folder, its task, its maximal length and its threshold of the null odds."""
    task = SpanTask.model_validate(saved.extra["task"])
    model = SpanModel(saved.config)
    load_weights(model, saved)
    return ready(model, saved), task, saved.max_length, float(saved.extra.get("null_threshold", 0.0))


def _say_what_is_cut(windows: Windows, questions: Questions) -> None:
    if num_cut := int(windows.cut.sum()):
        longest = np.diff(windows.asked_at).max()  # of those that were cut
        say(f"{questions.source}: {num_cut} of {len(questions)} questions exceed {longest} pieces and are cut")


def _line(answer: Answer) -> dict[str, Any]:
    line = {"id": answer.id, "answer": answer.chosen.text, "start": answer.chosen.first, "end": answer.chosen.last}
    odds = {} if answer.null_odds is None else {"null_odds": answer.null_odds}
    return {**line, "probability": answer.probability, **odds}


def _write_folder(folder: Path, answers: list[Answer], task: SpanTask) -> None:
    write_json(folder / _FILES[0], {answer.id: answer.chosen.text for answer in answers})
    candidates = {
        answer.id: [
            {"text": span.text, "probability": share, "score": span.score, "start": span.first, "end": span.last}
            for span, share in answer.candidates
        ]
        for answer in answers
    }
    write_json(folder / _FILES[1], candidates)
    if task.null:
        write_json(folder / _FILES[2], {answer.id: answer.null_odds for answer in answers})


def _refuse_foreign(target: Path, ending: str) -> None:
    """InputError for a file, for a name with the `ending` of one, or a folder with anything but an earlier answer."""
    if target.exists() and not target.is_dir():
        raise InputError(f"--output {target}: is a file; answers are a folder, a new file *.jsonl, or - for lines")
    if ending in FORMATS and not target.exists():  # else a folder of that name would surprise
        raise InputError(f"--output {target}: answers to questions are a folder, a file *.jsonl, or - for lines")
    others = sorted(path.name for path in target.iterdir() if path.name not in _FILES) if target.exists() else []
    if others:
        raise InputError(f"--output {target}: holds {others[0]}; name a new folder, or one with answers alone")


def _flat(found: dict[str, Any]) -> dict[str, float]:
    """Percentages by name; how many questions there are is no figure of a model."""
    inner = [(name, value if isinstance(value, dict) else {"": value}) for name, value in found.items()]
    flat = {f"{name}.{key}".rstrip("."): figure for name, part in inner for key, figure in part.items()}
    return {name: float(figure) for name, figure in flat.items() if not name.endswith("questions")}


def _span(model: Any) -> SpanModel:
    assert isinstance(model, SpanModel)
    return model


SPAN = Kind(SpanTask, prepare, evaluate, predict)
