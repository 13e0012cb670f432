"""name → scale: from a test of a few seconds to the paper's own settings (paper §A.2, §A.3).

At every scale the arms of an experiment train on the same number of tokens, steps x rows x length, unless it compares
lengths or gives each arm the same time.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from bertwright.errors import InputError
from bertwright.experiments.spec import Scale

_OPTIMIZER: Final = {"warmup": 0.05, "bias_correction": True}
_SHORT_WINDOWS: Final = {"max_length": 128, "stride": 64, "question": 40}
"""Windows of SQuAD's passages at scales that pre-train on rows of at most 128 tokens."""
_SHORT_TASKS: Final = {"squad1": _SHORT_WINDOWS, "squad2": _SHORT_WINDOWS, "ner": {"max_length": 128}}


def _rows(length: int) -> tuple[dict[str, Any], ...]:
    """Return phases with rows of one length in all steps."""
    return ({"length": length, "share": 1.0},)


_SMOKE: Final = Scale(
    name="smoke",
    title="a test of the command: nothing is learned",
    pretraining={
        "size": "2x128",
        "steps": 6,
        "batch_size": 4,
        "phases": _rows(16),
        "held_out_share": 0.2,
        "held_out_rows": 8,
        "evaluations": 1,
        "compile": "off",
        "precision": "fp32",
    },
    finetuning={"epochs": 1, "batch_size": 8, "precision": "fp32"},
    features={"lstm_width": 8},
    sizes=("2x128", "4x128", "6x128", "8x128"),
    fewer_heads="4x128x1",
    larger="4x128",
    lengths=(16, 32),
    vocabulary=400,
    rows=(24, 12),
    tasks={name: {"max_length": 48, "stride": 16, "question": 16} for name in ("squad1", "squad2")},
    seeds=2,
    pretraining_seeds=1,
)
_TINY: Final = Scale(
    name="tiny",
    title="4 layers of 128, 8 million tokens: ten minutes of a core, about half an hour for a language model",
    pretraining={
        "size": "4x128",
        "steps": 1_600,
        "batch_size": 64,
        "phases": ({"length": 64, "share": 0.8}, {"length": 128, "share": 0.2}),
        "optimizer": {**_OPTIMIZER, "method": "muon", "learning_rate": 2e-3},
        "dropout": 0.0,
        "initializer_range": 0.05,
        "start": "matching",
        "held_out_share": 0.01,
        "evaluations": 5,
    },
    finetuning={"epochs": 4, "batch_size": 16},
    finetuning_of={name: {"epochs": 10, "learning_rate": 1e-3} for name in ("ner", "wikigold")},
    features={"epochs": 20, "learning_rate": 3e-3, "lstm_width": 128},
    sizes=("2x128", "4x128", "6x128", "8x128"),
    fewer_heads="4x128x1",
    larger="8x128",
    vocabulary=8_192,
    rows=(4_000, 1_000),
    rows_of={"squad1": (2_000, 1_000), "squad2": (2_000, 1_000)},
    tasks={**_SHORT_TASKS, "stsb": {"standardise": False}},  # as in the records of docs/results
)
_MINI: Final = Scale(
    name="mini",
    title="4 layers of 256, 400 million tokens",
    pretraining={
        "size": "4x256",
        "steps": 50_000,
        "batch_size": 64,
        "phases": _rows(128),
        "optimizer": {**_OPTIMIZER, "learning_rate": 1e-3},
        "initializer_range": 0.035,
        "start": "local",
        "held_out_share": 0.01,
        "evaluations": 10,
    },
    finetuning={"epochs": 3, "batch_size": 32},
    features={"epochs": 10, "lstm_width": 256},
    sizes=("2x128", "2x256", "4x256", "8x256"),
    fewer_heads="2x256x1",
    larger="8x256",
    vocabulary=16_000,
    rows=(50_000, None),
    tasks=_SHORT_TASKS,
)
_SMALL: Final = Scale(
    name="small",
    title="4 layers of 512, 3 billion tokens: a GPU",
    pretraining={
        "size": "4x512",
        "steps": 100_000,
        "batch_size": 256,
        "phases": _rows(128),
        "optimizer": {**_OPTIMIZER, "learning_rate": 5e-4},
        "initializer_range": 0.025,
        "held_out_share": 0.01,
    },
    finetuning={"epochs": 3, "batch_size": 32},
    features={"epochs": 10, "lstm_width": 512},
    sizes=("2x256", "4x256", "4x512", "8x512"),
    fewer_heads="4x256x1",
    larger="8x512",
    vocabulary=30_000,
    tasks=_SHORT_TASKS,
)
_BASE: Final = Scale(
    name="base",
    title="BERT-base for a tenth of the paper's steps",
    pretraining={
        "size": "base",
        "steps": 100_000,
        "phases": ({"length": 128, "share": 0.9}, {"length": 512, "share": 0.1}),
        "held_out_share": 0.001,
    },
    finetuning={"epochs": 3, "batch_size": 32},
    finetuning_of={  # paper §4.2 to §4.4; it chose GLUE's learning rates on dev, here they have the default
        "squad1": {"learning_rate": 5e-5},
        "squad2": {"learning_rate": 5e-5, "epochs": 2, "batch_size": 48},
        "swag": {"learning_rate": 2e-5, "batch_size": 16},
    },
    features={"epochs": 10, "lstm_width": 768},
    sizes=("3x768", "6x768", "base", "12x1024"),
    fewer_heads="6x768x3",
    larger="large",
    vocabulary=30_000,
    seeds=5,
    pretraining_seeds=1,
)
_PAPER: Final = replace(
    _BASE,
    name="paper",
    title="BERT-base and BERT-large as the paper trained them: a million steps",
    pretraining={**_BASE.pretraining, "steps": 1_000_000},
    sizes=("3x768", "6x768", "base", "large"),
)

SCALES: Final[Mapping[str, Scale]] = MappingProxyType(
    {scale.name: scale for scale in (_SMOKE, _TINY, _MINI, _SMALL, _BASE, _PAPER)}
)


def get_scale(name: str) -> Scale:
    """Return the scale of that name; raises InputError, with the known names, where there is none."""
    if name not in SCALES:
        raise InputError(f"--scale: expected one of {', '.join(SCALES)}, got {name!r}")
    return SCALES[name]
