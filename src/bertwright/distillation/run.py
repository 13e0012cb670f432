"""fine-tuned teacher → a smaller student for the same task: the run (Hinton et al. 2015)."""

from pathlib import Path
from typing import Any

from bertwright.console import say_once
from bertwright.distillation.compare import comparison_lines
from bertwright.distillation.prepare import TaskRequest, prepare_student
from bertwright.distillation.settings import DistillationSettings
from bertwright.distillation.teacher import open_teacher, refuse_other_teacher
from bertwright.finetuning.prepare import schedule
from bertwright.finetuning.run import TuneRequest, train_seeds
from bertwright.finetuning.schedule import ScheduledSettings, chosen_values
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.training.distributed import refuse_several
from bertwright.training.hardware import resolve_device
from bertwright.training.run_folder import refuse_used

ANSWERS = "teacher.safetensors"
"""File of a run folder with the teacher's answers."""


class SoftSettings(ScheduledSettings):
    """Settings of a run in which a student learns a task."""

    distillation: DistillationSettings


def distill_task(
    settings: FinetuneSettings,
    soft: DistillationSettings,
    request: TaskRequest,
    *,
    teacher: str,
    out: Path,
    resume: bool = False,
    allow_other_numerics: bool = False,
) -> dict[str, Any]:
    """Train a student of a fine-tuned teacher; return what `finetune` does, and "distillation": the comparison.

    settings: those of the student's fine-tuning; `max_length` is the teacher's where it is not set.
    Raises InputError for a teacher or data that cannot be used, and where the run in `out` has another teacher.
    """
    refuse_several("distill")
    refuse_used(out, resume=resume)
    resolve_device(settings.device)
    opened = open_teacher(teacher, settings.device)
    refuse_other_teacher(out, opened.digest, teacher)
    if "max_length" not in settings.model_fields_set:
        settings = settings.model_copy(update={"max_length": opened.max_length})
    with say_once(set()):
        prepared = prepare_student(settings, soft, opened, request, cache=out / ANSWERS)
        scheduled = schedule(settings, prepared)
    how: Any = {"resume": resume, "allow_other_numerics": allow_other_numerics}
    result, _ = train_seeds(
        SoftSettings.model_validate({**dict(scheduled), "distillation": soft}),
        prepared,
        TuneRequest(model=prepared.saved.source, data=request.data, out=out, **how),
        chosen=chosen_values(settings, scheduled, max_length=opened.max_length),
    )
    return {**result, "text": "\n".join([result["text"], *comparison_lines(result["distillation"])])}
