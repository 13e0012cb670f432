"""model folder → findings: do its files agree with each other, and were its weights ever trained (paper §3)?"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bertwright.doctor.findings import Finding, place_list, refused
from bertwright.errors import Damaged, InputError
from bertwright.files import read_json
from bertwright.model.bert import ARCHITECTURES, Bert, open_architecture
from bertwright.model.config import BackboneConfig, attends_both_ways
from bertwright.model.families.bert import FEATURES
from bertwright.model.folder import SavedModel, open_model
from bertwright.model.system import NAMES, system_of
from bertwright.pretraining.init_from import size_name
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.vocabulary import SPECIAL

# vocabulary + rules → finding: whether case is treated as the pieces need it.

_CAPITALS: Final = 0.01
"""Share of pieces with capitals from which on a vocabulary is a cased one."""
_SMALL: Final = 0.1
"""Share of pieces with small letters from which on a vocabulary is of a script that has capitals."""


def casing(words: BaseTokenizer, said: bool | None, *, part: str = "model") -> Finding:
    """Case as the rules treat it against the pieces that the vocabulary has.

    said: do_lower_case of tokenizer_config.json, None where it is silent; the two cannot contradict each other, since
    such a folder does not open.
    """
    finding = partial(Finding, part, "casing")
    ordinary = [piece for piece in words.pieces if piece not in SPECIAL and not re.fullmatch(r"\[\w+\]", piece)]
    capitals = sum(piece != piece.lower() for piece in ordinary) / max(1, len(ordinary))
    small = sum(piece != piece.upper() for piece in ordinary) / max(1, len(ordinary))
    kind = "cased" if words.cased else "uncased"
    value = {"cased": words.cased, "capital_pieces": capitals}
    text = f"{kind}; {capitals:.1%} of the pieces have capitals"
    if not words.cased and capitals > _CAPITALS:
        return finding(
            "error",
            value,
            f"{text}, and none of these can ever be met: text is lower-cased before it is cut",
            "a cased vocabulary is read with do_lower_case false: correct tokenizer.json and tokenizer_config.json, or "
            "import vocab.txt again with --cased",
        )
    if words.cased and not capitals and small > _SMALL:
        return finding(
            "warning",
            value,
            f"{text}: every capital in a text gives [UNK]",
            "an uncased vocabulary is read with do_lower_case true: import vocab.txt again without --cased",
        )
    if words.cased and said is None:
        return finding(
            "warning",
            value,
            f"{text}, but tokenizer_config.json is silent about do_lower_case: other libraries lower-case then",
            'write "do_lower_case": false into tokenizer_config.json',
        )
    return finding("ok", value, text)


_PARTS: Final = {
    "pooler.": "the pooler",
    "masked_lm.": "the masked-LM head",
    "next_sentence.": "the next-sentence head",
    "classifier.": "the classifier",
    "span.": "the span head",
}
_NO_LABEL: Final = re.compile(r"LABEL_\d+")
_HEADS: Final = ("BertForSequenceClassification", "BertForTokenClassification")
_finding = partial(Finding, "model")


@dataclass(frozen=True)
class Patient:
    """A model as far as it could be opened; `runs` is it with its heads, None where its weights do not fit."""

    saved: SavedModel | None = None
    tokenizer: BaseTokenizer | None = None
    runs: Bert | None = None


def look_at_model(source: str, *, tokenizer: Path | None) -> tuple[Patient, list[Finding]]:
    """Open MODEL and check its folder; `tokenizer` is the folder whose vocabulary random:SIZE takes."""
    try:
        words = open_tokenizer_folder(tokenizer) if tokenizer and source.startswith("random:") else None
        saved = open_model(source, tokenizer=tokenizer, vocab_size=words.vocab_size if words else None)
    except Damaged as error:
        advice = "what it answers is not what it learned: put the file back from a copy, or make the model again"
        return Patient(), [refused("model", "weights, as written", error=error, advice=advice)]
    except (InputError, OSError) as error:
        return Patient(), [
            refused("model", "opens", error=error, advice="name a model or run folder, small-wiki, or random:SIZE")
        ]
    config = saved.config
    shape = f"{config.layers} layers, {config.hidden} hidden"
    system = system_of(config)
    kind = NAMES[system] if system else "several bodies"
    if attends_both_ways(config):
        shape = f"{shape}, {config.heads} heads ({size_name(config)})"
        kind = "exact GELU" if config.activation == "gelu" else "GELU by its tanh approximation"
    opened = _finding("opens", "ok", size_name(config), f"{saved.place}: {saved.architecture}, {shape}, {kind}")
    if saved.weights is None:
        return Patient(saved, words), [replace(opened, text=f"{source}: random weights, {shape}, {kind}")]
    found = [opened]
    words, said = _tokenizer(saved.tokenizer)
    found += said
    runs, said = _runs(saved)
    found += said
    if words:
        found += tokenizer_findings(saved, words)
    found.append(as_written(saved.digest))
    found += weight_findings(saved.weights)
    found += head_findings(saved)
    found += length_findings(saved)
    return Patient(saved, words, runs), found


def tokenizer_findings(saved: SavedModel, words: BaseTokenizer) -> Iterator[Finding]:
    """The vocabulary against the embeddings, the special tokens, and case."""
    rows = saved.config.vocab_size
    if saved.weights and "encoder.embeddings.word.weight" in saved.weights:
        rows = len(saved.weights["encoder.embeddings.word.weight"])
    yield vocabulary(words.vocab_size, rows)
    yield special_tokens(words, saved.config, rows=rows)
    yield casing(words, _said(saved.tokenizer, "do_lower_case"))


def vocabulary(pieces: int, rows: int) -> Finding:
    """Every piece needs a row of the word embeddings."""
    value, text = {"pieces": pieces, "rows": rows}, f"{pieces:,} pieces, and {rows:,} rows of embeddings"
    if pieces == rows:
        return _finding("vocabulary", "ok", value, text)
    if pieces > rows:
        return _finding(
            "vocabulary",
            "error",
            value,
            f"{text}: the last {pieces - rows:,} pieces have none",
            "the tokenizer belongs to another model: put the right one back; after 'tokenizer extend' the model grows "
            "with: bertwright pretrain --init-from",
        )
    advice = f"nothing where the table was padded to a round number; else the tokenizer lost {rows - pieces:,} pieces"
    return _finding("vocabulary", "note", value, f"{text}: {rows - pieces:,} rows are never used", advice)


def special_tokens(words: BaseTokenizer, config: BackboneConfig, *, rows: int) -> Finding:
    """The special tokens inside the table, and padding where the configuration has it."""
    ids = {words.pieces[id]: id for id in words.special_ids}
    text = ", ".join(f"{token} {id}" for token, id in ids.items())
    outside = [token for token, id in ids.items() if id >= rows]
    if outside:
        advice = "the tokenizer belongs to another model: put the right one back"
        return _finding(
            "special tokens", "error", ids, f"{text}: no embedding for {place_list(outside)} ({rows:,} rows)", advice
        )
    if config.pad_id != words.pad_id:
        return _finding(
            "special tokens",
            "warning",
            ids,
            f"{text}, but config.json says pad_token_id {config.pad_id}: that is {words.pieces[config.pad_id]!r}"
            if config.pad_id < len(words.pieces)
            else f"{text}, but config.json says pad_token_id {config.pad_id}, which is no piece",
            f"set pad_token_id to {words.pad_id} in config.json, once it is sure that the tokenizer is the model's",
        )
    return _finding("special tokens", "ok", ids, text)


def as_written(digest: str | None) -> Finding:
    """The file of weights against the digest that was noted when it was written; another one is refused at opening."""
    if digest:
        return _finding("weights, as written", "ok", digest, f"sha256 {digest[:12]}…, as noted beside the file")
    return _finding(
        "weights, as written",
        "note",
        None,
        "no digest is noted beside the file, so that damage to it cannot be told",
        "nothing; models made elsewhere and by earlier versions have none, and `bertwright import` writes one with one",
    )


def weight_findings(weights: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Numbers that are no numbers, tables that hold one number, parts as an initialisation leaves them."""
    broken = [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]
    total = sum(tensor.numel() for tensor in weights.values())
    if broken:
        yield _finding(
            "weights, finite",
            "error",
            broken,
            f"{place_list(broken)}: holds NaN or infinite numbers",
            "the training that wrote them diverged, or the file was damaged: go back to an earlier checkpoint, and "
            "train with a smaller --learning-rate or --clip",
        )
    else:
        yield _finding("weights, finite", "ok", total, f"all {total:,} numbers are finite")
    constant = [name for name, tensor in weights.items() if _is_constant(name, tensor)]
    if constant:
        yield _finding(
            "weights, trained",
            "error",
            constant,
            f"{place_list(constant)}: every number is the same",
            "these were never loaded or trained: convert or train the model again",
        )
    else:
        yield trained(weights)


