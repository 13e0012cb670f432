"""a published BERT in Hugging Face's layout → model folder: sharded and pickled weights, old names, every head.

Weights are `model.safetensors` or `pytorch_model.bin`, whole or in shards with an index. A pickle is opened with
`weights_only=True`, which runs no code of the file.
"""

import json
import pickle  # noqa: TID251  (its error is caught; nothing is read or written with it)
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import check_digest, read_json
from bertwright.interop.foreign import Foreign
from bertwright.interop.pickled import check_held, check_pickle, is_zip
from bertwright.model.architectures import ARCHITECTURES, Head, architecture_of
from bertwright.model.described import MULTI_LABEL, read_config
from bertwright.model.naming import own_weights, read_safetensors
from bertwright.model.sizes import encoder_shape
from bertwright.text.tokenizer import Tokenizer
from bertwright.text.vocabulary import Rules, has_casing, read_vocabulary

_WHOLE = ("model.safetensors", "pytorch_model.bin")
_HEADS: tuple[Head, ...] = ("pooler", "masked_lm", "next_sentence", "classifier", "span")
_POINTER = b"version https://git-lfs"
_WRAPPER = "module."
"""What torch's DataParallel puts before every name."""


def recognises(folder: Path) -> bool:
    """Whether a folder is laid out as transformers lays out a model."""
    return (folder / "config.json").is_file()


def read_huggingface(folder: Path, *, cased: bool | None = None) -> Foreign:
    """Read a folder; `cased` is needed, and looked at, only where its tokenizer's files do not say it.

    InputError for what is missing or broken, for tensors that no BERT has, and for heads that cannot be told apart.
    """
    described = read_config(folder / "config.json")
    raw, files = read_weights(folder)
    weights = own_weights(_unwrapped(raw), str(folder))
    architecture = _architecture(weights, described.architecture, folder)
    if (folder / "modules.json").is_file():
        say(f"{folder}: is of sentence-transformers; its pooling, and what follows it, are not taken along")
    classes = num_outputs(weights, str(folder))
    labels = described.labels if classes else ()
    if architecture == "BertForSequenceClassification" and "task" not in described.extra:
        _refuse_problem(described.raw.get("problem_type"), classes, folder / "config.json")
    if labels and len(labels) != classes and architecture != "BertForMultipleChoice":
        raise InputError(
            f"{folder / 'config.json'}: id2label names {len(labels)} labels, but there are {classes} outputs"
        )
    return Foreign(
        place=str(folder),
        found=f"Hugging Face's layout, {files}",
        config=encoder_shape(described.config, str(folder)),
        architecture=architecture,
        weights=weights,
        tokenizer=_tokenizer(folder, cased),
        labels=() if architecture == "BertForMultipleChoice" else labels,
        extra=described.extra,
        multi_label=described.raw.get("problem_type") == MULTI_LABEL,
    )


def _refuse_problem(problem: Any, outputs: int, path: Path) -> None:
    """InputError where a classifier is told to learn what its number of outputs cannot answer here."""
    fitting = (None, "regression") if outputs == 1 else (None, "single_label_classification", MULTI_LABEL)
    if problem not in fitting:
        allowed = ", ".join(map(str, fitting[1:]))
        raise InputError(f"{path}: problem_type is {problem!r} with {outputs} outputs; with so many it is {allowed}")


def read_weights(folder: Path) -> tuple[dict[str, Tensor], str]:
    """All tensors of a folder under the names that stand there, and which files these are.

    InputError for files that are missing, broken, or hold more than tensors.
    """
    for name in _WHOLE:
        if (folder / name).is_file():
            return _read_file(folder / name), name
        if (folder / f"{name}.index.json").is_file():
            return _read_shards(folder / f"{name}.index.json")
    others = [name for name in ("tf_model.h5", "flax_model.msgpack") if (folder / name).is_file()]
    hint = f"; {others[0]} is read by no importer here: let transformers write model.safetensors" if others else ""
    raise InputError(f"{folder}: holds no weights: none of {', '.join(_WHOLE)}, whole or with .index.json{hint}")


