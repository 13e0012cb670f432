"""The command distill: teacher → a smaller student."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bertwright.commands import CommandResult
from bertwright.commands.arguments import BadRowsOption, LabelColumn, LabelledFormat, TextColumns
from bertwright.commands.options import SettingsOptions
from bertwright.distillation.settings import DistillationSettings
from bertwright.errors import InputError
from bertwright.finetuning.settings import FinetuneSettings

_NO_OPTIONS = frozenset({"features", "lstm_width", "bilstm", "lm_weight", "new_layers", "frozen_layers"})
"""Settings of fine-tuning that a distillation does not have."""


def distill_command(
    *,
    teacher: str,
    out: Path,
    data: Path | None = None,
    texts: Path | None = None,
    text_column: TextColumns = (),
    label_column: LabelColumn = None,
    input_format: LabelledFormat = "auto",
    on_error: BadRowsOption = "stop",
    resume: bool = False,
    student: Annotated[Mapping[str, Any], SettingsOptions(DistillationSettings)],
    settings: Annotated[Mapping[str, Any], SettingsOptions(FinetuneSettings, left_out=_NO_OPTIONS)],
    allow_other_numerics: bool = False,
) -> CommandResult:
    """Train a smaller student that learns the answers of a teacher.

    Args:
        teacher: MODEL: a model folder or run folder that was fine-tuned for a task of sentences or pairs.
        out: Run folder.
        data: Folder with train and dev files of the teacher's task, or one file, of which a tenth is used for
            validation.
        texts: Further texts without labels, which the teacher answers: a table with the text columns, or a .txt file
            with one text a line.
        resume: Continue the run in --out. The teacher's answers are not computed again.
        allow_other_numerics: Resume on another kind of processor or torch, or with another --device or
            --activation-checkpointing. Results then differ in their last bits.
    """
    from bertwright.distillation.prepare import TaskRequest
    from bertwright.distillation.run import distill_task
    from bertwright.reports.report import with_pages

    soft, chosen = DistillationSettings.model_validate(student), FinetuneSettings.model_validate(settings)
    if data is None:
        raise InputError("distill: expected --data FOLDER, the labelled data of the teacher's task")
    request = TaskRequest(data, texts, text_column, label_column, input_format, on_error)
    start: Any = {"resume": resume, "allow_other_numerics": allow_other_numerics}
    return with_pages(distill_task(chosen, soft, request, teacher=teacher, out=out, **start), out)
