"""Published folders with odd pieces, odd names of tensors and odd labels become model folders, or the message says why.

The folders are written by bertwright in Hugging Face's layout, and then changed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertwright import load
from bertwright.errors import InputError
from bertwright.interop.import_model import import_model
from bertwright.model.folder import open_model
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wordpiece import Tokenizer
from tests.support.doctor_patients import LOWER, small_config, write_model

WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
Tensors = dict[str, Tensor]


def published(folder: Path, **options: Any) -> Path:
    """A folder without bertwright's notes and digest."""
    write_model(folder, **options)
    (folder / "model.safetensors.sha256").unlink()
    set_config(folder, bertwright=None)
    return folder


def set_config(folder: Path, **values: Any) -> None:
    """Set entries of config.json; None removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def set_tensors(folder: Path, change: Callable[[Tensors], Tensors], *, pickled: bool = False) -> None:
    tensors = change(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")


def prefixed(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def with_decoder_alone(tensors: Tensors) -> Tensors:
    return {DECODER if name == WORDS else name: tensor for name, tensor in tensors.items()}


def same_weights(folder: Path, expected: Path) -> bool:
    ours, theirs = open_model(str(folder)).weights, open_model(str(expected)).weights
    assert ours
    assert theirs
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "character", ["\u2028", "\u2029", "\u00a0", "\u3000", "\u0085", "\u000b", "\u000c", "\u001c", " "]
)
def test_a_piece_of_white_space_keeps_its_line(tmp_path: Path, character: str) -> None:
    pieces = [*SPECIAL, "a", character, "b", "##b"]
    tokenizer = Tokenizer(pieces, Rules(cased=False, strip_accents=True))
    published(tmp_path / "m", tokenizer=tokenizer)
    (tmp_path / "m" / "tokenizer.json").unlink()
    assert (tmp_path / "m" / "vocab.txt").read_bytes().split(b"\n")[6] == character.encode()
    import_model(str(tmp_path / "m"), tmp_path / "own")
    for folder in (tmp_path / "m", tmp_path / "own"):
        loaded = Tokenizer.load(folder)
        assert loaded.pieces == pieces
        assert loaded.ids(["a b"]) == [[5, 7]]


@pytest.mark.parametrize("piece", ["\n", "a\nb", "\r", "a\rb", ""])
def test_a_piece_that_no_line_can_hold_is_refused(tmp_path: Path, piece: str) -> None:
    published(tmp_path / "m")
    (tmp_path / "m" / "vocab.txt").unlink()
    path = tmp_path / "m" / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["vocab"][piece] = described["model"]["vocab"].pop("##z")
    path.write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"line of vocab\.txt can hold, got ") as caught:
        import_model(str(tmp_path / "m"), tmp_path / "own")
    assert f"{piece!r} with the id {LOWER.vocab_size - 1}" in str(caught.value)
    assert not (tmp_path / "own").exists()
    with pytest.raises(InputError, match=r"line of vocab\.txt can hold"):
        Tokenizer.load(tmp_path / "m").save(tmp_path / "tok")
    assert not (tmp_path / "tok").exists()


def test_a_vocabulary_of_another_convention_is_imported_on_request(tmp_path: Path) -> None:
    tokenizer = Tokenizer([*SPECIAL, "▁a", "▁b", "c"], Rules(cased=False, strip_accents=True))
    published(tmp_path / "m", tokenizer=tokenizer)
    with pytest.raises(InputError, match=r"the vocabulary of .*m: .*one of SentencePiece.*--as-wordpiece"):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    assert not (tmp_path / "own").exists()
    assert import_model(str(tmp_path / "m"), tmp_path / "own", as_wordpiece=True)["vocabulary"] == 8
    assert Tokenizer.load(tmp_path / "own").hash == tokenizer.hash


def test_settings_of_another_tokenizer_are_imported_on_request(tmp_path: Path) -> None:
    """Neither do_lower_case nor tokenizer.json is there, so that --casing alone decided before."""
    published(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").unlink()
    settings = {"word_tokenizer_type": "mecab", "subword_tokenizer_type": "character"}
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"tokenizer_config\.json: word_tokenizer_type is 'mecab'.*--as-wordpiece"):
        import_model(str(tmp_path / "m"), tmp_path / "own", cased=False)
    import_model(str(tmp_path / "m"), tmp_path / "own", cased=False, as_wordpiece=True)
    assert Tokenizer.load(tmp_path / "own").pieces == LOWER.pieces


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod."])
def test_a_tied_table_under_the_decoders_name_is_taken(tmp_path: Path, prefix: str, pickled: bool) -> None:
    import_model(str(published(tmp_path / "plain")), tmp_path / "expected")
    published(tmp_path / "m")
    set_tensors(tmp_path / "m", lambda tensors: prefixed(prefix)(with_decoder_alone(tensors)), pickled=pickled)
    import_model(str(tmp_path / "m"), tmp_path / "own")
    assert same_weights(tmp_path / "own", tmp_path / "expected")
    if not pickled:
        assert same_weights(tmp_path / "m", tmp_path / "expected")


def test_two_tables_that_are_said_to_differ_may_be_equal(tmp_path: Path) -> None:
    published(tmp_path / "m")
    set_config(tmp_path / "m", tie_word_embeddings=False)
    set_tensors(tmp_path / "m", lambda tensors: {**tensors, DECODER: tensors[WORDS].clone()})
    import_model(str(tmp_path / "m"), tmp_path / "own")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    assert config.get("tie_word_embeddings", True) is True


@pytest.mark.parametrize(
    ("change", "only"),
    [(prefixed("module."), f"module.{WORDS}"), (with_decoder_alone, DECODER)],
    ids=["words", "decoder"],
)
def test_one_table_that_is_not_tied_is_refused(tmp_path: Path, change: Callable[[Tensors], Tensors], only: str) -> None:
    published(tmp_path / "m")
    set_config(tmp_path / "m", tie_word_embeddings=False)
    set_tensors(tmp_path / "m", change)
    message = f"tie_word_embeddings is false in config.json.*the file holds only {only}. If they are one tensor, set"
    with pytest.raises(InputError, match=message):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    with pytest.raises(InputError, match=message):
        open_model(str(tmp_path / "m"))
    set_config(tmp_path / "m", tie_word_embeddings=True)
    import_model(str(tmp_path / "m"), tmp_path / "own")


def test_a_model_without_that_head_needs_no_second_table(tmp_path: Path) -> None:
    published(tmp_path / "m", architecture="BertModel")
    set_config(tmp_path / "m", tie_word_embeddings=False)
    assert import_model(str(tmp_path / "m"), tmp_path / "own")["architecture"] == "BertModel"


BIAS = "encoder.layer.0.output.dense.bias"
NAMES: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "as transformers": (lambda tensors: tensors, f"bert.{BIAS}"),
    "wrapped": (prefixed("module."), f"module.bert.{BIAS}"),
    "bare": (lambda tensors: {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}, BIAS),
}


@pytest.mark.parametrize("case", NAMES)
def test_messages_bear_the_names_of_the_file(tmp_path: Path, case: str) -> None:
    rename, name = NAMES[case]
    published(tmp_path / "m", architecture="BertModel")
    set_tensors(tmp_path / "m", rename)

    def refused(message: str, change: Callable[[Tensors], None]) -> None:
        original = load_file(tmp_path / "m" / "model.safetensors")
        changed = dict(original)
        change(changed)
        save_file(changed, tmp_path / "m" / "model.safetensors")
        with pytest.raises(InputError, match=message):
            import_model(str(tmp_path / "m"), tmp_path / "own")
        save_file(original, tmp_path / "m" / "model.safetensors")

    refused(rf"not a complete BertModel; missing: {name}$", lambda tensors: tensors.pop(name))
    refused(rf"{name} is \(3,\), not \(64,\)$", lambda tensors: tensors.update({name: torch.zeros(3)}))
    refused(
        rf"no numbers in {name}$", lambda tensors: tensors.update({name: torch.full_like(tensors[name], torch.nan)})
    )
    strange = name.replace(".output.", ".adapter.")
    refused(
        rf"1 of \d+ tensors do not belong to a BERT: {strange}$",
        lambda tensors: tensors.update({strange: torch.zeros(3)}),
    )


def test_a_missing_layer_bears_the_names_of_the_file(tmp_path: Path) -> None:
    published(tmp_path / "m", architecture="BertModel")
    queries = ("query", "key", "value")
    set_tensors(
        tmp_path / "m",
        lambda tensors: {name: tensor for name, tensor in tensors.items() if not any(part in name for part in queries)},
    )
    name = r"bert\.encoder\.layer\.0\.attention\.self\.\{query,key,value\}\.bias"
    with pytest.raises(InputError, match=f"missing: {name}, "):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    set_config(tmp_path / "m", num_hidden_layers=2)
    with pytest.raises(InputError, match=r"has no weights for bert\.encoder\.layer\.1\.attention\.self\.\{query,"):
        open_model(str(tmp_path / "m"))


LABELS: dict[str, tuple[Any, str]] = {
    "a tab": ({"0": "a\tb", "1": "c"}, r"the name of output 0 is 'a\\tb'; a control character in it"),
    "a gap": ({"0": "a", "2": "b"}, "id2label has 2 names, and none of them for output 1: its keys are 0, 2"),
    "a list": (["a", "b"], "expected an object in id2label, number of an output → its name, got a list"),
    "a number": ({"0": "a", "1": 3}, "expected a text as the name of output 1, got 3"),
    "an empty one": ({"0": "a", "1": " "}, "the label of output 1 is empty: ' '"),
    "one twice": ({"0": "a", "1": "a"}, "the outputs 0 and 1 have the same label 'a'"),
    "too few": ({"0": "a"}, "id2label names 1 labels, but there are 2 outputs"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_cannot_be_used_are_named_and_replaced(tmp_path: Path, case: str) -> None:
    id2label, message = LABELS[case]
    published(tmp_path / "m", architecture="BertForSequenceClassification")
    set_config(tmp_path / "m", id2label=id2label)
    with pytest.raises(InputError, match=message) as caught:
        import_model(str(tmp_path / "m"), tmp_path / "own")
    assert "--label" in str(caught.value)
    assert not (tmp_path / "own").exists()
    assert import_model(str(tmp_path / "m"), tmp_path / "own", labels=["no", "yes"])["labels"] == ["no", "yes"]
    assert load(tmp_path / "own", precision="fp32")("river music").label in ("no", "yes")


def test_labels_of_a_model_without_a_classifier_are_not_read(tmp_path: Path) -> None:
    published(tmp_path / "m")
    set_config(tmp_path / "m", id2label={"0": "a\tb"})
    assert import_model(str(tmp_path / "m"), tmp_path / "own")["labels"] == []


def test_a_padded_table_stays_as_it_is(tmp_path: Path) -> None:
    """Other programs read the folder, and its logits must be theirs."""
    rows = LOWER.vocab_size + 8
    published(tmp_path / "m", vocab_size=rows)
    import_model(str(tmp_path / "m"), tmp_path / "own")
    saved = open_model(str(tmp_path / "own"))
    assert saved.config == small_config(vocab_size=rows)
    assert same_weights(tmp_path / "own", tmp_path / "m")
