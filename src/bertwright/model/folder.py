"""A model folder is a Hugging Face folder: config.json, model.safetensors and the tokenizer's files."""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from bertwright.errors import InputError, RunFailed
from bertwright.files import atomic_folder, check_digest, file_digest, note_digest, read_object, write_json
from bertwright.model.backbones import build_backbone
from bertwright.model.config import SYSTEMS, BackboneConfig, size_config, system_config
from bertwright.model.hf_config import MULTI_LABEL, described, read_described
from bertwright.model.hf_weights import foreign_hint, named_weights, stored_names, stored_tensors
from bertwright.shipped import place_of, shipped

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "vocab.json", "merges.txt")
WEIGHTS = "model.safetensors"
"""The file of weights. Its digest lies in a file of its own beside it, which `sha256sum --check` reads.

It does not stand in config.json: transformers' `save_pretrained` writes what it does not know of that file beside other
weights, and a good folder would be refused. Nor does it stand among the tensors' metadata: the file would then have
other bytes than the same training gave before, and another sha256 than the one it notes.
"""
CARD = "README.md"
"""What a model folder says of itself to people."""


@dataclass(frozen=True)
class SavedModel:
    """What a model folder holds; `weights` is None for `random:SIZE`.

    `architecture` is the class of transformers whose heads the weights have; `labels` are the label names in the order
    of the classifier's outputs; `extra` is what a task notes for itself.
    """

    place: str
    config: BackboneConfig
    weights: Mapping[str, Tensor] | None
    tokenizer: Path
    architecture: str = "BertModel"
    labels: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    digest: str | None = None
    """sha256 of the file of weights as it was opened; None where none was noted, so that none was computed."""

    @property
    def max_length(self) -> int:
        """The tokens of a row of its task, as its fine-tuning noted them; InputError for what cannot be."""
        noted, most = self.extra.get("max_length"), self.config.max_positions
        if type(noted) is not int or not 3 <= noted <= most:
            raise InputError(
                f"{self.place}: config.json notes the max_length {noted!r} of its task; "
                f"a whole number from 3 to {most}, the model's positions, is due"
            )
        return noted


def save_model(
    folder: Path,
    module: nn.Module,
    *,
    config: BackboneConfig,
    tokenizer: Path,
    architecture: str,
    labels: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write `module` (fp32) as a Hugging Face folder with the tokenizer's files beside it, atomically."""
    save_weights(
        folder,
        module.state_dict(),
        config=config,
        tokenizer=tokenizer,
        architecture=architecture,
        labels=labels,
        extra=extra,
    )


def save_weights(
    folder: Path,
    weights: Mapping[str, Tensor],
    *,
    config: BackboneConfig,
    tokenizer: Path,
    architecture: str,
    labels: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
    card: str | None = None,
) -> None:
    """As `save_model`, for weights by our names; `card` becomes its README.md."""
    noted = dict(extra or {})
    said = described(config, architecture, labels) | {"bertwright": noted}
    if _answers_several(noted):
        said |= {"problem_type": MULTI_LABEL}
    beside = map(tokenizer.joinpath, TOKENIZER_FILES)
    tensors = stored_names(weights, config, architecture)
    write_folder(folder, tensors, described=said, beside=beside, card=card, positions=config.max_positions)


def is_multilabel(saved: SavedModel) -> bool:
    """Whether it is a classifier of which several outputs may apply at once, or none."""
    return _answers_several(saved.extra)


def _answers_several(noted: Mapping[str, Any]) -> bool:
    task = noted.get("task")
    return isinstance(task, Mapping) and task.get("kind") == "multilabel"


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    described: Mapping[str, Any],
    beside: Iterable[Path],
    positions: int,
    card: str | None = None,
) -> None:
    """Write tensors, `described` as config.json and the files `beside` that exist as one folder, atomically.

    positions: the most tokens that other programs are told to give to the model.
    """
    named = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_folder(folder) as temporary:
        stored = temporary / WEIGHTS
        try:
            save_file(named, stored, metadata={"format": "pt"})
            stored.chmod(temporary.stat().st_mode & 0o666)  # it is made for its owner's eyes alone
        except SafetensorError as error:  # without a number: a full disk looks like any other trouble
            raise RunFailed(f"{folder}: the model cannot be written (is the disk full?): {error}") from error
        note_digest(stored)
        for file in beside:
            if file.is_file():  # a published folder may lack vocab.txt or tokenizer.json
                shutil.copyfile(file, temporary / file.name)
        _tell_length(temporary / "tokenizer_config.json", positions)
        if card is not None:
            (temporary / CARD).write_text(card, "utf-8")
        (temporary / "config.json").write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _tell_length(path: Path, positions: int) -> None:
    """Change the length that a tokenizer's file tells, where it is not the model's."""
    told = read_object(path) if path.is_file() else {}
    if told.get("model_max_length", positions) != positions:
        write_json(path, {**told, "model_max_length": positions})


def copy_description(saved: SavedModel, folder: Path) -> None:
    """Copy what a model folder says of itself into `folder`: config.json and the tokenizer's files, but no weights."""
    for name in ("config.json", *TOKENIZER_FILES):
        if (saved.tokenizer / name).is_file():
            shutil.copyfile(saved.tokenizer / name, folder / name)


