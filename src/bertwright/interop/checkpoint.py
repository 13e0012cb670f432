"""checkpoint of another format → model folder: the form that all importers return, its checks, the writing."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.model.backbones import build_backbone
from bertwright.model.bert import ARCHITECTURES, Bert
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import save_model
from bertwright.model.heads import NextSentenceHead
from bertwright.model.vector_head import VectorHead
from bertwright.output_paths import refuse_existing
from bertwright.text.base_tokenizer import BaseTokenizer

_POOLER = "pooler."


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint of another format, as its importer read it.

    source         path of the checkpoint, for messages
    layout         the format that was recognised, for the report
    weights        tensors by bertwright's parameter names
    labels         label names in the order of the outputs
    left_out       names of tensors that are not weights, such as an optimiser's moments
    extra          notes of a task, where the folder was written by bertwright
    multi_label    True where a classifier of texts may give several labels at once, or none
    name_in_file   bertwright's name of a parameter → its name in the files, for messages
    is_transposed  True for the name of a parameter that the files hold transposed, for messages
    vectors        pooling, dense layers and prompts of a model of sentence-transformers; None without them
    """

    source: str
    layout: str
    config: EncoderConfig
    architecture: str
    weights: Mapping[str, Tensor]
    tokenizer: BaseTokenizer
    labels: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    multi_label: bool = False
    name_in_file: Callable[[str], str] = str
    is_transposed: Callable[[str], bool] = lambda _: False
    vectors: VectorHead | None = None


def check_complete(foreign: ForeignCheckpoint) -> None:
    """Check that the tensors are those of the architecture, and that every piece of the vocabulary has an embedding.

    Raises InputError with the names of all tensors that are missing, unknown, of another shape or not finite.
    """
    classes = len(foreign.weights.get("classifier.linear.weight", ())) or 2
    with torch.device("meta"):
        if foreign.architecture in ARCHITECTURES:
            model: nn.Module = Bert(foreign.config, foreign.architecture, num_labels=classes)
        else:  # a language model, whose output layer is its word embeddings
            model = nn.ModuleDict({"encoder": build_backbone(foreign.config)})
        if foreign.config.pair_head_shares_layer and "next_sentence.linear.weight" in foreign.weights:
            model.add_module("next_sentence", NextSentenceHead(foreign.config))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if foreign.architecture == "BertModel" and not any(name.startswith(_POOLER) for name in foreign.weights):
        # An encoder of vectors, which pools in its own way.
        expected = {name: shape for name, shape in expected.items() if not name.startswith(_POOLER)}
    _check_tensors(foreign, expected)
    pieces, embeddings = foreign.tokenizer.vocab_size, foreign.config.vocab_size
    if foreign.vectors:
        foreign.vectors.settings.check_pieces(pieces, foreign.source)
    if pieces > embeddings:
        raise InputError(
            f"{foreign.source}: the vocabulary has {pieces} pieces, but there are embeddings for {embeddings}"
        )


def _check_tensors(foreign: ForeignCheckpoint, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise InputError where names or shapes of the weights are not the expected ones, or values are not finite.

    A pooler is always allowed: many checkpoints have one that their class does not use.
    """
    actual = {name: tuple(tensor.shape) for name, tensor in foreign.weights.items()}
    missing = sorted(expected.keys() - actual.keys())
    unknown = sorted(name for name in actual.keys() - expected.keys() if not name.startswith(_POOLER))
    problems = [f"missing: {_names_in_file(foreign, missing)}"] if missing else []
    problems += [f"unknown: {_names_in_file(foreign, unknown)}"] if unknown else []
    for name, shape in expected.items():
        if actual.get(name, shape) != shape:
            order = -1 if foreign.is_transposed(name) else 1
            problems.append(f"{foreign.name_in_file(name)} is {actual[name][::order]}, not {shape[::order]}")
    if problems:
        raise InputError(f"{foreign.source}: not a complete {foreign.architecture}; {'; '.join(problems)}")
    if broken := [name for name, tensor in foreign.weights.items() if not bool(tensor.isfinite().all())]:
        names = _names_in_file(foreign, broken)
        raise InputError(f"{foreign.source}: infinite values or values that are no numbers in {names}")


def _names_in_file(foreign: ForeignCheckpoint, names: Sequence[str]) -> str:
    """Return the names of parameters as the files have them, with commas between."""
    return ", ".join(map(foreign.name_in_file, names))


def write_checkpoint(foreign: ForeignCheckpoint, out: Path) -> None:
    """Write the model folder `out`. Raises InputError where the checkpoint is not complete or `out` exists."""
    refuse_existing(out)
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
            vectors=foreign.vectors,
            replaces=False,
        )