def trained(weights: Mapping[str, Tensor]) -> Finding:
    """Biases that are all 0 and norms that are all 1 were never trained."""
    if _untouched(weights, "encoder."):
        return _finding(
            "weights, trained",
            "warning",
            ["encoder"],
            "every bias of the encoder is 0 and every LayerNorm is 1, as an initialisation leaves them: never trained",
            "right where training from scratch is wanted; otherwise take the model folder of a finished run",
        )
    fresh = [name for prefix, name in _PARTS.items() if _untouched(weights, prefix)]
    if not fresh:
        return _finding("weights, trained", "ok", [], "biases and LayerNorms differ from an initialisation's")
    return _finding(
        "weights, trained",
        "warning" if "the classifier" in fresh else "note",
        fresh,
        f"{' and '.join(fresh)} {'is' if len(fresh) == 1 else 'are'} as an initialisation leaves it: never trained",
        "fine-tune before its answers are used"
        if "the classifier" in fresh
        else "nothing for fine-tuning: it is trained there, or replaced",
    )


def head_findings(saved: SavedModel) -> Iterator[Finding]:
    """The pooler that a classifier stands on, and the labels of one that is there."""
    weights = saved.weights or {}
    if "pooler.dense.weight" in weights:
        yield _finding("pooler", "ok", True, "there: sentences can be classified")
    elif saved.architecture == "BertForSequenceClassification":
        advice = "the file lost part of its weights: convert or fine-tune the model again"
        yield _finding("pooler", "error", False, "absent, and this classifier answers from it", advice)
    elif saved.architecture in ("BertModel", "BertForMaskedLM", "BertForPreTraining"):
        yield _finding(
            "pooler",
            "note",
            False,
            "absent: fine-tuning on sentences starts it anew",
            "nothing; pretrain --init-from with next-sentence prediction would train one, which helps with little data",
        )
    if saved.architecture in _HEADS and "classifier.linear.weight" in weights:
        raw = read_json(Path(saved.place) / "config.json").get("label2id")
        yield labels(saved.labels, len(weights["classifier.linear.weight"]), back=raw)


