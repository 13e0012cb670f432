"""model ↔ model folder, a Hugging Face folder: config.json, model.safetensors and the files of the tokenizer."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.files import (
    atomic_file,
    atomic_folder,
    check_digest,
    file_digest,
    new_folder,
    note_digest,
    read_object,
    read_object_if_there,
    write_error,
    write_json,
)
from bertwright.model.backbones import build_backbone
from bertwright.model.config import BackboneConfig, size_config
from bertwright.model.hf_config import MULTI_LABEL, describe_model, read_description
from bertwright.model.hf_weights import foreign_hint, name_in_file, named_weights, stored_names, stored_tensors
from bertwright.model.system import SYSTEMS, system_config
from bertwright.model.vector_head import VectorHead, write_vector_head
from bertwright.model.vector_settings import is_vector_file
from bertwright.shipped import folder_of, shipped

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "vocab.json", "merges.txt")
WEIGHTS = "model.safetensors"
"""File name of the weights. A file beside it holds its digest, in the form that `sha256sum --check` reads.

The digest is not in config.json: `save_pretrained` of transformers copies unknown entries of that file to folders with
other weights, and a good folder would be refused. It is not in the metadata of the tensors either: it would change the
bytes of the file, and so the sha256 itself.
"""
TRAINED_POSITIONS = "trained_positions"
"""Note in config.json: number of first positions that rows of a pre-training had."""
CARD = "README.md"
"""File name of the model card."""
_MODEL_FILES = frozenset({WEIGHTS, f"{WEIGHTS}.sha256", "config.json", CARD, *TOKENIZER_FILES})


@dataclass(frozen=True)
class SavedModel:
    """Content of a model folder, or random weights.

    source: path of the folder, or `random:SIZE`. weights: tensors by our names; None for `random:SIZE`.
    architecture: class of transformers whose heads the weights have. labels: label names in the order of the outputs.
    extra: notes of bertwright in config.json, such as the task.
    """

    source: str
    config: BackboneConfig
    weights: Mapping[str, Tensor] | None
    tokenizer: Path
    architecture: str = "BertModel"
    labels: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    digest: str | None = None
    """sha256 of the file of weights, checked when it was opened; None where the folder notes none."""

    @property
    def trained_positions(self) -> int:
        """Return the number of first positions that were trained: all of them where the folder notes none."""
        noted, most = self.extra.get(TRAINED_POSITIONS), self.config.max_positions
        return min(noted, most) if type(noted) is int and noted > 0 else most

    @property
    def max_length(self) -> int:
        """Return the maximum number of tokens of its task, as fine-tuning noted it; InputError if it is invalid."""
        noted, most = self.extra.get("max_length"), self.config.max_positions
        if type(noted) is not int or not 3 <= noted <= most:
            raise InputError(
                f"{self.source}: config.json notes the max_length {noted!r} of its task; "
                f"expected an integer from 3 to {most}, the number of positions of the model"
            )
        return noted


def save_model(
    folder: Path,
    model: nn.Module | Mapping[str, Tensor],
    *,
    config: BackboneConfig,
    tokenizer: Path,
    architecture: str,
    labels: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
    card: str | None = None,
    vectors: VectorHead | None = None,
    replaces: bool = True,
) -> None:
    """Write a model, or its fp32 weights by our names, as a Hugging Face folder, atomically.

    tokenizer: folder whose tokenizer files are copied. card: text of README.md. vectors: with it the folder is one of
    sentence-transformers too. replaces: False to refuse an earlier model. The other fields: see `SavedModel`.
    """
    weights = model.state_dict() if isinstance(model, nn.Module) else model
    notes = dict(extra or {})
    description = describe_model(config, architecture, labels) | {"bertwright": notes}
    if is_multilabel(notes):
        description |= {"problem_type": MULTI_LABEL}
    beside = map(tokenizer.joinpath, TOKENIZER_FILES)
    tensors = stored_names(weights, config, architecture)
    write_folder(
        folder,
        tensors,
        described=description,
        beside=beside,
        card=card,
        positions=config.max_positions,
        vectors=vectors,
        replaces=replaces,
    )


def is_multilabel(notes: Mapping[str, Any]) -> bool:
    """Return True where the notes in config.json name a task with independent labels: any number of them may apply."""
    task = notes.get("task")
    return isinstance(task, Mapping) and task.get("kind") == "multilabel"


def model_files(folder: Path) -> list[str]:
    """Return the files of a model folder that belong to its model, sorted, as paths below it."""
    paths = [path for path in folder.iterdir() if path.name in _MODEL_FILES or is_vector_file(path.name)]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return sorted(file.relative_to(folder).as_posix() for file in files)


@contextmanager
def model_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill that becomes the model folder `folder`, as `atomic_folder` does.

    Raises InputError, and leaves `folder` as it is, where it holds anything but the files of an earlier model.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    is_model = "config.json" in names  # a README.md alone is a person's
    if others := sorted(name for name in names if not is_model or not (name in _MODEL_FILES or is_vector_file(name))):
        raise InputError(
            f"{folder}: holds {others[0]}, which is no part of a model and is not deleted; move it away and give the "
            "same command again (a run: with --resume)"
        )
    with atomic_folder(folder) as temporary:
        yield temporary


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    described: Mapping[str, Any],
    beside: Iterable[Path],
    positions: int,
    card: str | None = None,
    vectors: VectorHead | None = None,
    replaces: bool = True,
) -> None:
    """Write tensors by their stored names, and the other files of a model folder, atomically.

    described: content of config.json. beside: files that are copied; a file that does not exist is left out.
    positions: maximum number of tokens of the model, written to tokenizer_config.json for other programs.
    replaces: False to refuse an earlier model.
    """
    named = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with model_folder(folder) if replaces else new_folder(folder) as temporary:
        stored = temporary / WEIGHTS
        try:
            save_file(named, stored, metadata={"format": "pt"})
            stored.chmod(temporary.stat().st_mode & 0o666)  # save_file makes it readable for its owner alone
        except SafetensorError as error:
            raise write_error(error, f"{folder}: the model") from error
        note_digest(stored)
        for file in beside:
            if file.is_file():  # a published folder may lack vocab.txt or tokenizer.json
                shutil.copyfile(file, temporary / file.name)
        _set_max_length(temporary / "tokenizer_config.json", positions)
        if card is not None:
            (temporary / CARD).write_text(card, "utf-8", newline="\n")
        if vectors is not None:
            write_vector_head(temporary, vectors, positions=positions)
        (temporary / "config.json").write_bytes(_described(described))


def _set_max_length(path: Path, positions: int) -> None:
    """Set `model_max_length` in tokenizer_config.json where the file gives another length."""
    settings = read_object_if_there(path)
    if settings.get("model_max_length", positions) != positions:
        write_json(path, {**settings, "model_max_length": positions})


def note_task(saved: SavedModel, changes: Mapping[str, Any]) -> None:
    """Change entries of the task in the config.json of a model folder; its other entries and the weights stay."""
    path = Path(saved.source) / "config.json"
    described = read_object(path)
    noted = described["bertwright"]
    described["bertwright"] = {**noted, "task": {**noted["task"], **changes}}
    with atomic_file(path) as stream:
        stream.write(_described(described))


def _described(description: Mapping[str, Any]) -> bytes:
    """Return the bytes of config.json."""
    return (json.dumps(description, indent=2, ensure_ascii=False) + "\n").encode()


def copy_description(saved: SavedModel, folder: Path) -> None:
    """Copy config.json and the tokenizer's files of a model folder to `folder`; the weights are not copied."""
    for name in ("config.json", *TOKENIZER_FILES):
        if (saved.tokenizer / name).is_file():
            shutil.copyfile(saved.tokenizer / name, folder / name)


