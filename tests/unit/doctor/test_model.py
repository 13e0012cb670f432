"""Findings of the doctor about model folders that are broken on purpose, and about the same folder when it is whole."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bertwright.doctor.corpus import capitals_finding, sample_sentences
from bertwright.doctor.findings import Finding
from bertwright.doctor.model import casing, check_model, labels, special_tokens, vocabulary
from bertwright.doctor.training import MaskedLoss, masked_lm_finding, masked_loss, overfit_batch, verdict
from bertwright.errors import InputError
from bertwright.interop.import_model import import_model
from bertwright.model.bert import open_architecture
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import init_weights
from bertwright.model.families.bert import FEATURES
from bertwright.model.families.gpt_bert import GPTBertConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.system import NAMES, System, system_config
from bertwright.objectives.dataset import Examples
from bertwright.objectives.language_model import LanguageModel
from bertwright.objectives.masked_lm import PretrainingModel, to_inputs
from bertwright.objectives.settings import ExampleSettings, MaskingSettings
from bertwright.tasks.frozen_features import FrozenModel
from bertwright.text.byte_pairs import train_byte_pairs
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wordpiece import Tokenizer
from tests.support.doctor_patients import CASED, LOWER, WORDS, levels, named, small_config, write_corpus, write_model
from tests.support.folders import update_json
from tests.support.gpt2_files import publish_gpt2, write_gpt2_tokenizer


def found_in(folder: Path) -> list[Finding]:
    return check_model(str(folder), tokenizer_folder=None)[1]


def test_a_whole_model_has_nothing_wrong(tmp_path: Path) -> None:
    opened, findings = check_model(str(write_model(tmp_path / "model")), tokenizer_folder=None)
    assert levels(findings) == {}
    assert opened.with_heads is not None
    assert opened.tokenizer is not None
    assert "exact GELU" in named(findings, "opens").text
    tanh = write_model(tmp_path / "tanh", activation="gelu_tanh")
    assert "GELU by its tanh approximation" in named(found_in(tanh), "opens").text


@pytest.mark.parametrize("system", ["bert-left", "lstm-right"])
def test_a_language_model_is_whole_too(tmp_path: Path, system: System) -> None:
    config = system_config(system, "tiny", LOWER.vocab_size)
    model = LanguageModel(config)
    init_weights(model, 0.02, torch.Generator().manual_seed(0))
    for name, tensor in model.named_parameters():
        if tensor.ndim == 1 or "lstm" in name:  # as training leaves them: neither 0 nor 1
            torch.nn.init.normal_(tensor, generator=torch.Generator().manual_seed(1))
    LOWER.save(tmp_path / "tok")
    save_model(tmp_path / "m", model, config=config, tokenizer=tmp_path / "tok", architecture=model.architecture)
    findings = found_in(tmp_path / "m")
    assert levels(findings) == {}
    assert NAMES[system] in named(findings, "opens").text
    assert f"of a {NAMES[system]}; evaluate" in named(findings, "heads").text


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    opened, findings = check_model(str(tmp_path), tokenizer_folder=None)
    assert levels(findings) == {"opens": "error"}
    assert opened.saved is None


def test_pieces_without_a_row_and_rows_without_a_piece(tmp_path: Path) -> None:
    few = write_model(tmp_path / "few", vocab_size=LOWER.vocab_size - 3)
    finding = named(found_in(few), "vocabulary")
    assert (finding.level, finding.value) == ("error", {"pieces": LOWER.vocab_size, "rows": LOWER.vocab_size - 3})
    padded = write_model(tmp_path / "padded", vocab_size=LOWER.vocab_size + 7)
    assert levels(found_in(padded)) == {"vocabulary": "note"}
    assert vocabulary(8, 8).level == "ok"


def test_special_tokens_have_rows_and_padding_is_where_it_is_said(tmp_path: Path) -> None:
    last = Tokenizer([*LOWER.pieces[5:], *SPECIAL], LOWER.rules)
    rows = last.vocab_size - 1
    outside = special_tokens(last, small_config(last, pad_id=last.pad_id), rows=rows)
    assert (outside.level, "[MASK]" in outside.text) == ("error", True)
    other = found_in(write_model(tmp_path / "model", pad_id=7))
    assert levels(other) == {"special tokens": "warning"}
    assert repr(LOWER.pieces[7]) in named(other, "special tokens").text


@pytest.mark.parametrize(
    ("tokenizer", "said", "level", "says"),
    [
        (LOWER, True, "ok", "uncased"),
        (LOWER, None, "ok", "uncased"),
        (CASED, False, "ok", "cased"),
        (CASED, None, "warning", "has no do_lower_case"),
        (Tokenizer(CASED.pieces, LOWER.rules), True, "error", "no text can give these pieces"),
        (Tokenizer(LOWER.pieces, CASED.rules), False, "warning", "every word with a capital"),
        (Tokenizer([*SPECIAL, *"하나둘셋넷"], CASED.rules), False, "ok", ""),
    ],
)
def test_case_of_rules_and_vocabulary(tokenizer: Tokenizer, said: bool | None, level: str, says: str) -> None:
    finding = casing(tokenizer, said)
    assert finding.level == level
    assert says in finding.text


def test_case_of_byte_level_pieces_is_that_of_their_text() -> None:
    lower, upper = "the rain falls on the old bridge", "The Rain falls on the old Bridge"
    for text, capital in ((lower, 0.0), (upper, 0.2)):
        tokenizer = train_byte_pairs([text] * 5, vocab_size=300)
        finding = casing(tokenizer, None)
        assert finding.level == "ok"
        letters = [piece for piece in tokenizer.pieces if len(piece) > 1]
        assert any(piece.startswith("\u0120") for piece in letters)
        ids = np.bincount(tokenizer.ids([text])[0], minlength=tokenizer.vocab_size)
        of_text = capitals_finding("corpus", tokenizer, ids)
        assert (of_text.level == "ok") == (capital > 0)


def test_case_that_two_files_contradict_and_case_that_none_tells(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", tokenizer=CASED)
    assert levels(found_in(model)) == {}
    update_json(model / "tokenizer_config.json", do_lower_case=True)
    assert levels(found_in(model)) == {"tokenizer": "error"}
    update_json(model / "tokenizer_config.json", do_lower_case=None)
    assert levels(found_in(model)) == {"casing": "warning"}


@pytest.mark.parametrize("written", ["[]", "{", ""])
def test_a_tokenizer_whose_files_are_broken_is_an_error(tmp_path: Path, written: str) -> None:
    model = write_model(tmp_path / "model")
    (model / "tokenizer_config.json").write_text(written)
    assert levels(found_in(model)) == {"tokenizer": "error"}


def set_to(value: float, name: str, position: int | None = None) -> Callable[[dict[str, Tensor]], None]:
    def change(weights: dict[str, Tensor]) -> None:
        if position is None:
            weights[name] = torch.full_like(weights[name], value)
        else:
            weights[name].view(-1)[position] = value

    return change


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, value: float) -> None:
    name = "encoder.layers.0.expand.weight"
    findings = found_in(write_model(tmp_path / "model", change=set_to(value, name, 17)))
    assert levels(findings) == {"weights, finite": "error", "heads": "error"}  # it cannot be used either
    assert named(findings, "weights, finite").value == [name]


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_table_of_one_number_is_an_error(tmp_path: Path, value: float) -> None:
    name = "encoder.layers.0.contract.weight"
    findings = found_in(write_model(tmp_path / "model", change=set_to(value, name)))
    assert levels(findings) == {"weights, trained": "error"}
    assert named(findings, "weights, trained").value == [name]


def test_a_table_of_zeros_for_the_only_segment_is_none(tmp_path: Path) -> None:
    empty = set_to(0.0, "encoder.embeddings.segment.weight")
    assert levels(found_in(write_model(tmp_path / "model", change=empty, num_segments=1))) == {}


def untrained(prefix: str) -> Callable[[dict[str, Tensor]], None]:
    def change(weights: dict[str, Tensor]) -> None:
        for name, tensor in weights.items():
            if name.startswith(prefix) and tensor.ndim == 1:
                weights[name] = torch.ones_like(tensor) if name.endswith("norm.weight") else torch.zeros_like(tensor)

    return change


@pytest.mark.parametrize(
    ("architecture", "prefix", "level", "what"),
    [
        ("BertForPreTraining", "", "warning", ["encoder"]),
        ("BertForPreTraining", "masked_lm.", "note", ["the masked-LM head"]),
        ("BertModel", "pooler.", "note", ["the pooler"]),
        ("BertForSequenceClassification", "classifier.", "warning", ["the classifier"]),
    ],
)
def test_parts_that_were_never_trained_are_named(
    tmp_path: Path, architecture: str, prefix: str, level: str, what: list[str]
) -> None:
    labelled = ("good", "bad") if "Classification" in architecture else ()
    model = write_model(tmp_path / "model", architecture=architecture, change=untrained(prefix), labels=labelled)
    findings = found_in(model)
    assert levels(findings) == {"weights, trained": level}
    assert named(findings, "weights, trained").value == what


def without_prefix(prefix: str) -> Callable[[dict[str, Tensor]], None]:
    def change(weights: dict[str, Tensor]) -> None:
        for name in [name for name in weights if name.startswith(prefix)]:
            del weights[name]

    return change


def test_weights_that_are_missing(tmp_path: Path) -> None:
    half = write_model(tmp_path / "half", change=without_prefix("encoder.layers.0.attention.output"))
    assert levels(found_in(half)) == {"heads": "error"}
    masked = write_model(tmp_path / "masked", architecture="BertForMaskedLM")
    findings = found_in(masked)
    assert levels(findings) == {"pooler": "note"}
    assert "starts a new one" in named(findings, "pooler").text
    kind = "BertForSequenceClassification"
    whole = write_model(tmp_path / "whole", architecture=kind, labels=("good", "bad"))
    assert levels(found_in(whole)) == {}
    poor = write_model(tmp_path / "poor", architecture=kind, labels=("good", "bad"), change=without_prefix("pooler."))
    assert levels(found_in(poor)) == {"heads": "error", "pooler": "error"}
    update_json(whole / "config.json", architectures=["BertForSomethingElse"])
    assert levels(found_in(whole)) == {"heads": "warning"}


def test_a_classifier_of_a_family_without_a_pooler_is_whole(tmp_path: Path) -> None:
    size = write_gpt2_tokenizer(tmp_path / "m")
    publish_gpt2(tmp_path / "m", "GPT2ForSequenceClassification", vocab_size=size, pad_token_id=size - 1)
    import_model(str(tmp_path / "m"), tmp_path / "out")
    assert "error" not in levels(found_in(tmp_path / "out")).values()


def test_a_model_on_features_is_one_of_ours(tmp_path: Path) -> None:
    model = FrozenModel(small_config(), "last", outputs=2, width=8, each=False)
    init_weights(model, 0.02, torch.Generator().manual_seed(0))
    weights = {name: tensor + 0.01 if tensor.ndim == 1 else tensor for name, tensor in model.state_dict().items()}
    LOWER.save(tmp_path / "tok")
    save_model(
        tmp_path / "m",
        weights,
        config=small_config(),
        tokenizer=tmp_path / "tok",
        architecture=FEATURES,
        labels=("a", "b"),
    )
    findings = found_in(tmp_path / "m")
    assert levels(findings) == {}
    assert named(findings, "heads").value == FEATURES


@pytest.mark.parametrize(
    ("names", "outputs", "back", "level"),
    [
        (("good", "bad"), 2, {"good": 0, "bad": 1}, "ok"),
        (("good", "bad"), 2, None, "ok"),
        (("good", "bad"), 3, None, "error"),
        (("good", "bad"), 2, {"good": 1, "bad": 0}, "error"),
        (("LABEL_0", "LABEL_1"), 2, None, "note"),
        ((), 2, None, "note"),
    ],
)
def test_labels_and_their_order(names: tuple[str, ...], outputs: int, back: Any, level: str) -> None:
    assert labels(names, outputs, back=back).level == level


def test_labels_are_read_from_the_folder(tmp_path: Path) -> None:
    kind = "BertForTokenClassification"
    model = write_model(tmp_path / "model", architecture=kind, labels=("a", "b", "c"), num_labels=3)
    assert levels(found_in(model)) == {}
    update_json(model / "config.json", label2id={"a": 0, "b": 2, "c": 1})
    assert levels(found_in(model)) == {"labels": "error"}
    update_json(model / "config.json", id2label={"1": "a", "2": "b", "3": "c"})
    findings = found_in(model)
    assert levels(findings) == {"opens": "error"}
    assert "id2label" in findings[0].text


def test_lengths_against_positions(tmp_path: Path) -> None:
    kind, both = "BertForSequenceClassification", ("good", "bad")
    fits = write_model(tmp_path / "fits", architecture=kind, labels=both, extra={"max_length": 64}, max_positions=64)
    update_json(fits / "tokenizer_config.json", model_max_length=64)
    assert named(found_in(fits), "length").level == "ok"
    update_json(fits / "tokenizer_config.json", model_max_length=512)
    assert named(found_in(fits), "length").level == "note"
    long = write_model(tmp_path / "long", architecture=kind, labels=both, extra={"max_length": 128}, max_positions=64)
    assert named(found_in(long), "length").level == "error"
    for noted in ("64x", None, 2, 9999):
        update_json(long / "config.json", bertwright={"max_length": noted})
        assert named(found_in(long), "length").level == "error"
        with pytest.raises(InputError, match=f"notes the max_length {noted!r} of its task"):
            _ = open_model(str(long)).max_length


@pytest.mark.parametrize(
    ("noted", "level"), [(32, "note"), (64, "ok"), (99, "ok"), ("32", "ok"), (0, "ok"), (True, "ok")]
)
def test_positions_that_were_not_trained_are_noted(tmp_path: Path, noted: object, level: str) -> None:
    model = write_model(tmp_path / "model", extra={"trained_positions": noted}, max_positions=64)
    finding = named(found_in(model), "length")
    assert finding.level == level
    assert ("of which the first 32 were trained" in finding.text) == (level == "note")


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model that uses the context, because each sentence of its corpus repeats one word; and the corpus."""
    folder = tmp_path_factory.mktemp("learned")
    corpus = write_corpus(folder / "corpus", [[" ".join([word] * 12) for word in WORDS[i::5]] for i in range(5)])
    model = PretrainingModel(small_config(), second_sentence="none")
    init_weights(model, 0.05, torch.Generator().manual_seed(0))
    settings = ExampleSettings(second_sentence="none", masking=MaskingSettings(share=0.15))
    rows = Examples(corpus, settings, length=16, seed=0, write_plans=False)
    course = overfit_batch(model.trainable(), to_inputs(rows.step_batch(0, 60)), term="mlm", rate=5e-3, goal=0.1)
    assert course.last["mlm"] < 0.1
    LOWER.save(folder / "tok")
    save_model(folder / "m", model, config=small_config(), tokenizer=folder / "tok", architecture="BertForMaskedLM")
    return open_architecture(open_model(str(folder / "m"))), corpus


