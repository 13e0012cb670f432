"""a published BERT in Hugging Face's layout → weights by bertwright's names: shards, pickles, old names, every head.

Weights are `model.safetensors` or `pytorch_model.bin`, in one file or in shards with an index.

A pickle is opened with torch's `weights_only=True`, which runs no code of the file. But torch then still allows calls
that fill the memory (a bytearray of any length, a tensor of any size over one number), and unpacks all that an archive
holds. Files that torch.save wrote need none of that. So a file is checked before torch opens it: `check_pickle` finds
the calls without making them and allows only those that build plain tensors.
"""

import io
import json
import pickle  # noqa: TID251  (its error is caught; nothing is read or written with it)
import pickletools
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, get_args

import torch
from torch import Tensor

from bertwright.errors import InputError, shown
from bertwright.files import check_digest, read_json, read_object
from bertwright.interop.checkpoint import ForeignCheckpoint
from bertwright.model.bert import ARCHITECTURES, Head, architecture_of
from bertwright.model.config import EncoderConfig, encoder_shape
from bertwright.model.families import Family, ModelDescription, SystemFamily, family_of
from bertwright.model.families.tables import EncoderFamily
from bertwright.model.hf_config import MULTI_LABEL, describe_settings, read_labels, stored_family
from bertwright.model.hf_weights import name_in_file, named_weights, read_safetensors
from bertwright.model.vector_head import open_vector_head
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.byte_pairs import byte_pairs_of
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.other_tokenizers import refuse_other_rules, refuse_other_vocabulary
from bertwright.text.published_tokenizer import PublishedTokenizer, is_published
from bertwright.text.vocabulary import Rules, has_casing, read_folder, read_vocabulary, refuse_unwritable_pieces
from bertwright.text.wordpiece import Tokenizer

_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_HEADS: tuple[Head, ...] = get_args(Head)
_LFS_POINTER = b"version https://git-lfs"
_ALLOWED_CALLS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "torch.serialization _get_layout",
    "torch Size",
    "torch device",
}
_CALL_OPCODES = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4", "NEWOBJ", "NEWOBJ_EX"}
_MOST_PICKLE = 10_000_000  # bytes of names and shapes; those of a BERT are 50 kB
_OLD_PICKLES = 5  # pickles of a file before torch 1.6: magic number, protocol, machine, state dict, storage names
_END_OF_ZIP = b"PK\x05\x06"
_END_SIZE = 22


def is_zip(path: Path) -> bool:
    """Return whether a file is a zip archive, as torch writes since 1.6. Only such a file can be mapped into memory."""
    with path.open("rb") as stream:
        return stream.read(2) == b"PK"


