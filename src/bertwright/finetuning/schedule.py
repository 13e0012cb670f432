"""number of rows + model → epochs, batch size, learning rate and warm-up of a fine-tuning, where none are set.

The values come from a first search over two models and three data sets, with one seed each. Then they were compared
with two other ways on six data sets (docs/log.md, "The schedule of fine-tuning"). Few rows need more epochs, because a
new output layer learns little in fewer than a few hundred steps. Narrow models need higher learning rates.
"""

import math
from typing import Any, Final

from bertwright.config import Positive, PositiveNumber, Share
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.config import BackboneConfig
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.elmo import PairConfig

LEAST_STEPS: Final = 1300
"""Number of steps that a run has at least, as far as MOST_EPOCHS allows."""
LEAST_EPOCHS: Final = 3
MOST_EPOCHS: Final = 20
LARGE_DATA: Final = 10_000
"""Number of rows from which a batch has 32 rows instead of 16."""
FEW_ROWS: Final = 200
"""Number of rows below which a batch has 8 rows, so that an epoch has more steps."""
MOST_CONTRASTED_ROWS: Final = 128
"""Largest number of rows of a batch whose rows are each other's negatives, where none is set."""
MOST_CONTRASTED_EPOCHS: Final = 10
MOST_CONTRASTED_STEPS: Final = 1250
"""Largest number of steps of such a run; a single epoch may have more (docs/log.md, "a longer training on pairs")."""
FEATURES_RATE: Final = 1e-3
"""Learning rate of the BiLSTM that learns from a frozen encoder."""
GPT_WIDTH: Final = 768
GPT_RATE: Final = 6.25e-5
CHOSEN: Final = ("epochs", "batch_size", "learning_rate", "warmup")
"""Settings that are chosen where they are None."""


class ScheduledSettings(FinetuneSettings):
    """Settings of a run whose schedule is decided."""

    epochs: Positive
    batch_size: Positive
    learning_rate: PositiveNumber
    warmup: Share

    @property
    def summary(self) -> str:
        """Return the schedule as text for a message."""
        return f"{self.epochs} epochs, batches of {self.batch_size}, learning rate {self.learning_rate:.2g}"


def scheduled(
    settings: FinetuneSettings, config: BackboneConfig, rows: int, *, contrasts: bool = False
) -> ScheduledSettings:
    """Return the settings with a schedule for `rows` training rows and a model of that shape.

    Values that are set stay. The same rows and shape give the same schedule. contrasts: True where the rows of a batch
    are each other's negatives.
    """
    if contrasts:
        batch_size = settings.batch_size or _contrasted_rows(rows)
        epochs = min(MOST_CONTRASTED_EPOCHS, max(1, MOST_CONTRASTED_STEPS // math.ceil(rows / batch_size)))
    else:
        batch_size = settings.batch_size or (8 if rows < FEW_ROWS else 16 if rows < LARGE_DATA else 32)
        epochs = min(MOST_EPOCHS, max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / math.ceil(rows / batch_size))))
    backbone = config.inner if isinstance(config, TopConfig) else config
    warmup = 0.002 if backbone.is_tuned_as_gpt and not settings.features else 0.1
    schedule = {
        "epochs": settings.epochs or epochs,
        "batch_size": batch_size,
        "learning_rate": settings.learning_rate or (FEATURES_RATE if settings.features else rate_for(backbone)),
        "warmup": warmup if settings.warmup is None else settings.warmup,
    }
    return ScheduledSettings.model_validate({**dict(settings), **schedule})


def _contrasted_rows(rows: int) -> int:
    """Return the largest power of 2, from 4 to 128, of which `rows` rows fill ten batches."""
    return min(MOST_CONTRASTED_ROWS, max(4, 1 << (max(1, rows // 10).bit_length() - 1)))


def chosen_values(request: FinetuneSettings, settings: ScheduledSettings, *, max_length: int) -> dict[str, Any]:
    """Return the values of `settings` that the program chose: the schedule's that are None in the request.

    max_length: the default of the task; settings with that value count as chosen for the task.
    """
    chosen = {name: getattr(settings, name) for name in CHOSEN if getattr(request, name) is None}
    return chosen | ({"max_length": max_length} if settings.max_length == max_length else {})


def rate_for(backbone: BackboneConfig) -> float:
    """Return the peak learning rate for a backbone: 5e-4 at a width of 128, falling with the power 1.5 of the width.

    Rounded to one digit, this gives 1e-4 for 384, 3e-5 for 768 and 2e-5 for 1,024. The last two are of the paper's grid
    (§A.3). A GPT-1 as wide as the published one has its paper's rate (GPT paper §4.1).
    """
    sides = (backbone.left, backbone.right) if isinstance(backbone, PairConfig) else (backbone,)
    width = max(side.hidden for side in sides)
    if backbone.is_tuned_as_gpt and width >= GPT_WIDTH:
        return GPT_RATE
    return float(f"{5e-4 * (128 / width) ** 1.5:.1g}")
