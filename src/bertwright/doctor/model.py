"""model folder → findings: its files must belong together, and its weights must be trained (paper §3)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bertwright.doctor.findings import Finding, name_list, refused
from bertwright.errors import Damaged, InputError
from bertwright.files import read_json
from bertwright.model.bert import ARCHITECTURES, Bert, open_architecture
from bertwright.model.config import BackboneConfig, attends_both_ways
from bertwright.model.families.bert import FEATURES
from bertwright.model.folder import SavedModel, open_model
from bertwright.model.hf_weights import num_parameters
from bertwright.model.system import NAMES, system_of
from bertwright.pretraining.init_from import size_name
from bertwright.tasks.binding import for_rows_of
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.published_tokenizer import PublishedTokenizer

_CAPITALS: Final = 0.01
"""Fraction of pieces with capitals above which a vocabulary counts as cased."""
_SMALL: Final = 0.1
"""Fraction of pieces with small letters above which the script of a vocabulary has capitals."""
_PARTS: Final = {
    "pooler.": "the pooler",
    "masked_lm.": "the masked-LM head",
    "next_sentence.": "the next-sentence head",
    "classifier.": "the classifier",
    "span.": "the span head",
}
_NAME: Final = re.compile(r"\[\w+\]")
"""Piece that names a token, such as [unused1]."""
_NO_LABEL: Final = re.compile(r"LABEL_\d+")
_HEADS: Final = ("BertForSequenceClassification", "BertForTokenClassification")
_finding = partial(Finding, "model")


@dataclass(frozen=True)
class OpenedModel:
    """A model folder as far as it could be opened.

    with_heads: the module with weights and heads; None where they do not fit config.json, or are of another kind.
    """

    saved: SavedModel | None = None
    tokenizer: BaseTokenizer | None = None
    with_heads: Bert | None = None


def check_model(source: str, *, tokenizer_folder: Path | None) -> tuple[OpenedModel, list[Finding]]:
    """Open MODEL and check its folder; `tokenizer_folder` gives random:SIZE its vocabulary."""
    is_random = source.startswith("random:")
    try:
        tokenizer = open_tokenizer_folder(tokenizer_folder) if tokenizer_folder and is_random else None
        saved = open_model(source, tokenizer=tokenizer_folder, vocab_size=tokenizer.vocab_size if tokenizer else None)
    except Damaged as error:
        advice = "its predictions would be wrong: put the file back from a copy, or make the model again"
        return OpenedModel(), [refused("model", "weights, as written", error=error, advice=advice)]
    except (InputError, OSError) as error:
        advice = "name a model or run folder, small-wiki, or random:SIZE"
        return OpenedModel(), [refused("model", "opens", error=error, advice=advice)]
    config = saved.config
    shape = f"{config.layers} layers, {config.hidden} hidden"
    system = system_of(config)
    kind = NAMES[system] if system else "several backbones"
    if attends_both_ways(config):
        shape = f"{shape}, {config.heads} heads ({size_name(config)})"
        kind = "exact GELU" if config.activation == "gelu" else "GELU by its tanh approximation"
    opened = _finding("opens", "ok", size_name(config), f"{saved.source}: {saved.architecture}, {shape}, {kind}")
    if saved.weights is None:
        return OpenedModel(saved, tokenizer), [replace(opened, text=f"{source}: random weights, {shape}, {kind}")]
    tokenizer, tokenizer_errors = _open_tokenizer(saved)
    with_heads, heads = _open_heads(saved)
    findings = [opened, *tokenizer_errors, *heads]
    if tokenizer:
        findings += tokenizer_findings(saved, tokenizer)
    findings.append(as_written(saved.digest))
    findings += weight_findings(saved.weights)
    findings += head_findings(saved)
    findings += length_findings(saved)
    return OpenedModel(saved, tokenizer, with_heads), findings


def tokenizer_findings(saved: SavedModel, tokenizer: BaseTokenizer) -> Iterator[Finding]:
    """Check the vocabulary against the embeddings, the special tokens, and case."""
    rows = saved.config.vocab_size
    if saved.weights and "encoder.embeddings.word.weight" in saved.weights:
        rows = len(saved.weights["encoder.embeddings.word.weight"])
    yield vocabulary(tokenizer.vocab_size, rows)
    yield special_tokens(tokenizer, saved.config, rows=rows)
    yield casing(tokenizer, _config_value(saved.tokenizer, "do_lower_case"))


def casing(tokenizer: BaseTokenizer, do_lower_case: bool | None, *, part: str = "model") -> Finding:
    """Compare the tokenizer's rule for case with the pieces of its vocabulary.

    do_lower_case: the key of tokenizer_config.json, None where it is absent. A folder in which it contradicts the rule
    does not open.
    """
    finding = partial(Finding, part, "casing")
    special = {*tokenizer.special_ids, *(id for id, piece in enumerate(tokenizer.pieces) if _NAME.fullmatch(piece))}
    ordinary = [tokenizer.decode([id]) for id in range(tokenizer.vocab_size) if id not in special]
    capitals = sum(text != text.lower() for text in ordinary) / max(1, len(ordinary))
    small = sum(text != text.upper() for text in ordinary) / max(1, len(ordinary))
    value = {"cased": tokenizer.cased, "capital_pieces": capitals}
    text = f"{'cased' if tokenizer.cased else 'uncased'}; {capitals:.1%} of the pieces have capitals"
    if not tokenizer.cased and capitals > _CAPITALS:
        text += ", and no text can give these pieces: it is lower-cased before it is split"
        advice = (
            "a cased vocabulary needs do_lower_case false: correct tokenizer.json and tokenizer_config.json, or import "
            "vocab.txt again with --cased"
        )
        return finding("error", value, text, advice)
    if tokenizer.cased and not capitals and small > _SMALL:
        advice = "an uncased vocabulary needs do_lower_case true: import vocab.txt again without --cased"
        return finding("warning", value, f"{text}: every word with a capital becomes [UNK]", advice)
    if tokenizer.cased and do_lower_case is None and not isinstance(tokenizer, PublishedTokenizer):
        text += ", but tokenizer_config.json has no do_lower_case: other libraries lower-case the text then"
        return finding("warning", value, text, 'write "do_lower_case": false into tokenizer_config.json')
    return finding("ok", value, text)


def vocabulary(pieces: int, rows: int) -> Finding:
    """Compare the number of pieces with the rows of the word embeddings: every piece needs one."""
    value, text = {"pieces": pieces, "rows": rows}, f"{pieces:,} pieces, and {rows:,} rows of embeddings"
    if pieces == rows:
        return _finding("vocabulary", "ok", value, text)
    if pieces > rows:
        advice = (
            "the tokenizer belongs to another model: put the right one back; after 'tokenizer extend', bertwright "
            "pretrain --init-from adds the rows"
        )
        return _finding("vocabulary", "error", value, f"{text}: the last {pieces - rows:,} pieces have none", advice)
    advice = f"nothing, if the table was padded to a round number; else the tokenizer lost {rows - pieces:,} pieces"
    return _finding("vocabulary", "note", value, f"{text}: {rows - pieces:,} rows are never used", advice)


def special_tokens(tokenizer: BaseTokenizer, config: BackboneConfig, *, rows: int) -> Finding:
    """Check that the special tokens have embeddings, and that pad_token_id is the tokenizer's [PAD]."""
    ids = {tokenizer.pieces[id]: id for id in tokenizer.special_ids}
    text = ", ".join(f"{token} {id}" for token, id in ids.items())
    outside = [token for token, id in ids.items() if id >= rows]
    if outside:
        text += f": no embedding for {name_list(outside)} ({rows:,} rows)"
        advice = "the tokenizer belongs to another model: put the right one back"
        return _finding("special tokens", "error", ids, text, advice)
    if config.pad_id != tokenizer.pad_id:
        has_piece = config.pad_id < len(tokenizer.pieces)
        piece = f": that is {tokenizer.pieces[config.pad_id]!r}" if has_piece else ", which is no piece"
        text += f", but config.json says pad_token_id {config.pad_id}{piece}"
        advice = (
            f"make sure that the tokenizer is the model's, then set pad_token_id to {tokenizer.pad_id} in config.json"
        )
        return _finding("special tokens", "warning", ids, text, advice)
    return _finding("special tokens", "ok", ids, text)