def open_model(source: str, *, tokenizer: Path | None = None, vocab_size: int | None = None) -> SavedModel:
    """Open MODEL: a model folder, a run folder holding `model/`, the name of a model that comes with the program, or
    `random:SIZE` (`random:gpt:SIZE` and so on).

    Random weights need `tokenizer` and its `vocab_size`.
    """
    if source.startswith("random:"):
        return _random(source, tokenizer, vocab_size)
    folder = model_within(place_of(source))
    if not (folder / "config.json").is_file():
        hint = "; its run has not finished yet" if (folder / "run.json").is_file() else ""
        hint = hint or foreign_hint(folder)
        comes = "".join(f"; {name} comes with the program" for name in shipped() if name != source)
        if source in shipped():
            hint = "; it hides the model of that name that comes with the program: rename it, or work in another folder"
        if source.startswith("hub:"):
            hint = f"; make one of it first: bertwright import {source} --out FOLDER"
        raise InputError(f"{source}: not a model folder (no config.json){hint}; a size is written random:SIZE{comes}")
    found = read_described(folder / "config.json")
    digest = check_digest(folder / WEIGHTS)  # first: a damaged file explains whatever else is wrong with it
    weights = named_weights(stored_tensors(folder), found, str(folder / WEIGHTS))
    _check_weights(found.config, weights, str(folder))
    architecture = found.architecture or "BertModel"
    return SavedModel(str(folder), found.config, weights, folder, architecture, found.labels, found.extra, digest)


def model_within(folder: Path) -> Path:
    """The model folder of a run folder, or the folder itself."""
    return folder / "model" if (folder / "model" / "config.json").is_file() else folder


def weights_digest(saved: SavedModel) -> str | None:
    """sha256 of the file of weights in hex, computed unless it was at opening; None for random ones."""
    return None if saved.weights is None else saved.digest or file_digest(Path(saved.place) / WEIGHTS)


def _check_weights(config: BackboneConfig, weights: Mapping[str, Tensor], place: str) -> None:
    """InputError where the body's weights are not those that config.json asks for, no more and no fewer.

    Sizes are compared before memory is taken for them.
    """
    stored = sum(name.startswith("encoder.") for name in weights)
    if config.layers > stored:  # each layer has several
        raise InputError(f"{place}: config.json asks for {config.layers} layers, but there are {stored} tensors")
    with torch.device("meta"):
        wanted = {
            f"encoder.{name}": tuple(tensor.shape) for name, tensor in build_backbone(config).state_dict().items()
        }
    whole = {layer_of(name) for name in weights}
    for name, shape in wanted.items():
        given = weights.get(name)
        if given is None and layer_of(name) in whole:  # a part that is missing is told by whoever needs it
            continue
        if given is None:
            raise InputError(f"{place}: the model has no weights for {name}, which config.json asks for")
        if tuple(given.shape) != shape:
            raise InputError(f"{place}: {name} has shape {tuple(given.shape)}, expected {shape}")
    surplus = [name for name in weights if name.startswith("encoder.") and name not in wanted]
    if surplus:
        shown = ", ".join(surplus[:3]) + ", …" * (len(surplus) > 3)
        raise InputError(f"{place}: config.json leaves no place for {len(surplus)} of the body's tensors: {shown}")


def layer_of(name: str) -> str:
    """Where a parameter stands, down to its layer, or to its table among the embeddings."""
    parts = name.split(".")
    depth = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: depth + 1])


def load_weights(module: nn.Module, saved: SavedModel, *, fresh: tuple[str, ...] = ()) -> None:
    """Copy the saved weights into `module`; parts named in `fresh` may be absent and keep what they have.

    Weights of heads that `module` lacks are left out, as are those of another shape of a part in `fresh`; elsewhere a
    missing or wrongly shaped tensor is an InputError. So is a number of the body that is none: answers might hide it,
    as they cannot where it is a head's.
    """
    if saved.weights is None:
        return
    own = module.state_dict()
    missing = [name for name in own if name not in saved.weights and not name.startswith(fresh or ("\0",))]
    if missing:
        raise InputError(f"{saved.place}: the model has no weights for {', '.join(missing[:3])}, which this use needs")
    for name, tensor in own.items():
        given = saved.weights.get(name)
        if given is None or (name.startswith(fresh or ("\0",)) and given.shape != tensor.shape):
            continue
        if given.shape != tensor.shape:
            raise InputError(f"{saved.place}: {name} has shape {tuple(given.shape)}, expected {tuple(tensor.shape)}")
        if name.startswith("encoder.") and not bool(given.isfinite().all()):
            raise InputError(f"{saved.place}: {name} holds infinite values or values that are no numbers")
        with torch.no_grad():
            tensor.copy_(given)


def _random(source: str, tokenizer: Path | None, vocab_size: int | None) -> SavedModel:
    """`random:SIZE`, or `random:SYSTEM:SIZE` for another system than a BERT."""
    named, _, size = source.removeprefix("random:").rpartition(":")
    system: Any = named or "bert"
    if system not in SYSTEMS:
        raise InputError(f"{source}: there is no system {system!r}; there are {', '.join(SYSTEMS)}")
    size_config(size, 1)  # raises with the list of sizes
    if tokenizer is None or vocab_size is None:
        raise InputError(f"{source}: random weights need a vocabulary: --tokenizer DIR (a tokenizer or model folder)")
    return SavedModel(source, system_config(system, size, vocab_size), None, model_within(place_of(tokenizer)))