def _read_file(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            raise InputError(f"{path}: a Git LFS pointer, not the weights; fetch them: git lfs pull")
    check_digest(path)  # a damaged model of ours would be written anew, with a digest that fits the damage
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    check_pickle(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip(path))
    except pickle.UnpicklingError as error:
        first = str(error).strip().splitlines()[0]
        if "WeightsUnpickler" not in first and "Unsupported" not in first and "weights_only" not in str(error):
            raise InputError(f"{path}: not a file of torch's: {first}") from None
        raise InputError(
            f"{path}: holds more than tensors, so it is not opened (it could run code; weights_only): {first}"
        ) from None
    except Exception as error:  # what a broken pickle raises is of many kinds
        raise InputError(f"{path}: broken or truncated ({type(error).__name__}: {error})") from None
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise InputError(f"{path}: holds a {type(found).__name__}; a state dict of named tensors is read")
    check_held(found, path)
    return dict(found)


def _read_shards(index: Path) -> tuple[dict[str, Tensor], str]:
    described = read_json(index)
    places: Any = described.get("weight_map") if isinstance(described, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise InputError(f"{index}: has no weight_map from tensors to files")
    found: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        shard = index.parent / name
        if Path(name).name != name or not shard.is_file():
            raise InputError(f"{index}: names {name}, which does not lie beside it")
        tensors = _read_file(shard)
        wanted = {key for key, place in places.items() if place == name}
        if missing := sorted(wanted - tensors.keys()):
            raise InputError(f"{shard}: lacks {', '.join(missing)}, which {index.name} says it holds")
        found |= tensors
    return found, f"{len(set(places.values()))} shards of {index.name.removesuffix('.index.json')}"


def num_outputs(weights: Mapping[str, Tensor], place: str) -> int:
    """How many outputs a classifier has, 0 without one; InputError for a weight that is no matrix."""
    weight = weights.get("classifier.linear.weight")
    if weight is None:
        return 0
    if weight.ndim != 2:
        raise InputError(f"{place}: classifier.weight has the shape {tuple(weight.shape)}; [outputs, hidden] is due")
    return len(weight)


def _unwrapped(raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if raw and all(name.startswith(_WRAPPER) for name in raw):
        return {name.removeprefix(_WRAPPER): tensor for name, tensor in raw.items()}
    return raw


def _architecture(weights: Mapping[str, Tensor], named: str | None, folder: Path) -> str:
    """The class whose heads are there: the one that config.json names if they are its own, else the only one that fits.

    Published folders often name a class with fewer heads than their weights have: what is there counts.
    """
    there = {head for head in _HEADS if any(name.startswith(f"{head}.") for name in weights)}
    fitting = [name for name, kind in ARCHITECTURES.items() if there - {"pooler"} == {*kind.heads} - {"pooler"}]
    fitting = [name for name in fitting if "pooler" in there or "pooler" not in architecture_of(name).heads]
    if named in fitting:
        return named
    if "classifier" in there and named in ARCHITECTURES and "pooler" not in there:
        return named  # its pooler is missing, which whoever checks it will say
    if "classifier" in there:
        raise InputError(
            f"{folder / 'config.json'}: architectures is {json.dumps(named)}, and a classifier's weights may be of "
            f"{', '.join(fitting) or 'no class known here'}: write the one that it is there"
        )
    if not fitting and there:
        raise InputError(f"{folder}: no class of transformers has the heads {', '.join(sorted(there))} together")
    return fitting[0] if fitting else "BertModel"


def _tokenizer(folder: Path, cased: bool | None) -> Tokenizer:
    vocabulary = folder / "vocab.txt"
    if vocabulary.is_file() and not has_casing(folder):
        if cased is None:
            raise InputError(
                f"{folder}: its files do not say whether upper case is kept; give --casing cased or --casing uncased"
            )
        return Tokenizer(read_vocabulary(vocabulary), Rules(cased=cased, strip_accents=not cased))
    found = Tokenizer.load(folder)
    if cased is not None and cased != found.cased:
        said = "cased" if found.cased else "uncased"
        raise InputError(f"{folder}: its tokenizer's files say {said}; leave --casing out")
    return found
