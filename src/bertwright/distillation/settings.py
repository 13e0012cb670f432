"""Settings of a distillation (Hinton et al. 2015, Wang et al. 2020). It is read for --help, so it imports no torch."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, model_validator

from bertwright.config import Number, Option, Positive, PositiveNumber, Settings, Share

TASK_RELATIONS, ENCODER_RELATIONS = 0.0, 1.0
"""Weights of the relations where none is set: of a student that learns a task, and of one that is pre-trained."""


class DistillationSettings(Settings):
    """Shape of the student, and the parts of its loss."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    size: Annotated[str | None, Option("distillation")] = None
    """Size of the student: tiny to large, LAYERSxHIDDEN such as 4x128 with heads 64 wide, or LAYERSxHIDDENxHEADS. Where
    its layers are shaped as the teacher's, it begins with evenly spaced layers of the teacher."""
    layers: Annotated[Positive | None, Option("distillation")] = None
    """Number of layers of a student with the teacher's width, in place of --size; it begins with evenly spaced layers
    of the teacher."""
    temperature: Annotated[PositiveNumber, Option("distillation")] = 2.0
    """Number by which the logits of teacher and student are divided before the softmax."""
    soft_weight: Annotated[Share, Option("distillation")] = 0.9
    """Weight of the teacher's answers in the loss; the true labels have the rest."""
    relation_weight: Annotated[Number | None, Option("distillation")] = None
    """Weight of the relations of the last layer (queries, keys, values) in the loss. Default: 0, which needs no teacher
    while the student trains; with --corpus 1."""

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if (self.size is None) == (self.layers is None):
            raise ValueError("expected the shape of the student: give either --size or --layers")
        return self

    @property
    def relations(self) -> float:
        """Return the weight of the relations for a student that learns a task."""
        return TASK_RELATIONS if self.relation_weight is None else self.relation_weight

    @property
    def encoder_relations(self) -> float:
        """Return the weight of the relations for a student that is pre-trained."""
        return ENCODER_RELATIONS if self.relation_weight is None else self.relation_weight


def default_distillation(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default settings of a distillation where the recorded settings of a run have one; else nothing."""
    defaults = DistillationSettings.model_construct().model_dump()
    return {"distillation": defaults} if "distillation" in recorded else {}
