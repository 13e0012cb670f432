"""The loss of a student that is pre-trained equals its parts computed by hand."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from bertwright.distillation.masked_lm import teaching_losses, teaching_task
from bertwright.distillation.relations import relation_loss
from bertwright.distillation.settings import DistillationSettings
from tests.support import tiny_run


@pytest.mark.parametrize("relation_weight", [None, 0.0, 0.5])
@pytest.mark.parametrize("soft_weight", [0.0, 0.7, 1.0])
def test_the_parts_of_the_loss(soft_weight: float, relation_weight: float | None, tmp_path: Path) -> None:
    """Teacher and student differ in width, heads and layers."""
    student = tiny_run.built("none").eval()
    teacher = tiny_run.built("none", hidden=24, heads=3, layers=3).eval()
    (inputs,) = tiny_run.micro_batches(tiny_run.examples(tmp_path, second_sentence="none"))(0)
    settings = DistillationSettings(layers=1, soft_weight=soft_weight, temperature=3.0, relation_weight=relation_weight)
    parts = teaching_losses(student, teacher, inputs, settings)
    counts = teaching_task(student, teacher, settings).counts(inputs)
    expected: dict[str, float] = {}
    learned, wanted = (model.logits(inputs)[0].detach() for model in (student, teacher))
    if soft_weight < 1:
        expected["labels"] = (1 - soft_weight) * float(F.cross_entropy(learned, inputs.labels, reduction="sum"))
    if soft_weight > 0:
        target, answer = (torch.softmax(logits / 3.0, dim=1) for logits in (wanted, learned))
        expected["teacher"] = soft_weight * 9.0 * float((target * (target / answer).log()).sum())
    weight = 1.0 if relation_weight is None else relation_weight
    if weight:
        seen: list[torch.Tensor] = []
        for model in (student, teacher):
            states = model.encoder(inputs.ids, inputs.segments, inputs.mask, all_hidden=True).hidden
            seen.append(model.encoder.layers[-1].attention.qkv(states[-2]).detach())
        expected["relations"] = weight * float(relation_loss(seen[0], seen[1], inputs.mask, heads=2))
    assert {name: float(loss.detach()) for name, (loss, _) in parts.items()} == pytest.approx(expected, rel=1e-9)
    assert {name for _, name in parts.values()} <= counts.keys()
    assert counts == {"predictions": len(inputs.labels), "tokens": int(inputs.mask.sum())}


def test_only_the_student_gets_gradients(tmp_path: Path) -> None:
    student, teacher = tiny_run.built("none"), tiny_run.built("none", hidden=24, heads=3).eval()
    (inputs,) = tiny_run.micro_batches(tiny_run.examples(tmp_path, second_sentence="none"))(0)
    parts = teaching_losses(student, teacher, inputs, DistillationSettings(layers=1))
    torch.stack([loss for loss, _ in parts.values()]).sum().backward()
    without = {name for name, weight in student.named_parameters() if weight.requires_grad and weight.grad is None}
    assert not without
    assert all(weight.grad is None for weight in teacher.parameters())
