"""checkpoint of another format → model folder: what every importer finds, and how it is written."""

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
from bertwright.model.folder import save_weights
from bertwright.text.wordpiece import Tokenizer


@dataclass(frozen=True)
class Foreign:
    """A checkpoint as an importer read it.

    `found` says what was recognised, `weights` are by our names, `labels` the label names in the order of the outputs,
    `left_out` the names of tensors that are no weights, such as an optimiser's moments; `extra` is what a model folder
    of ours notes for a task. `multi_label`: a classifier of texts may answer several labels at once, or none.
    """

    place: str
    found: str
    config: EncoderConfig
    architecture: str
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer
    labels: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    multi_label: bool = False


def check_whole(foreign: Foreign) -> None:
    """InputError where tensors are missing, too many or of another shape than the architecture's, all of them named."""
    classes = len(foreign.weights.get("classifier.linear.weight", ())) or 2
    with torch.device("meta"):
        model = Bert(foreign.config, foreign.architecture, num_labels=classes)
    check_tensors(foreign.place, foreign.weights, model=model, kind=foreign.architecture)
    pieces, rows = foreign.tokenizer.vocab_size, foreign.config.vocab_size
    if pieces > rows:
        raise InputError(f"{foreign.place}: the vocabulary has {pieces} pieces, but there are embeddings for {rows}")


def check_tensors(place: str, weights: Mapping[str, Tensor], *, model: nn.Module, kind: str) -> None:
    """InputError where names or shapes of weights are not those of `model`, a whole `kind`, or values are no numbers.

    A pooler may always be there: many checkpoints have one that their class does not use.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    missing = sorted(wanted.keys() - given.keys())
    surplus = sorted(name for name in given.keys() - wanted.keys() if not name.startswith("pooler."))
    shapes = [
        f"{name} is {given[name]}, not {wanted[name]}"
        for name in wanted
        if given.get(name, wanted[name]) != wanted[name]
    ]
    wrong = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"no place for: {', '.join(surplus)}"] * bool(surplus)
    if wrong or shapes:
        raise InputError(f"{place}: not a whole {kind}; {'; '.join([*wrong, *shapes])}")
    if broken := [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]:
        raise InputError(f"{place}: infinite values or values that are no numbers in {', '.join(broken)}")


def write_foreign(foreign: Foreign, out: Path) -> None:
    """Write the model folder; InputError where the checkpoint is not whole or `out` exists."""
    if out.exists():
        raise InputError(f"{out}: exists already; name another folder or remove it")
    check_whole(foreign)
    with tempfile.TemporaryDirectory() as place:
        foreign.tokenizer.save(Path(place))
        save_weights(
            out,
            foreign.weights,
            config=foreign.config,
            tokenizer=Path(place),
            architecture=foreign.architecture,
            labels=foreign.labels,
            extra=foreign.extra,
        )
