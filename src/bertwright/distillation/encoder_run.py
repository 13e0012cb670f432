"""pre-trained teacher + corpus → a smaller student: the run (Sanh et al. 2019, Wang et al. 2021)."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bertwright.corpus.shards import Corpus
from bertwright.distillation.compare import (
    TIMED_TEXTS,
    comparison_lines,
    comparison_result,
    milliseconds_per_text,
)
from bertwright.distillation.masked_lm import teaching_task
from bertwright.distillation.settings import DistillationSettings
from bertwright.distillation.student import say_larger, student_of
from bertwright.distillation.teacher import refuse_other_teacher
from bertwright.errors import InputError
from bertwright.files import read_json
from bertwright.model.card import origin
from bertwright.model.config import encoder_shape, finds_replaced, predicts_ahead
from bertwright.model.folder import SavedModel, open_model, weights_digest
from bertwright.model.system import system_of
from bertwright.objectives.masked_lm import Inputs, PretrainingModel, has_masked_lm, open_pretrained, to_inputs
from bertwright.pretraining.choose import plain_settings
from bertwright.pretraining.evaluate import ValidationRows
from bertwright.pretraining.init_from import without_unused_rows
from bertwright.pretraining.run import pretrain_prepared
from bertwright.pretraining.settings import PretrainSettings, merged
from bertwright.pretraining.setup import Pretraining, Teaching, prepare_pretraining
from bertwright.tasks.binding import open_tokenizer
from bertwright.training.distributed import refuse_several
from bertwright.training.hardware import resolve_device
from bertwright.training.run_folder import RunFolder, refuse_used

_METRICS = ("mlm_accuracy", "mlm_loss", "mlm_perplexity")
_FIXED: Mapping[str, Any] = {"compile": "off", "examples": {"second_sentence": "none"}}
"""Settings that every student has."""


class TaughtSettings(PretrainSettings):
    """Settings of a run in which a student is pre-trained."""

    distillation: DistillationSettings


def distill_encoder(
    typed: Mapping[str, Any],
    soft: DistillationSettings,
    *,
    teacher: str,
    corpus: Mapping[Path, float],
    out: Path,
    held_out: Path | None = None,
    resume: bool = False,
    allow_other_numerics: bool = False,
) -> Mapping[str, Any]:
    """Pre-train a student of a pre-trained teacher; return what `pretrain` does, and "distillation": the comparison.

    typed: settings of the pre-training that a person set; the others are chosen as `pretrain` chooses them.
    Raises InputError for a teacher with a task or with another vocabulary than the corpus, and where the run in `out`
    has another teacher.
    """
    refuse_several("distill")
    refuse_used(out, resume=resume)
    saved, model = open_encoder_teacher(teacher, Corpus.open(next(iter(corpus))), fills=soft.soft_weight > 0.0)
    digest = weights_digest(saved) or ""
    refuse_other_teacher(out, digest, teacher)
    student = student_of(saved, soft)
    settings, numerics = plain_settings(
        merged(typed, {**_FIXED, "system": system_of(student.config)}),
        corpus=corpus,
        out=out,
        initial=student.config,
        has_weights=student.weights is not None,
        resume=resume,
    )
    taught = TaughtSettings.model_validate({**settings.model_dump(exclude_unset=True), "distillation": soft})
    metrics_of = _TeacherMetrics(model)
    pretraining, machine = prepare_pretraining(
        taught,
        corpus=corpus,
        out=out,
        held_out=held_out,
        init_from=student,
        numerics=numerics,
        teaching=Teaching(
            trainable=lambda own: teaching_task(_whole(own), model, soft),
            digest=digest,
            data=origin(saved.source, digest, verb="learned from"),
            numbers=lambda rows: (
                []
                if soft.soft_weight == 0.0
                else [f"{name}: {value:.4f}, of the teacher" for name, value in metrics_of(rows).items()]
            ),
        ),
    )
    say_larger(pretraining.model, model)
    start: Any = {"resume": resume, "allow_other_numerics": allow_other_numerics, "init_from": teacher}
    result = pretrain_prepared(pretraining, machine, out=out, held_out=held_out, **start)
    if result["stopped"]:
        return result
    if "distillation" not in result:
        compared = _compared(pretraining, saved, model, Path(result["model"]), metrics_of)
        result = {**result, "distillation": compared}
        record = read_json(out / "run.json")
        RunFolder(out, record).note(result={**record["result"], "distillation": compared})
    lines = [f"{name}: {result[name]}" for name in ("out", "steps", "model")]
    return {**result, "text": "\n".join([*lines, *comparison_lines(result["distillation"])])}


class _TeacherMetrics:
    """Masked-LM metrics of the teacher on the validation rows, computed once."""

    def __init__(self, teacher: PretrainingModel) -> None:
        self._teacher = teacher
        self._metrics: dict[str, float] = {}

    def __call__(self, rows: ValidationRows) -> Mapping[str, float]:
        self._metrics = self._metrics or _metrics(self._teacher, rows)
        return self._metrics


def open_encoder_teacher(source: str, corpus: Corpus, *, fills: bool) -> tuple[SavedModel, PretrainingModel]:
    """Open a pre-trained teacher for a corpus, in evaluation mode; `fills`: its masked-LM head is needed.

    Raises InputError for a model with a task, without that head, or with another vocabulary than the corpus.
    """
    saved = open_model(source)
    if task := saved.extra.get("task"):
        name = task.get("name") if isinstance(task, Mapping) else task
        raise InputError(
            f"--teacher {source}: was fine-tuned for {name}; with --corpus expected a pre-trained encoder. For the "
            "task give --data in place of --corpus"
        )
    if predicts_ahead(saved.config):
        raise InputError(
            f"--teacher {source}: is a GPT-BERT, whose states predict the token after their own; with --corpus "
            "expected an encoder that predicts masked pieces from their own states, such as a BERT"
        )
    if finds_replaced(saved.config):
        raise InputError(
            f"--teacher {source}: is an ELECTRA, which learns to find replaced pieces; with --corpus expected an "
            "encoder that predicts masked pieces, such as a BERT"
        )
    encoder_shape(saved.config, f"--teacher {source}")
    tokenizer = open_tokenizer(saved)
    _refuse_vocabulary(source, tokenizer.pieces, corpus)
    if tokenizer.hash != corpus.tokenizer_hash:
        raise InputError(
            f"--teacher {source}: has the pieces of {corpus.folder}, but its tokenizer has other rules for text; build "
            f"the corpus with it: bertwright corpus build TEXT --tokenizer {source} --out CORPUS"
        )
    if fills and not has_masked_lm(saved):
        raise InputError(
            f"--teacher {source}: has no masked-LM head, so it gives no soft labels; --soft-weight 0 learns the labels "
            "and the relations of its last layer"
        )
    saved = without_unused_rows(saved, tokenizer.vocab_size)
    return saved, open_pretrained(saved, fills=fills)


def _refuse_vocabulary(source: str, pieces: Sequence[str], corpus: Corpus) -> None:
    """Raise InputError where the corpus has other pieces than the teacher."""
    others = corpus.tokenizer.pieces
    if len(pieces) != len(others):
        raise InputError(
            f"--teacher {source}: has a vocabulary of {len(pieces):,} pieces, and {corpus.folder} one of "
            f"{len(others):,}; teacher and student need the same"
        )
    for number, (piece, other) in enumerate(zip(pieces, others, strict=True)):
        if piece != other:
            raise InputError(
                f"--teacher {source}: its piece {number} is {piece!r}, and in {corpus.folder} it is {other!r}; teacher "
                "and student need the same vocabulary"
            )


def _compared(
    pretraining: Pretraining,
    saved: SavedModel,
    teacher: PretrainingModel,
    folder: Path,
    metrics_of: _TeacherMetrics,
) -> dict[str, Any]:
    """Return the comparison of the trained student in `folder` with the teacher."""
    device = resolve_device(pretraining.settings.device)
    student = open_pretrained(open_model(str(folder))).to(device)
    teacher.to(device)
    rows = pretraining.validation
    batches = rows or pretraining.phase_rows[0].first(TIMED_TEXTS)
    inputs = [to_inputs(batch) for batch in islice(iter(batches), TIMED_TEXTS // 64)]
    calls = [lambda: _encode(teacher, inputs), lambda: _encode(student, inputs)]
    times = milliseconds_per_text(calls, sum(len(part.ids) for part in inputs))
    metrics: list[Mapping[str, float]] = [{}, {}]
    if rows:
        fills = has_masked_lm(saved)
        metrics = [metrics_of(rows) if fills else {}, _metrics(student, rows)]
    folders, models, texts = (Path(saved.source), folder), (teacher, student), rows.num_rows if rows else 0
    return comparison_result(folders, models, times, metrics, metric=_METRICS[0], agreement=None, texts=texts)


@torch.inference_mode()
def _metrics(model: PretrainingModel, rows: ValidationRows) -> dict[str, float]:
    """Return masked-LM metrics on the validation rows."""
    was_training = model.training
    metrics = rows.metrics(model.eval())
    model.train(was_training)
    return {name: metrics[name] for name in _METRICS}


@torch.inference_mode()
def _encode(model: PretrainingModel, inputs: Sequence[Inputs]) -> None:
    device = next(model.parameters()).device
    for part in inputs:
        model.encoder(part.ids.to(device), part.segments.to(device), part.mask.to(device)).last.cpu()


def _whole(model: Any) -> PretrainingModel:
    """Return the student as the model with a masked-LM head that it is."""
    assert isinstance(model, PretrainingModel)
    return model