def labels(names: tuple[str, ...], outputs: int, *, back: Any = None) -> Finding:
    """The names of the outputs; `back` is label2id of config.json, which must say the same the other way round."""
    value, text = list(names), f"{outputs} output{'s' * (outputs != 1)}: {place_list(names, 8) or 'no names'}"
    wanted = {name: index for index, name in enumerate(names)}
    if names and len(names) != outputs:
        return _finding(
            "labels",
            "error",
            value,
            f"{text}: {len(names)} names",
            "correct id2label and label2id in config.json: one name for each output, in the order of training",
        )
    if names and back is not None and back != wanted:
        return _finding(
            "labels",
            "error",
            value,
            f"{text}: label2id says otherwise ({back})",
            "find out which order the model was trained with, and write both tables so",
        )
    if not names or any(_NO_LABEL.fullmatch(name) for name in names):
        return _finding(
            "labels",
            "note",
            value,
            f"{text}: nothing says what an output means",
            "write the labels' names, in the order of training, into id2label and label2id of config.json",
        )
    return _finding("labels", "ok", value, text)


def length_findings(saved: SavedModel) -> Iterator[Finding]:
    """How long a text may be, as the files beside the weights say it, against the positions."""
    positions = saved.config.max_positions
    said = _said(saved.tokenizer, "model_max_length")
    trained_with = saved.extra.get("max_length")
    value = {"positions": positions, "max_length": trained_with, "model_max_length": said}
    try:
        trained_with = saved.max_length if "max_length" in saved.extra else None
    except InputError as error:
        advice = "the weights are not those of the fine-tuning: put the right model.safetensors back"
        yield _finding("length", "error", value, str(error), advice)
        return
    if isinstance(said, int | float) and positions < said < 1e9:  # transformers writes 1e30 for "not said"
        yield _finding(
            "length",
            "note",
            value,
            f"{positions} positions, but tokenizer_config.json lets texts have {said:,} tokens",
            f"write {positions} as model_max_length, so that other libraries cut texts in time",
        )
    else:
        at_most = f", fine-tuned with {trained_with}" if trained_with else ""
        yield _finding("length", "ok", value, f"{positions} positions{at_most}")


