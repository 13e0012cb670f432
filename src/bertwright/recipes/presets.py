"""name → settings of a pre-training run: the papers' own (BERT §A.2, GPT-1 §4.1), and what suits two cores.

A recipe is a nested table of settings; what a person gives beats it, and what it does not name has its general default.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bertwright.errors import InputError
from bertwright.recipes.settings import PretrainSettings

_PAPER = {
    "steps": 1_000_000,
    "batch_size": 256,
    "phases": ({"length": 128, "share": 0.9}, {"length": 512, "share": 0.1}),
    "examples": {
        "second_sentence": "next",
        "static_masks": 0,
        "short_share": 0.1,
        "masking": {"share": 0.15, "mask": 0.8, "same": 0.1, "random": 0.1, "units": "piece"},
    },
    "optimizer": {
        "learning_rate": 1e-4,
        "warmup": 0.01,  # 10,000 of 1,000,000 steps
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip": 1.0,
        "bias_correction": False,
    },
    "activation": "gelu",
    "dropout": 0.1,
    "initializer_range": 0.02,
    "start": "random",
}

_OF_THE_MODEL = ("size", "activation", "initializer_range")
"""What a run that begins from a model has from there."""
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper-base": {**_PAPER, "size": "base"},
        "paper-large": {**_PAPER, "size": "large"},
        "paper-gpt": {
            "system": "gpt",
            "size": "base",
            "steps": 1_000_000,  # as BERT's paper says (§A.4); its own says 100 passes over its books
            "batch_size": 64,
            "phases": ({"length": 512, "share": 1.0},),
            "optimizer": {
                "learning_rate": 2.5e-4,
                "warmup": 0.002,  # 2,000 of 1,000,000 steps
                "schedule": "cosine",
                "beta1": 0.9,
                "beta2": 0.999,
                "epsilon": 1e-8,  # this, correction and clipping: its code for fine-tuning
                "weight_decay": 0.01,
                "clip": 1.0,
                "bias_correction": True,
            },
            "dropout": 0.1,
            "initializer_range": 0.02,
        },
        # Measured with --minutes 56 on one of the cores: the first tiny of the README's results.
        "two-cores": {
            "size": "tiny",
            "minutes": 60.0,
            "batch_size": 32,
            "phases": ({"length": 128, "share": 1.0},),
            "optimizer": {"learning_rate": 2e-3, "warmup": 0.05, "bias_correction": True},
            "initializer_range": 0.05,
            "start": "local",
        },
        "two-hours": {
            "size": "4x128",
            "minutes": 120.0,
            "batch_size": 64,
            "phases": ({"length": 64, "share": 0.5}, {"length": 128, "share": 0.5}),
            "optimizer": {"method": "muon", "learning_rate": 2e-3, "warmup": 0.05, "bias_correction": True},
            "dropout": 0.0,
            "initializer_range": 0.05,
            "start": "local",
        },
    }
)


def resolve_settings(recipe: str | None, given: Mapping[str, Any], *, begins_anew: bool = True) -> PretrainSettings:
    """The settings of `recipe` under those `given` (None: not given); InputError for a recipe that there is not.

    begins_anew: False for a run that begins from a model, which brings a shape of its own: the recipe's is left out.
    """
    if recipe is not None and recipe not in RECIPES:
        raise InputError(f"--recipe {recipe!r}: there are {', '.join(RECIPES)}")
    chosen = dict(RECIPES[recipe]) if recipe else {}
    if not begins_anew:
        chosen = {name: value for name, value in chosen.items() if name not in _OF_THE_MODEL}
    if given.get("steps") is not None or given.get("minutes") is not None:
        chosen = {name: value for name, value in chosen.items() if name not in ("steps", "minutes")}
    return PretrainSettings.model_validate(over(chosen, given))


def over(chosen: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`chosen` with what is not None in `given` in its place, group by group."""
    merged = dict(chosen)
    for name, value in given.items():
        if isinstance(value, Mapping):
            merged[name] = over(chosen.get(name, {}), value)
        elif value is not None:
            merged[name] = value
    return merged