def refuse_random_name(model: str) -> None:
    """Raise InputError for `random:SIZE`, before anything is opened."""
    if model.startswith("random:"):
        raise InputError(f"{model}: random weights have learned nothing; name a model folder or a run")


def refuse_random(saved: SavedModel) -> None:
    """Raise InputError for a model with random weights."""
    if saved.weights is None:
        raise InputError(f"{saved.source}: random weights have learned nothing; name a pre-trained model")


def open_model(source: str, *, tokenizer: Path | None = None, vocab_size: int | None = None) -> SavedModel:
    """Open MODEL: a model folder, a run folder with `model/`, a model that comes with the program, or `random:SIZE`.

    `random:SYSTEM:SIZE` names another system than BERT, such as `random:gpt:tiny`. Random weights need `tokenizer` and
    its `vocab_size`. Raises InputError for a missing or damaged folder.
    """
    if source.startswith("random:"):
        return _random(source, tokenizer, vocab_size)
    folder = model_within(folder_of(source))
    if not (folder / "config.json").is_file():
        hint = _unfinished_hint(folder) if (folder / "run.json").is_file() else ""
        hint = hint or foreign_hint(folder)
        others = "".join(f"; {name} comes with the program" for name in shipped() if name != source)
        if source in shipped():
            hint = "; it hides the model of that name that comes with the program: rename it, or work in another folder"
        if source.startswith("hub:"):
            hint = f"; make one of it first: bertwright import {source} --out FOLDER"
        raise InputError(f"{source}: not a model folder (no config.json){hint}; a size is written random:SIZE{others}")
    description = read_description(folder / "config.json")
    digest = check_digest(folder / WEIGHTS)  # first: a damaged file explains any later error
    tensors = stored_tensors(folder)
    weights = named_weights(tensors, description, str(folder / WEIGHTS))
    architecture = description.architecture or "BertModel"
    in_file = partial(name_in_file, config=description.config, architecture=architecture, stored=tensors)
    _check_weights(description.config, weights, str(folder), in_file=in_file)
    return SavedModel(
        str(folder),
        description.config,
        weights,
        tokenizer=folder,
        architecture=architecture,
        labels=description.labels,
        extra=description.extra,
        digest=digest,
    )