def _said(folder: Path, name: str) -> Any:
    """What tokenizer_config.json says; None where it is absent or silent, or broken, which `_tokenizer` tells."""
    try:
        config = read_json(folder / "tokenizer_config.json")
    except (InputError, OSError):
        return None
    return config.get(name) if isinstance(config, dict) else None


def _tokenizer(folder: Path) -> tuple[BaseTokenizer | None, list[Finding]]:
    try:
        return open_tokenizer_folder(folder), []
    except (InputError, OSError) as error:
        advice = "tokenizer.json, vocab.txt and tokenizer_config.json must be those that the model was trained with"
        return None, [refused("model", "tokenizer", error=error, advice=advice)]


def _runs(saved: SavedModel) -> tuple[Bert | None, list[Finding]]:
    if saved.architecture == FEATURES:
        return None, [_finding("heads", "ok", FEATURES, "a BiLSTM on a frozen encoder; predict and evaluate run it")]
    if not attends_both_ways(saved.config):
        system = system_of(saved.config)
        what = f"a {NAMES[system]}" if system else "several bodies"
        text = f"{saved.architecture} of {what}; evaluate, predict and features run it"
        return None, [_finding("heads", "ok", saved.architecture, text)]
    if saved.architecture not in ARCHITECTURES:
        text = f"{saved.architecture} has heads that are not known here; known are {', '.join(ARCHITECTURES)}"
        return None, [_finding("heads", "warning", saved.architecture, text, "its encoder alone can be used")]
    try:
        return open_architecture(saved), []
    except InputError as error:
        advice = "config.json and model.safetensors are not of one model, or one is incomplete: copy both again"
        return None, [refused("model", "heads", error=error, advice=advice)]


def _is_constant(name: str, tensor: Tensor) -> bool:
    # A model without segments may come with a table of zeros for its only one.
    if tensor.ndim < 2 or tensor.numel() < 2 or name == "encoder.embeddings.segment.weight":
        return False
    return bool((tensor == tensor.flatten()[0]).all())


def _untouched(weights: Mapping[str, Tensor], prefix: str) -> bool:
    """Whether all biases of a part are 0 and all its norms 1; False where it has no bias."""
    own = {name: tensor for name, tensor in weights.items() if name.startswith(prefix)}
    biases = [tensor for name, tensor in own.items() if name.endswith("bias")]
    norms = [tensor for name, tensor in own.items() if name.endswith("norm.weight")]
    return bool(biases) and not any(map(torch.any, biases)) and all(bool((norm == 1).all()) for norm in norms)