def check_pickle(path: Path) -> None:
    """Raise InputError for a file that calls more than plain tensors need, or unpacks to more than its own size."""
    try:
        if not is_zip(path):
            with path.open("rb") as stream:
                head = io.BytesIO(stream.read(_MOST_PICKLE))  # bounded: a file may claim any length
            for _ in range(_OLD_PICKLES):
                _check_calls(head, path)
            return
        with path.open("rb") as stream:
            stream.seek(-_END_SIZE, 2)
            if stream.read(len(_END_OF_ZIP)) != _END_OF_ZIP:  # so that every reader finds the same list of contents
                raise InputError(f"{path}: broken or truncated: the archive does not end as torch's archives do")
        with zipfile.ZipFile(path) as archive:
            _check_archive(archive, path)
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    _check_calls(io.BytesIO(archive.read(name)), path)
    except (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: broken or truncated, or not a file of torch: {error}") from None


def check_tensor_sizes(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise InputError for a tensor larger than its data, or tensors that together are far larger than the file."""
    total = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        total += size
        if size > tensor.untyped_storage().nbytes() or total > 4 * path.stat().st_size:
            raise InputError(
                f"{path}: {name} has the shape {tuple(tensor.shape)}, but the file holds fewer numbers; refused"
            )


def _check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    entries = archive.infolist()
    if len({entry.filename for entry in entries}) < len(entries):
        raise InputError(f"{path}: the archive holds two files of one name; refused")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise InputError(f"{path}: {entry.filename!r} in it is compressed, which torch never does; refused")
        if entry.flag_bits & 1:
            raise InputError(f"{path}: {entry.filename!r} in it is encrypted, which torch never does; refused")
        if entry.filename.endswith(".pkl") and entry.file_size > _MOST_PICKLE:
            raise InputError(
                f"{path}: {entry.filename!r} in it has {entry.file_size:,} bytes; names and shapes have at most "
                f"{_MOST_PICKLE:,}"
            )
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise InputError(f"{path}: the files in it are larger than it is; refused")


def _check_calls(stream: IO[bytes], path: Path) -> None:
    """Check the calls of one pickle, opcode by opcode, up to its end."""
    for opcode, value, _ in pickletools.genops(stream):
        is_storage = isinstance(value, str) and value.startswith("torch ") and value.endswith("Storage")
        if opcode.name in _CALL_OPCODES and not (opcode.name == "GLOBAL" and (is_storage or value in _ALLOWED_CALLS)):
            raise InputError(
                f"{path}: holds more than tensors, so it is not opened (it could run code; weights_only): "
                f"{opcode.name} {shown(value or '')}"
            )


def is_huggingface_folder(folder: Path) -> bool:
    """Return whether a folder has the config.json of a model of transformers."""
    return (folder / "config.json").is_file()


def read_huggingface(
    folder: Path, *, cased: bool | None = None, as_wordpiece: bool = False, reads_labels: bool = True
) -> ForeignCheckpoint:
    """Read a folder.

    cased         is needed only where the tokenizer's files do not say whether upper case is kept
    as_wordpiece  True to read a vocabulary of another convention, or of another tokenizer, as WordPiece
    reads_labels  False where the caller has other label names; those of config.json may then be unusable

    Raises InputError for missing or broken files, for tensors that no BERT has, for heads that fit several
    architectures, and for modules of sentence-transformers that are not computed here.
    """
    path = folder / "config.json"
    settings = read_object(path)
    id2label = settings.pop("id2label", None)
    if stored_family(settings, path) is None:
        raise InputError(f"{path}: is a model folder of bertwright in its own form: use it as it is, without an import")
    described = describe_settings(settings, path)
    raw, files = read_weights(folder)
    weights = named_weights(raw, described, str(folder))
    architecture = _architecture(weights, described, folder)
    classes = num_outputs(weights, str(folder))
    has_labels = classes > 0 and architecture != "BertForMultipleChoice"
    labels = read_labels(id2label or {}, path) if has_labels and reads_labels else ()
    if architecture == "BertForSequenceClassification" and "task" not in described.extra:
        _refuse_problem(described.raw.get("problem_type"), classes, path)
    if labels and len(labels) != classes:
        raise InputError(
            f"{path}: id2label names {len(labels)} labels, but there are {classes} outputs; name each output (--label)"
        )
    tokenizer = _tokenizer(folder, cased, as_wordpiece=as_wordpiece, family=family_of(described.config))
    _refuse_padding(described.config, tokenizer, path)
    return ForeignCheckpoint(
        source=str(folder),
        layout=f"Hugging Face's layout, {files}",
        config=_readable(described, str(folder)),
        architecture=architecture,
        weights=weights,
        tokenizer=tokenizer,
        labels=labels,
        extra=described.extra,
        multi_label=described.raw.get("problem_type") == MULTI_LABEL,
        name_in_file=partial(name_in_file, config=described.config, architecture=architecture, stored=raw),
        vectors=open_vector_head(folder, described.config.hidden, read=lambda dense: read_weights(dense)[0]),
    )


def _readable(described: ModelDescription, source: str) -> EncoderConfig:
    """Return the configuration of a bidirectional encoder, or of a model whose output layer is its word embeddings."""
    config = described.config
    if isinstance(config, EncoderConfig) and not config.output_has_transform:
        return config
    return encoder_shape(config, source)


def _refuse_problem(problem: Any, outputs: int, path: Path) -> None:
    """Raise InputError where the problem type of a classifier does not fit its number of outputs."""
    fitting = (None, "regression") if outputs == 1 else (None, "single_label_classification", MULTI_LABEL)
    if problem not in fitting:
        allowed = ", ".join(map(str, fitting[1:]))
        raise InputError(f"{path}: expected problem_type {allowed} with {outputs} outputs, got {problem!r}")


def read_weights(folder: Path) -> tuple[dict[str, Tensor], str]:
    """Return all tensors of a folder by the names in its files, and a description of the files.

    Raises InputError for files that are missing, broken, or hold more than tensors.
    """
    for name in _WEIGHT_FILES:
        if (folder / name).is_file():
            return _read_file(folder / name), name
        if (folder / f"{name}.index.json").is_file():
            return _read_shards(folder / f"{name}.index.json")
    others = [name for name in ("tf_model.h5", "flax_model.msgpack") if (folder / name).is_file()]
    hint = f"; {others[0]} cannot be read: let transformers write model.safetensors" if others else ""
    raise InputError(
        f"{folder}: holds no weights: expected {' or '.join(_WEIGHT_FILES)}, or either with .index.json{hint}"
    )


def _read_file(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise InputError(f"{path}: a Git LFS pointer, not the weights; fetch them: git lfs pull")
    check_digest(path)  # else a damaged model of bertwright would get a new digest that fits the damage
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    check_pickle(path)
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip(path))
    except pickle.UnpicklingError as error:
        first = str(error).strip().splitlines()[0]
        if "WeightsUnpickler" not in first and "Unsupported" not in first and "weights_only" not in str(error):
            raise InputError(f"{path}: not a file of torch: {first}") from None
        raise InputError(
            f"{path}: holds more than tensors, so it is not opened (it could run code; weights_only): {first}"
        ) from None
    except Exception as error:  # a broken pickle raises errors of many classes
        raise InputError(f"{path}: broken or truncated ({type(error).__name__}: {error})") from None
    if not isinstance(tensors, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in tensors.items()
    ):
        raise InputError(f"{path}: expected a state dict of named tensors, got a {type(tensors).__name__}")
    check_tensor_sizes(tensors, path)
    return dict(tensors)


def _read_shards(index: Path) -> tuple[dict[str, Tensor], str]:
    content = read_json(index)
    files: Any = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise InputError(f"{index}: has no weight_map from tensors to files")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(files.values())):
        shard = index.parent / name
        if Path(name).name != name or not shard.is_file():
            raise InputError(f"{index}: names the file {name}, which is not in the same folder")
        tensors = _read_file(shard)
        expected = {key for key, file in files.items() if file == name}
        if missing := sorted(expected - tensors.keys()):
            raise InputError(f"{shard}: lacks {', '.join(missing)}, which {index.name} says it holds")
        weights |= tensors
    return weights, f"{len(set(files.values()))} shards of {index.name.removesuffix('.index.json')}"


def num_outputs(weights: Mapping[str, Tensor], source: str) -> int:
    """Return the number of a classifier's outputs, 0 without one. Raises InputError for a weight that is no matrix."""
    weight = weights.get("classifier.linear.weight")
    if weight is None:
        return 0
    if weight.ndim != 2:
        raise InputError(f"{source}: classifier.weight: expected a shape [outputs, hidden], got {list(weight.shape)}")
    return len(weight)


def _refuse_padding(config: Any, tokenizer: BaseTokenizer, path: Path) -> None:
    """Raise InputError where a token that frames every text is the padding, from whose id the positions are counted."""
    if not getattr(config, "first_position", 0) or config.pad_id == tokenizer.pad_id:
        return
    if any(config.pad_id in ids for ids in tokenizer.row_frame):
        raise InputError(
            f"{path}: pad_token_id is {config.pad_id}, but {tokenizer.pad_id} in the tokenizer, where {config.pad_id} "
            "begins or ends a text; expected the same"
        )


def _architecture(weights: Mapping[str, Tensor], described: ModelDescription, folder: Path) -> str:
    """Return the class whose heads the weights have: the one that config.json names, else the only one that fits.

    Published folders often name a class with fewer heads than their weights have. The weights decide.
    """
    named, family = described.architecture, family_of(described.config)
    is_language_model = isinstance(family, SystemFamily) and named == family.language_architecture(described.config)
    heads = {head for head in _HEADS if any(name.startswith(f"{head}.") for name in weights)}
    if isinstance(described.config, EncoderConfig) and described.config.pair_head_shares_layer:
        heads -= {"next_sentence"}  # no class of ModernBERT has it; it comes along with the masked-LM head
    fitting = [name for name, kind in ARCHITECTURES.items() if heads - {"pooler"} == {*kind.heads} - {"pooler"}]
    pools = "pooler" in heads or not getattr(described.config, "classifier_has_pooler", True)
    fitting = [name for name in fitting if pools or "pooler" not in architecture_of(name).heads]
    if named in fitting or (named and is_language_model and not heads):
        return named
    if "classifier" in heads and named in ARCHITECTURES and not pools:
        return named  # check_complete reports the missing pooler
    if "classifier" in heads:
        if not getattr(described.config, "classifier_has_bias", True):
            has_bias = "classifier.linear.bias" in weights
            fitting = [name for name in fitting if ("pooler" not in architecture_of(name).heads) == has_bias]
        classes = getattr(family, "classes", {})
        fitting = [classes.get(name, name) for name in fitting if not classes or name in classes]
        written = json.dumps(classes.get(named, named)) if "architectures" in described.raw else "missing"
        raise InputError(
            f"{folder / 'config.json'}: architectures is {written}, but the classifier's weights fit "
            f"{', '.join(fitting) or 'no known class'}: set architectures to the right one"
        )
    if not fitting and heads:
        raise InputError(f"{folder}: no class of transformers has the heads {', '.join(sorted(heads))} together")
    return fitting[0] if fitting else "BertModel"


def _tokenizer(folder: Path, cased: bool | None, *, as_wordpiece: bool, family: Family[Any]) -> BaseTokenizer:
    """Return the tokenizer of a folder.

    Where the family has such tokenizers, a tokenizer.json with byte-level pairs or Unigram is taken as it is. Anything
    else is read as BERT's WordPiece.
    """
    described = folder / "tokenizer.json"
    takes_published = isinstance(family, EncoderFamily) and family.published_tokenizers and not as_wordpiece
    is_described = described.is_file() and is_published(read_json(described))
    if takes_published and (is_described or byte_pairs_of(folder)):
        if cased is not None:
            raise InputError(f"{folder}: the tokenizer's files say what becomes of upper case; leave --casing out")
        tokenizer = open_tokenizer_folder(folder)
        if isinstance(tokenizer, PublishedTokenizer):
            tokenizer.check_space(folder)
        return tokenizer
    return _wordpiece(folder, cased, as_wordpiece=as_wordpiece)


def _wordpiece(folder: Path, cased: bool | None, *, as_wordpiece: bool) -> Tokenizer:
    vocabulary, base = folder / "vocab.txt", None
    if not as_wordpiece:
        refuse_other_rules(folder)
    if vocabulary.is_file() and not has_casing(folder):
        if cased is None:
            raise InputError(
                f"{folder}: its files do not say whether upper case is kept; give --casing cased or --casing uncased"
            )
        pieces, rules = read_vocabulary(vocabulary), Rules(cased=cased, strip_accents=not cased)
    else:
        # The checks of other tokenizers are made here, with the advice of this command.
        pieces, rules, base = read_folder(folder, as_wordpiece=True)
    if cased not in (None, rules.cased):
        casing = "cased" if rules.cased else "uncased"
        raise InputError(f"{folder}: its tokenizer's files say {casing}; leave --casing out")
    source = f"the vocabulary of {folder}"
    if not as_wordpiece:
        refuse_other_vocabulary(pieces, source)
    refuse_unwritable_pieces(pieces, source)
    return Tokenizer(pieces, rules, base=base, place=source)
