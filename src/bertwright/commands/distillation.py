"""The command distill: teacher → a smaller student."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bertwright.commands import CommandResult
from bertwright.commands.arguments import (
    BadRowsOption,
    LabelColumn,
    LabelledFormat,
    Repeatable,
    TextColumns,
    TrackOption,
)
from bertwright.commands.options import SettingsOptions
from bertwright.commands.pretraining import corpora_of, with_held_out
from bertwright.distillation.settings import DistillationSettings
from bertwright.errors import InputError
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import ADAPTED, PLAIN, PretrainSettings

_NO_OPTIONS = frozenset({"features", "lstm_width", "bilstm", "lm_weight", "new_layers", "frozen_layers"})
"""Settings of fine-tuning that a distillation does not have."""
_FIXED = frozenset(
    {"system", "size", "second_sentence", "compile", "embedding_size", "generator_width", "causal_share", "z_loss"}
)
"""Settings of pre-training that a distillation decides."""
_FOR_TASK = SettingsOptions(
    FinetuneSettings,
    left_out=_NO_OPTIONS,
    others={"--corpus": SettingsOptions(PretrainSettings, plain=PLAIN, chosen=ADAPTED, left_out=_FIXED)},
)
"""Options of a student that learns a task, and those of one that is pre-trained, which --corpus puts in their place."""


def distill_command(
    *,
    teacher: str,
    out: Path,
    data: Path | None = None,
    corpus: Repeatable = (),
    held_out: str | None = None,
    texts: Path | None = None,
    text_column: TextColumns = (),
    label_column: LabelColumn = None,
    input_format: LabelledFormat = "auto",
    on_error: BadRowsOption = "stop",
    resume: bool = False,
    student: Annotated[Mapping[str, Any], SettingsOptions(DistillationSettings)],
    settings: Annotated[Mapping[str, Any], _FOR_TASK],
    allow_other_numerics: bool = False,
    track: TrackOption = (),
) -> CommandResult:
    """Train a smaller student on the answers of a teacher: for its task (--data), or in pre-training (--corpus).

    With --corpus the other options are those of pretrain: see distill --corpus CORPUS --help.

    Args:
        teacher: MODEL: a model folder or run folder. With --data it was fine-tuned for a task of sentences or pairs;
            with --corpus it is a pre-trained encoder.
        out: Run folder.
        data: Folder with train and dev files of the teacher's task, or one file, of which a tenth is used for
            validation.
        corpus: Corpus folder with the vocabulary of the teacher, to pre-train the student. Several as FOLDER=WEIGHT.
        held_out: Validation data of --corpus: a corpus folder, or a fraction of the documents such as 0.01.
        texts: Further texts without labels, which the teacher answers: a table with the text columns, or a .txt file
            with one text a line.
        resume: Continue the run in --out. The teacher's answers are not computed again.
        allow_other_numerics: Resume on another kind of processor or torch, or with another --device or
            --activation-checkpointing. Results then differ in their last bits.
    """
    from bertwright.distillation.prepare import TaskRequest
    from bertwright.distillation.run import distill_task
    from bertwright.reports.report import with_pages
    from bertwright.training.tracked_run import track_with

    soft = DistillationSettings.model_validate(student)
    start: Any = {"teacher": teacher, "out": out, "resume": resume, "allow_other_numerics": allow_other_numerics}
    if bool(corpus) == (data is not None):
        raise InputError("distill: expected --data FOLDER, for the teacher's task, or --corpus FOLDER, to pre-train")
    if corpus:
        if texts or text_column or label_column or (input_format, on_error) != ("auto", "stop"):
            raise InputError(
                "distill --corpus: reads a corpus; leave --texts, --text-column, --label-column, --input-format and "
                "--on-error out"
            )
        from bertwright.distillation.encoder_run import distill_encoder

        corpora = corpora_of(corpus)
        typed, folder = with_held_out(settings, held_out, corpora)
        with track_with(track):
            return with_pages(distill_encoder(typed, soft, corpus=corpora, held_out=folder, **start), out)
    if held_out:
        raise InputError(f"--held-out {held_out}: is for --corpus; the dev file of --data is the validation data")
    assert data is not None
    chosen = FinetuneSettings.model_validate(settings)
    request = TaskRequest(data, texts, text_column, label_column, input_format, on_error)
    with track_with(track):
        return with_pages(distill_task(chosen, soft, request, **start), out)