def _unfinished_hint(run: Path) -> str:
    """Return what a run folder without a model has: the best epochs of its seeds, where a fine-tuning was stopped."""
    seeds = sorted(path.parents[1].name for path in run.glob("seed-*/model/config.json"))
    models = f"; the best epoch so far is in {', '.join(str(run / seed) for seed in seeds)}" if seeds else ""
    return f"; its run has not finished yet{models}"


def notes_of(source: str) -> Mapping[str, Any]:
    """Return the entries of bertwright in the config.json of MODEL, without its weights; empty where it has none."""
    path = model_within(folder_of(source)) / "config.json"
    notes = read_object_if_there(path).get("bertwright")
    return notes if isinstance(notes, Mapping) else {}


def model_within(folder: Path) -> Path:
    """Return the model folder in a run folder; another folder is returned as it is."""
    return folder / "model" if (folder / "model" / "config.json").is_file() else folder


def weights_digest(saved: SavedModel) -> str | None:
    """Return the sha256 of the file of weights in hex; None for random weights. It is computed where none was noted."""
    return None if saved.weights is None else saved.digest or file_digest(Path(saved.source) / WEIGHTS)


def _check_weights(
    config: BackboneConfig, weights: Mapping[str, Tensor], source: str, *, in_file: Callable[[str], str]
) -> None:
    """Raise InputError where the backbone's weights are not exactly those of the configuration in config.json.

    in_file: name of a parameter → its name in the file. Sizes are compared before memory is allocated.
    """
    stored = sum(name.startswith("encoder.") for name in weights)
    if config.distinct_layers > stored:  # each layer has several
        raise InputError(
            f"{source}: config.json asks for {config.distinct_layers} layers, but there are {stored} tensors"
        )
    with torch.device("meta"):
        wanted = {
            f"encoder.{name}": tuple(tensor.shape) for name, tensor in build_backbone(config).state_dict().items()
        }
    present = {layer_of(name) for name in weights}
    for name, shape in wanted.items():
        tensor = weights.get(name)
        if tensor is None and layer_of(name) in present:  # `load_weights` names a tensor that is missing in a layer
            continue
        if tensor is None:
            raise InputError(f"{source}: the model has no weights for {in_file(name)}, which config.json asks for")
        if tuple(tensor.shape) != shape:
            raise InputError(f"{source}: {in_file(name)} has shape {tuple(tensor.shape)}, expected {shape}")
    surplus = [name for name in weights if name.startswith("encoder.") and name not in wanted]
    if surplus:
        shown = ", ".join(map(in_file, surplus[:3])) + ", …" * (len(surplus) > 3)
        raise InputError(f"{source}: {len(surplus)} tensors do not belong to the model of config.json: {shown}")


def layer_of(name: str) -> str:
    """Return the part of a parameter's name that names its layer, or its module among the embeddings."""
    parts = name.split(".")
    depth = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: depth + 1])


def load_weights(module: nn.Module, saved: SavedModel, *, fresh: tuple[str, ...] = ()) -> None:
    """Copy the saved weights into `module` (in place).

    fresh: prefixes of parameters that may be missing or have another shape; these keep their values.
    Saved heads that `module` lacks are ignored. Raises InputError for a missing tensor, for a tensor of another shape,
    and for values of the backbone that are infinite or NaN; in a head such values would show in every output.
    """
    if saved.weights is None:
        return
    parameters = module.state_dict()
    in_file = partial(name_in_file, config=saved.config, architecture=saved.architecture)
    missing = [name for name in parameters if name not in saved.weights and not name.startswith(fresh or ("\0",))]
    if missing:
        names = ", ".join(map(in_file, missing[:3]))
        raise InputError(f"{saved.source}: the model has no weights for {names}, which this use needs")
    for name, parameter in parameters.items():
        tensor = saved.weights.get(name)
        if tensor is None or (name.startswith(fresh or ("\0",)) and tensor.shape != parameter.shape):
            continue
        if tensor.shape != parameter.shape:
            raise InputError(
                f"{saved.source}: {in_file(name)} has shape {tuple(tensor.shape)}, expected {tuple(parameter.shape)}"
            )
        if name.startswith("encoder.") and not bool(tensor.isfinite().all()):
            raise InputError(f"{saved.source}: {in_file(name)} holds infinite values or values that are no numbers")
        with torch.no_grad():
            parameter.copy_(tensor)


def _random(source: str, tokenizer: Path | None, vocab_size: int | None) -> SavedModel:
    """Return the model of `random:SIZE`, or of `random:SYSTEM:SIZE` for another system than a BERT."""
    prefix, _, size = source.removeprefix("random:").rpartition(":")
    system: Any = prefix or "bert"
    if system not in SYSTEMS:
        raise InputError(f"{source}: there is no system {system!r}; there are {', '.join(SYSTEMS)}")
    size_config(size, 1)  # raises with the list of sizes
    if tokenizer is None or vocab_size is None:
        raise InputError(
            f"{source}: random weights need a vocabulary: --tokenizer DIR (a tokenizer or model folder); a command "
            "without that option needs a trained model"
        )
    return SavedModel(source, system_config(system, size, vocab_size), None, model_within(folder_of(tokenizer)))