def as_written(digest: str | None) -> Finding:
    """Return the digest noted beside the weights; a file with another digest was refused when it was opened."""
    if digest:
        return _finding("weights, as written", "ok", digest, f"sha256 {digest[:12]}…, as noted beside the file")
    text = "no digest is noted beside the file, so that damage to it cannot be found"
    advice = "nothing: models of other programs have no digest; `bertwright import` writes a model folder with one"
    return _finding("weights, as written", "note", None, text, advice)


def weight_findings(weights: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Look for NaN and infinite numbers, for matrices that hold one number, and for parts that were never trained."""
    broken = [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]
    total = num_parameters(weights)
    if broken:
        text = f"{name_list(broken)}: holds NaN or infinite numbers"
        advice = (
            "the training that wrote them diverged, or the file was damaged: go back to an earlier checkpoint, and "
            "train with a smaller --learning-rate or --clip"
        )
        yield _finding("weights, finite", "error", broken, text, advice)
    else:
        yield _finding("weights, finite", "ok", total, f"all {total:,} numbers are finite")
    constant = [name for name, tensor in weights.items() if _is_constant(name, tensor)]
    if constant:
        text = f"{name_list(constant)}: every number is the same"
        advice = "these were never loaded or trained: convert or train the model again"
        yield _finding("weights, trained", "error", constant, text, advice)
    else:
        yield trained(weights)


def trained(weights: Mapping[str, Tensor]) -> Finding:
    """Return the parts whose biases are all 0 and whose LayerNorms are all 1: they were never trained."""
    finding = partial(_finding, "weights, trained")
    if _untouched(weights, "encoder."):
        text = (
            "every bias of the encoder is 0 and every LayerNorm is 1, as an initialisation leaves them: never trained"
        )
        advice = "nothing, to train from scratch; otherwise take the model folder of a finished run"
        return finding("warning", ["encoder"], text, advice)
    fresh = [name for prefix, name in _PARTS.items() if _untouched(weights, prefix)]
    if not fresh:
        return finding("ok", [], "biases and LayerNorms differ from an initialisation's")
    text = f"{' and '.join(fresh)} {'is' if len(fresh) == 1 else 'are'} as an initialisation leaves it: never trained"
    if "the classifier" in fresh:
        return finding("warning", fresh, text, "fine-tune the model before you use its predictions")
    return finding("note", fresh, text, "nothing: fine-tuning trains or replaces it")


def head_findings(saved: SavedModel) -> Iterator[Finding]:
    """Check the pooler, which classifiers need, and the labels of a fine-tuned model."""
    weights = saved.weights or {}
    if "pooler.dense.weight" in weights:
        yield _finding("pooler", "ok", True, "present: sentences can be classified")
    elif saved.architecture == "BertForSequenceClassification" and saved.config.classifier_has_pooler:
        advice = "the file lost part of its weights: convert or fine-tune the model again"
        yield _finding("pooler", "error", False, "absent, and this classifier needs it", advice)
    elif saved.architecture in ("BertModel", "BertForMaskedLM", "BertForPreTraining"):
        text = "absent: fine-tuning on sentences starts a new one"
        advice = (
            "nothing; with little data it helps to train one first: pretrain --init-from with next-sentence prediction"
        )
        yield _finding("pooler", "note", False, text, advice)
    if saved.architecture in _HEADS and "classifier.linear.weight" in weights:
        raw = read_json(Path(saved.source) / "config.json").get("label2id")
        yield labels(saved.labels, len(weights["classifier.linear.weight"]), back=raw)


def labels(names: tuple[str, ...], outputs: int, *, back: Any) -> Finding:
    """Check the names of the outputs; `back` is label2id of config.json, which must be the inverse of id2label."""
    finding = partial(_finding, "labels")
    value, text = list(names), f"{outputs} output{'s' * (outputs != 1)}: {name_list(names, 8) or 'no names'}"
    if names and len(names) != outputs:
        advice = "correct id2label and label2id in config.json: one name for each output, in the order of training"
        return finding("error", value, f"{text}: {len(names)} names", advice)
    if names and back is not None and back != {name: index for index, name in enumerate(names)}:
        advice = "find out with which order the model was trained, and write both tables in that order"
        return finding("error", value, f"{text}: label2id has another order ({back})", advice)
    if not names or any(_NO_LABEL.fullmatch(name) for name in names):
        advice = "write the names of the labels, in the order of training, into id2label and label2id of config.json"
        return finding("note", value, f"{text}: the outputs have no names", advice)
    return finding("ok", value, text)


def length_findings(saved: SavedModel) -> Iterator[Finding]:
    """Compare the lengths noted in config.json and tokenizer_config.json, in tokens, with the model's positions."""
    positions = saved.config.max_positions
    tokenizer_length = _config_value(saved.tokenizer, "model_max_length")
    trained_with = saved.extra.get("max_length")
    value = {"positions": positions, "max_length": trained_with, "model_max_length": tokenizer_length}
    try:
        trained_with = saved.max_length if "max_length" in saved.extra else None
    except InputError as error:
        advice = "the weights are not those that were fine-tuned: put the right model.safetensors back"
        yield _finding("length", "error", value, str(error), advice)
        return
    if isinstance(tokenizer_length, int | float) and positions < tokenizer_length < 1e9:  # 1e30 stands for "no limit"
        text = f"{positions} positions, but tokenizer_config.json allows texts of {tokenizer_length:,} tokens"
        advice = f"write {positions} as model_max_length, so that other libraries truncate longer texts"
        yield _finding("length", "note", value, text, advice)
    elif (trained := saved.trained_positions) < positions:
        text = f"{positions} positions, of which the first {trained} were trained"
        advice = f"for longer texts pre-train with longer rows (--lengths), or compare with --max-length {trained}"
        yield _finding("length", "note", value, text, advice)
    else:
        at_most = f", fine-tuned with {trained_with}" if trained_with else ""
        yield _finding("length", "ok", value, f"{positions} positions{at_most}")


def _config_value(folder: Path, name: str) -> Any:
    """Return a key of tokenizer_config.json; None where it is absent. `_open_tokenizer` reports a broken file."""
    try:
        config = read_json(folder / "tokenizer_config.json")
    except (InputError, OSError):
        return None
    return config.get(name) if isinstance(config, dict) else None


def _open_tokenizer(saved: SavedModel) -> tuple[BaseTokenizer | None, list[Finding]]:
    try:
        return for_rows_of(saved.config, open_tokenizer_folder(saved.tokenizer)), []
    except (InputError, OSError) as error:
        advice = "tokenizer.json, vocab.txt and tokenizer_config.json must be those that the model was trained with"
        return None, [refused("model", "tokenizer", error=error, advice=advice)]


def _open_heads(saved: SavedModel) -> tuple[Bert | None, list[Finding]]:
    if saved.architecture == FEATURES:
        return None, [_finding("heads", "ok", FEATURES, "a BiLSTM on a frozen encoder; predict and evaluate run it")]
    if not attends_both_ways(saved.config):
        system = system_of(saved.config)
        backbone = f"a {NAMES[system]}" if system else "several backbones"
        text = f"{saved.architecture} of {backbone}; evaluate, predict and features run it"
        return None, [_finding("heads", "ok", saved.architecture, text)]
    if saved.architecture not in ARCHITECTURES:
        text = f"expected one of {', '.join(ARCHITECTURES)}, got {saved.architecture}"
        return None, [_finding("heads", "warning", saved.architecture, text, "only its encoder can be used")]
    try:
        return open_architecture(saved), []
    except InputError as error:
        advice = "config.json and model.safetensors belong to two models, or one is incomplete: copy both again"
        return None, [refused("model", "heads", error=error, advice=advice)]


def _is_constant(name: str, tensor: Tensor) -> bool:
    # A model without segments may come with a table of zeros for its only one.
    if tensor.ndim < 2 or tensor.numel() < 2 or name == "encoder.embeddings.segment.weight":
        return False
    return bool((tensor == tensor.flatten()[0]).all())


def _untouched(weights: Mapping[str, Tensor], prefix: str) -> bool:
    """Return whether all biases of a part are 0 and all its LayerNorms 1; False where it has no bias."""
    biases = [tensor for name, tensor in weights.items() if name.startswith(prefix) and name.endswith("bias")]
    norms = [tensor for name, tensor in weights.items() if name.startswith(prefix) and name.endswith("norm.weight")]
    return bool(biases) and not any(map(torch.any, biases)) and all(bool((norm == 1).all()) for norm in norms)