def test_a_trained_model_beats_guessing_and_uses_the_context(learned: tuple[Any, Any]) -> None:
    model, corpus = learned
    finding = masked_lm_finding(model, LOWER, sample_sentences(corpus))
    assert finding.level == "ok", finding
    assert finding.value["loss"] < finding.value["without_context"] - 0.5
    assert finding.value["guessing"] == pytest.approx(torch.tensor(float(LOWER.vocab_size)).log().item())


@pytest.mark.parametrize("kind", [EncoderConfig, GPTBertConfig])
def test_the_masked_loss_is_that_of_a_plain_walk(tmp_path: Path, kind: type[EncoderConfig]) -> None:
    """Every position is masked once, a seventh of a row at a time, and the whole model's forward predicts it."""
    saved = open_model(str(write_model(tmp_path / "model", initializer_range=0.2)))
    same = replace(saved, config=kind.model_validate(saved.config.model_dump()), architecture="BertForMaskedLM")
    model = open_architecture(same)
    rows = [LOWER.ids([" ".join(WORDS[:17])])[0], LOWER.ids(["river music zebra"])[0]]
    losses, predictions, targets = [], [], []
    for row in rows:
        for shift in range(min(7, len(row))):
            ids = torch.tensor([[LOWER.cls_id, *row, LOWER.sep_id]])
            hidden = list(range(1 + shift, 1 + len(row), 7))
            ids[0, hidden] = LOWER.mask_id
            with torch.no_grad():
                outputs = model(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))
            probabilities = outputs["logits"][0, hidden].double().softmax(-1)
            labelled = [row[position - 1] for position in hidden]
            losses += [-probabilities[index, label].log().item() for index, label in enumerate(labelled)]
            predictions.append(probabilities)
            targets += labelled
    mean = torch.cat(predictions).mean(0)
    measured = masked_loss(model, LOWER, rows)
    assert len(targets) == sum(map(len, rows))
    assert measured.loss == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert measured.without_context == pytest.approx(-mean[targets].log().mean().item(), abs=1e-5)
    assert measured.unknown_fraction == 0.0


