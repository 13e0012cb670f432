"""masked-LM logits and last-layer relations of a teacher → the loss of a student that is pre-trained.

The loss has three parts: the masked-LM loss, the divergence from the teacher's probabilities at the masked positions
(Sanh et al. 2019, §3), and the relations of the last layer (Wang et al. 2021, MiniLMv2, §3).

Shapes: B batch, T tokens, M masked, V vocabulary, D hidden.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.distillation.relations import relation_heads, relation_loss
from bertwright.distillation.settings import DistillationSettings
from bertwright.distillation.soft_labels import soft_label_loss
from bertwright.model.cpu.muon_iteration import muon_iteration
from bertwright.model.heads import for_loss
from bertwright.objectives.masked_lm import Inputs, PretrainingModel, pretraining_flops
from bertwright.training.distributed import Terms, Trainable
from bertwright.training.hardware import module_device


def teaching_losses(
    student: PretrainingModel, teacher: PretrainingModel, inputs: Inputs, settings: DistillationSettings
) -> Terms:
    """Return the parts of the loss, each with its weight: of the labels, of the teacher, of the relations."""
    soft, relations = settings.soft_weight, settings.encoder_relations
    logits, learned = _outputs(student, inputs, with_logits=True)
    with torch.no_grad():
        answers, wanted = _outputs(teacher, inputs, with_logits=soft > 0.0)
    parts: dict[str, tuple[Tensor, str]] = {}
    if soft < 1.0:
        loss = F.cross_entropy(for_loss(logits), inputs.labels, reduction="sum")
        parts["labels"] = ((1.0 - soft) * loss, "predictions")
    if soft > 0.0:
        loss = soft_label_loss(logits, answers, kind="classification", temperature=settings.temperature)
        parts["teacher"] = (soft * loss, "predictions")
    if relations > 0.0:
        shapes = student.encoder.config, teacher.encoder.config
        heads = relation_heads(*(shape.hidden for shape in shapes), most=shapes[1].heads)
        loss = relation_loss(learned, wanted, inputs.mask, heads=heads)
        parts["relations"] = (relations * loss, "tokens")
    return parts


def teaching_task(
    student: PretrainingModel, teacher: PretrainingModel, settings: DistillationSettings
) -> Trainable[Inputs]:
    """Return the student with the functions by which the loop trains it; the teacher is not trained."""

    def step(inputs: Inputs) -> Terms:
        return teaching_losses(student, teacher.to(module_device(student)), inputs, settings)

    return Trainable(
        module=student,
        blocks=student.encoder.blocks(),
        step=step,
        counts=lambda inputs: {"predictions": float(len(inputs.labels)), "tokens": float(inputs.mask.sum())},
        flops=lambda inputs: (
            pretraining_flops(student.encoder, inputs) + pretraining_flops(teacher.encoder, inputs) / 3
        ),
        tokens=lambda inputs: int(inputs.mask.sum()),
        muon_iteration=muon_iteration,
    )


def _outputs(model: PretrainingModel, inputs: Inputs, *, with_logits: bool) -> tuple[Tensor, Tensor]:
    """Return masked-LM logits [M, V], and the queries, keys and values of the last layer [B, T, 3·D]."""
    out = model.encoder(inputs.ids, inputs.segments, inputs.mask, at=inputs.at, all_hidden=True)
    rows = out.last.flatten(0, 1)[inputs.picked]  # [M, D]
    logits: Tensor = model.masked_lm(rows, model.encoder.embeddings.word.weight) if with_logits else rows
    return logits, model.encoder.last_projections(out.hidden[-2])
