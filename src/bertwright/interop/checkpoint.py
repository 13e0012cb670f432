"""checkpoint of another format → model folder: the common form that importers return, its checks, the writing."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.bert import Bert
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import save_model
from bertwright.text.wordpiece import Tokenizer


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint of another format, as its importer read it.

    source       path of the checkpoint, for messages
    layout       the format that was recognised, for the report
    weights      tensors by bertwright's parameter names
    labels       label names in the order of the outputs
    left_out     names of tensors that are not weights, such as an optimiser's moments
    extra        notes of a task, where the folder was written by bertwright
    multi_label  True where a classifier of texts may give several labels at once, or none
    """

    source: str
    layout: str
    config: EncoderConfig
    architecture: str
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer
    labels: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    multi_label: bool = False


def check_complete(foreign: ForeignCheckpoint) -> None:
    """Check that the tensors are those of the architecture, and the vocabulary fits the embeddings.

    Raises InputError with the names of all tensors that are missing, unknown or of another shape.
    """
    classes = len(foreign.weights.get("classifier.linear.weight", ())) or 2
    with torch.device("meta"):
        model = Bert(foreign.config, foreign.architecture, num_labels=classes)
    check_tensors(foreign.source, foreign.weights, model=model, kind=foreign.architecture)
    check_vocabulary_size(foreign.source, pieces=foreign.tokenizer.vocab_size, embeddings=foreign.config.vocab_size)


def check_vocabulary_size(source: str, *, pieces: int, embeddings: int) -> None:
    """Raise InputError where a vocabulary has more pieces than the model has embeddings."""
    if pieces > embeddings:
        raise InputError(f"{source}: the vocabulary has {pieces} pieces, but there are embeddings for {embeddings}")


def check_tensors(source: str, weights: Mapping[str, Tensor], *, model: nn.Module, kind: str) -> None:
    """Raise InputError where names or shapes of weights differ from those of `model`, or values are not finite.

    `kind` is the architecture, for the message. A pooler is always allowed: many checkpoints have one that their class
    does not use.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    actual = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    missing = sorted(expected.keys() - actual.keys())
    surplus = sorted(name for name in actual.keys() - expected.keys() if not name.startswith("pooler."))
    shapes = [
        f"{name} is {actual[name]}, not {expected[name]}"
        for name in expected
        if actual.get(name, expected[name]) != expected[name]
    ]
    wrong = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"unknown: {', '.join(surplus)}"] * bool(surplus)
    if wrong or shapes:
        raise InputError(f"{source}: not a complete {kind}; {'; '.join([*wrong, *shapes])}")
    if broken := [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]:
        raise InputError(f"{source}: infinite values or values that are no numbers in {', '.join(broken)}")


def write_checkpoint(foreign: ForeignCheckpoint, out: Path) -> None:
    """Write the model folder `out`. Raises InputError where the checkpoint is not complete or `out` exists."""
    if out.exists():
        raise InputError(f"{out}: exists already; name another folder or remove it")
    check_complete(foreign)
    with tempfile.TemporaryDirectory() as folder:
        foreign.tokenizer.save(Path(folder))
        save_model(
            out,
            foreign.weights,
            config=foreign.config,
            tokenizer=Path(folder),
            architecture=foreign.architecture,
            labels=foreign.labels,
            extra=foreign.extra,
        )