def test_rows_without_a_piece_are_no_candidates(learned: tuple[Any, Any], tmp_path: Path) -> None:
    """A padded table gives the same finding as the table without its padding, whatever the bias there."""
    model, corpus = learned
    unpadded, rows = masked_lm_finding(model, LOWER, sample_sentences(corpus)), LOWER.vocab_size + 8
    weights = dict(model.state_dict())
    table, bias = weights["encoder.embeddings.word.weight"], weights["masked_lm.bias"]
    weights["encoder.embeddings.word.weight"] = torch.cat([table, torch.zeros(8, table.shape[1])])
    weights["masked_lm.bias"] = torch.cat([bias, torch.full((8,), 50.0)])
    LOWER.save(tmp_path / "tok")
    config, kind = small_config(vocab_size=rows), "BertForMaskedLM"
    save_model(tmp_path / "m", weights, config=config, tokenizer=tmp_path / "tok", architecture=kind)
    padded = masked_lm_finding(open_architecture(open_model(str(tmp_path / "m"))), LOWER, sample_sentences(corpus))
    assert (padded.level, padded.value) == (unpadded.level, pytest.approx(unpadded.value, rel=1e-6))


def test_a_swapped_tokenizer_is_worse_than_guessing(learned: tuple[Any, Any]) -> None:
    model, _ = learned
    swapped = Tokenizer(LOWER.pieces[::-1], LOWER.rules)
    finding = masked_lm_finding(model, swapped, swapped.ids([" ".join([word] * 12) for word in WORDS]))
    assert finding.level == "error"
    assert "worse than guessing" in finding.text
    assert "tokenizer" in finding.advice


def test_a_model_that_was_never_trained_guesses(tmp_path: Path, learned: tuple[Any, Any]) -> None:
    model = open_architecture(open_model(str(write_model(tmp_path / "model"))))
    finding = masked_lm_finding(model, LOWER, sample_sentences(learned[1]))
    assert finding.level == "warning"
    assert "nothing was learned" in finding.text
    english = masked_lm_finding(model, LOWER)
    assert english.level == "warning"
    assert "nothing was learned" in english.text


@pytest.mark.parametrize(
    ("loss", "alone", "unknown", "own_advice", "others"),
    [
        (3.0, 7.0, 0.0, "ok", "ok"),
        (7.0, 7.05, 0.0, "warning", "note"),
        (10.3, 10.3, 0.0, "warning", "warning"),
        (12.0, 11.0, 0.0, "error", "warning"),
        (3.0, 7.0, 0.4, "ok", "note"),
        (float("nan"), 7.0, 0.0, "error", "error"),
    ],
)
def test_the_finding_for_a_loss(loss: float, alone: float, unknown: float, own_advice: str, others: str) -> None:
    measured = MaskedLoss(loss, alone, unknown_fraction=unknown)
    assert verdict(measured, vocabulary=30522, own_text=True).level == own_advice
    assert verdict(measured, vocabulary=30522, own_text=False).level == others


def test_another_language_is_not_judged(tmp_path: Path) -> None:
    letters = Tokenizer([*SPECIAL, *"가나다라마바사"], Rules(cased=True, strip_accents=False))
    model = open_architecture(open_model(str(write_model(tmp_path / "model", tokenizer=letters))))
    finding = masked_lm_finding(model, letters)
    assert (finding.level, "not judged" in finding.text) == ("note", True)
