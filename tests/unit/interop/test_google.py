"""Checkpoints that TensorFlow wrote with Google's names: every weight, TensorFlow's answers, and what is refused."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from bertwright.errors import InputError
from bertwright.interop.checkpoint import ForeignCheckpoint, write_checkpoint
from bertwright.interop.google import is_google_checkpoint, read_google
from bertwright.interop.import_model import import_model
from bertwright.model.bert import Bert, open_architecture
from bertwright.model.families.bert import BERT_FAMILY
from bertwright.model.folder import open_model
from bertwright.text.wordpiece import Tokenizer
from tests.support.bundle_writer import write_bundle
from tests.support.folders import update_json
from tests.support.google_values import CONFIG, HEADS, PIECES, batch, encoder, values, variables

WRITTEN_BY_TENSORFLOW = Path(__file__).parents[2] / "fixtures" / "google"
PRETRAINED = WRITTEN_BY_TENSORFLOW / "pretrained"
ARCHITECTURES = {
    "pretrained": "BertForPreTraining",
    "classifier": "BertForSequenceClassification",
    "squad": "BertForQuestionAnswering",
}
LAST_NAMES = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
}
Arrays = dict[str, npt.NDArray[Any]]


def field_name(name: str) -> str:
    """The name of a variable in Hugging Face's conversion, by rule."""
    if name in LAST_NAMES:
        return LAST_NAMES[name]
    name = re.sub(r"layer_(\d+)", r"layer.\1", name).replace("/", ".")
    name = re.sub("_embeddings$", "_embeddings.weight", name)
    return re.sub("kernel$|gamma$", "weight", re.sub("beta$", "bias", name))


def random_arrays(checkpoint: str) -> Arrays:
    return {name: values(name, shape) for name, shape in (encoder() | HEADS[checkpoint]).items()}


def changed_checkpoint(folder: Path, arrays: Arrays, **config: Any) -> Path:
    """A checkpoint of other variables with the vocabulary and, unless changed, the settings of the fixtures."""
    folder.mkdir()
    shutil.copy(PRETRAINED / "vocab.txt", folder)
    (folder / "bert_config.json").write_text(json.dumps(CONFIG | config), "utf-8")
    write_bundle(folder / "bert_model.ckpt", arrays)
    return folder


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    ids, segments, mask = (torch.from_numpy(part).long() for part in batch())
    return ids, segments, mask.bool()


def open_foreign(foreign: ForeignCheckpoint, folder: Path) -> Bert:
    write_checkpoint(foreign, folder)
    return open_architecture(open_model(str(folder)))


@pytest.fixture(scope="module")
def answers() -> Arrays:
    """Return the outputs that TensorFlow computed from the checkpoints."""
    with np.load(WRITTEN_BY_TENSORFLOW / "answers.npz") as stored:
        return dict(stored)


def assert_close_to_array(measured: Tensor, expected: npt.NDArray[np.float32]) -> None:
    torch.testing.assert_close(measured, torch.from_numpy(expected), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("checkpoint", ARCHITECTURES)
def test_every_weight_arrives_bit_by_bit(checkpoint: str) -> None:
    foreign = read_google(WRITTEN_BY_TENSORFLOW / checkpoint, cased=False)
    assert foreign.architecture == ARCHITECTURES[checkpoint]
    expected = {
        field_name(name): array.T if name.endswith("kernel") else array
        for name, array in random_arrays(checkpoint).items()
    }
    written = BERT_FAMILY.weights_to_foreign(foreign.weights, foreign.architecture)
    assert set(written) == set(expected)
    for name, array in expected.items():
        assert written[name].dtype == torch.float32
        assert written[name].shape == array.shape
        assert written[name].contiguous().numpy().tobytes() == array.tobytes(), name
    left_out = set(variables(checkpoint)) - set(random_arrays(checkpoint))
    left_out |= {"global_step"} if checkpoint != "pretrained" else set()
    assert set(foreign.left_out) == left_out
    assert foreign.labels == ()
    config = foreign.config
    assert (config.vocab_size, config.hidden, config.layers, config.heads, config.intermediate) == (60, 16, 2, 4, 24)
    assert (config.max_positions, config.num_segments, config.pad_id) == (20, 2, 0)
    assert (config.activation, config.layer_norm_eps) == ("gelu", 1e-12)
    assert foreign.tokenizer.pieces == PIECES
    assert foreign.tokenizer.rules.longest_word == 200


@torch.no_grad()
def test_states_and_logits_are_those_of_tensorflow(tmp_path: Path, answers: Arrays) -> None:
    """At every real token, within 1e-5 of the forward pass that TensorFlow computed from the same files."""
    model = open_foreign(read_google(PRETRAINED, cased=False), tmp_path / "m")
    ids, segments, mask = tensors()
    states = model.encoder(ids, segments, mask, all_hidden=True).hidden
    assert len(states) == len(answers["pretrained/hidden"]) == 3
    for state, expected in zip(states, answers["pretrained/hidden"], strict=True):
        assert_close_to_array(state[mask], expected[mask.numpy()])
    assert_close_to_array(model.pooler(states[-1][:, 0]), answers["pretrained/pooled"])
    outputs = model(ids, segments, mask)
    assert_close_to_array(outputs["prediction_logits"][mask], answers["pretrained/masked_lm"][mask.numpy()])
    assert_close_to_array(outputs["seq_relationship_logits"], answers["pretrained/logits"])


@torch.no_grad()
def test_fine_tuned_logits_are_those_of_tensorflow(tmp_path: Path, answers: Arrays) -> None:
    ids, segments, mask = tensors()
    classifier = open_foreign(
        read_google(WRITTEN_BY_TENSORFLOW / "classifier" / "model.ckpt-7", cased=False), tmp_path / "c"
    )
    assert_close_to_array(classifier(ids, segments, mask)["logits"], answers["classifier/logits"])
    spans = open_foreign(
        read_google(WRITTEN_BY_TENSORFLOW / "squad" / "model.ckpt-7.index", cased=False), tmp_path / "s"
    )
    logits = spans(ids, segments, mask)
    real = mask.numpy()
    assert_close_to_array(logits["start_logits"][mask], answers["squad/logits"][..., 0][real])
    assert_close_to_array(logits["end_logits"][mask], answers["squad/logits"][..., 1][real])


@torch.no_grad()
@pytest.mark.parametrize("checkpoint", ARCHITECTURES)
def test_transformers_opens_what_is_written(tmp_path: Path, answers: Arrays, checkpoint: str) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    import_model(str(WRITTEN_BY_TENSORFLOW / checkpoint), tmp_path / "m", cased=False)
    theirs, notes = getattr(transformers, ARCHITECTURES[checkpoint]).from_pretrained(
        tmp_path / "m", output_loading_info=True
    )
    assert not notes["missing_keys"]
    assert not notes["mismatched_keys"]
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}  # there, but no part of that class
    assert set(notes["unexpected_keys"]) == (pooler if checkpoint == "squad" else set())
    ids, segments, mask = tensors()
    output = theirs.eval()(input_ids=ids, token_type_ids=segments, attention_mask=mask.long())
    if checkpoint == "pretrained":
        assert_close_to_array(output.prediction_logits[mask], answers["pretrained/masked_lm"][mask.numpy()])
        assert_close_to_array(output.seq_relationship_logits, answers["pretrained/logits"])
    elif checkpoint == "classifier":
        assert_close_to_array(output.logits, answers["classifier/logits"])
        assert theirs.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    else:
        assert_close_to_array(output.start_logits[mask], answers["squad/logits"][..., 0][mask.numpy()])
    pieces = transformers.AutoTokenizer.from_pretrained(tmp_path / "m").tokenize("The old stones, turning")
    assert pieces == ["the", "old", "stone", "##s", ",", "turn", "##ing"]


def test_import_recognises_folders_and_prefixes_and_says_what_it_found(tmp_path: Path) -> None:
    classifier = WRITTEN_BY_TENSORFLOW / "classifier"
    for index, source in enumerate((classifier, classifier / "model.ckpt-7", classifier / "model.ckpt-7.index")):
        report = import_model(str(source), tmp_path / f"m{index}", cased=False, labels=("no", "yes", "perhaps"))
        assert (report["found"], report["architecture"]) == (
            "Google's layout, model.ckpt-7",
            "BertForSequenceClassification",
        )
        assert (report["labels"], len(report["left_out"])) == (["no", "yes", "perhaps"], 83)
        assert open_model(report["model"]).labels == ("no", "yes", "perhaps")
    assert is_google_checkpoint(WRITTEN_BY_TENSORFLOW / "first_format" / "bert_model.ckpt")
    assert not is_google_checkpoint(WRITTEN_BY_TENSORFLOW / "answers.npz")
    assert not is_google_checkpoint(WRITTEN_BY_TENSORFLOW)
    assert not is_google_checkpoint(tmp_path / "nowhere")


def test_casing_is_asked_for_or_read_but_never_guessed(tmp_path: Path) -> None:
    assert read_google(PRETRAINED, cased=True).tokenizer.cased
    assert not read_google(PRETRAINED, cased=False).tokenizer.cased
    with pytest.raises(InputError, match=r"do not say whether upper case is kept; give --casing cased or --casing"):
        read_google(PRETRAINED, cased=None)
    folder = changed_checkpoint(tmp_path / "g", random_arrays("pretrained"))
    said = folder / "tokenizer_config.json"
    for lower in (True, False):
        said.write_text(json.dumps({"do_lower_case": lower}), "utf-8")
        assert read_google(folder, cased=None).tokenizer.cased is not lower
        assert read_google(folder, cased=not lower).tokenizer.cased is not lower
        with pytest.raises(InputError, match=rf"_config\.json: do_lower_case is {lower}, but --casing (un)?cased was"):
            read_google(folder, cased=lower)
    said.write_text('{"do_lower_case": true, "strip_accents": false}', "utf-8")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: strip_accents is False; Google's rules strip"):
        read_google(folder, cased=None)
    said.write_text("{}", "utf-8")
    with pytest.raises(InputError, match="give --casing cased or --casing"):
        read_google(folder, cased=None)
    said.write_text("[]", "utf-8")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: expected a JSON object, got a list"):
        read_google(folder, cased=None)


TRANSFORM = {name for name in HEADS["pretrained"] if name.startswith("cls/predictions/")}
PAIR = {name for name in HEADS["pretrained"] if name.startswith("cls/seq_relationship/")}


@pytest.mark.parametrize(
    ("heads", "architecture"),
    [(set(), "BertModel"), (TRANSFORM, "BertForMaskedLM"), (PAIR, "BertForNextSentencePrediction")],
)
def test_heads_decide_the_architecture(tmp_path: Path, heads: set[str], architecture: str) -> None:
    arrays = {name: array for name, array in random_arrays("pretrained").items() if name in encoder() or name in heads}
    foreign = read_google(changed_checkpoint(tmp_path / "g", arrays), cased=False)
    assert (foreign.architecture, foreign.left_out) == (architecture, ())
    assert open_foreign(foreign, tmp_path / "m").architecture == architecture


def test_types_of_other_widths_become_float32(tmp_path: Path) -> None:
    arrays = random_arrays("pretrained")
    half, double = "bert/pooler/dense/kernel", "cls/seq_relationship/output_bias"
    arrays[half], arrays[double] = arrays[half].astype(np.float16), arrays[double].astype(np.float64)
    weights = read_google(changed_checkpoint(tmp_path / "g", arrays), cased=False).weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert np.array_equal(weights["pooler.dense.weight"].numpy(), arrays[half].T.astype(np.float32))
    assert np.array_equal(weights["next_sentence.linear.bias"].numpy(), values(double, (2,)))


def test_one_checkpoint_of_several_is_named(tmp_path: Path) -> None:
    folder = changed_checkpoint(tmp_path / "g", random_arrays("pretrained"))
    for file in (WRITTEN_BY_TENSORFLOW / "classifier").glob("model.ckpt-7.*"):
        shutil.copy(file, folder)
    with pytest.raises(InputError, match=r"g: holds 2 checkpoints, name one: .*g/bert_model\.ckpt, .*g/model\.ckpt-7$"):
        read_google(folder, cased=False)
    assert read_google(folder / "model.ckpt-7", cased=False).architecture == "BertForSequenceClassification"
    assert read_google(folder / "bert_model.ckpt.index", cased=False).architecture == "BertForPreTraining"


def test_the_first_format_is_recognised(tmp_path: Path) -> None:
    old = WRITTEN_BY_TENSORFLOW / "first_format"
    for source in (old, old / "bert_model.ckpt"):
        with pytest.raises(InputError, match="a checkpoint of TensorFlow's first format"):
            read_google(source, cased=False)
    with pytest.raises(InputError, match="holds no checkpoint in Google's format: expected a file PREFIX"):
        read_google(tmp_path, cased=False)
    with pytest.raises(InputError, match=r"nowhere\.index: there is no such file"):
        read_google(tmp_path / "nowhere", cased=False)


def change(folder: Path, **changes: Any) -> None:
    update_json(folder / "bert_config.json", **changes)


def without_setting(folder: Path, name: str) -> None:
    path = folder / "bert_config.json"
    path.write_text(json.dumps({key: value for key, value in CONFIG.items() if key != name}), "utf-8")


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no vocabulary": (lambda folder: (folder / "vocab.txt").unlink(), r"vocab\.txt: there is no such file; it must"),
    "no settings": (lambda folder: (folder / "bert_config.json").unlink(), r"bert_config\.json: there is no such"),
    "no index": (lambda folder: (folder / "bert_model.ckpt.index").unlink(), "holds no checkpoint in Google's format"),
    "no data": (
        lambda folder: (folder / "bert_model.ckpt.data-00001-of-00002").unlink(),
        r"of its 2 data files bert_model\.ckpt\.data-00001-of-00002 is not beside the index",
    ),
    "settings are a list": (lambda folder: (folder / "bert_config.json").write_text("[1]"), "expected a JSON object"),
    "settings are broken": (lambda folder: (folder / "bert_config.json").write_text("{"), r"json:1: not valid JSON"),
    "activation": (lambda folder: change(folder, hidden_act="relu"), "hidden_act is 'relu'; only 'gelu' can be read"),
    "activation is null": (lambda folder: change(folder, hidden_act=None), "hidden_act is None; only 'gelu'"),
    "heads": (lambda folder: change(folder, num_attention_heads=3), r"json: .*hidden 16 is not a multiple of heads"),
    "setting of another model": (
        lambda folder: change(folder, embedding_size=8, num_hidden_groups=1),
        r"bert_config\.json: embedding_size, num_hidden_groups is no setting of Google's BERT",
    ),
    "setting is absent": (lambda folder: without_setting(folder, "type_vocab_size"), r"json: lacks type_vocab_size"),
    "setting of another type": (lambda folder: change(folder, vocab_size="many"), r"json: vocab_size: Input"),
    "settings of another type": (
        lambda folder: change(folder, hidden_size=-1, hidden_dropout_prob=None),
        r"bert_config\.json: hidden_size: Input should be .*; hidden_dropout_prob: Input should be a valid number$",
    ),
    "width": (
        lambda folder: change(folder, hidden_size=32),
        r"not a complete BertForPreTraining; bert/embeddings/word_embeddings is \(60, 16\), not \(60, 32\);",
    ),
    "inner width": (
        lambda folder: change(folder, intermediate_size=16),
        r"intermediate/dense/kernel is \(16, 24\), not \(16, 16",
    ),
    "positions": (lambda folder: change(folder, max_position_embeddings=512), r"is \(20, 16\), not \(512, 16\)"),
    "more layers": (lambda folder: change(folder, num_hidden_layers=3), r"missing: bert/encoder/layer_2/attention/"),
    "fewer layers": (lambda folder: change(folder, num_hidden_layers=1), r"unknown: bert/encoder/layer_1/"),
    "more pieces": (
        lambda folder: (folder / "vocab.txt").write_text("\n".join([*PIECES, "one more"]), "utf-8"),
        "the vocabulary has 61 pieces, but there are embeddings for 60",
    ),
    "a piece twice": (
        lambda folder: (folder / "vocab.txt").write_text("\n".join([*PIECES, "the"]), "utf-8"),
        r"vocab\.txt: the piece 'the' has two ids, \d+ and 60 \(in vocab\.txt lines \d+ and 61",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_named(tmp_path: Path, case: str) -> None:
    spoil, message = BAD_FILES[case]
    shutil.copytree(PRETRAINED, tmp_path / "g")
    spoil(tmp_path / "g")
    with pytest.raises(InputError, match=message):
        write_checkpoint(read_google(tmp_path / "g", cased=False), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def added(*names: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {name: np.zeros(2, np.float32) for name in names}


def removed(*names: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {name: array for name, array in arrays.items() if name not in names}


KEY = "bert/encoder/layer_0/attention/self/key/kernel"
BAD_VARIABLES: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "foreign": (
        added("bert/embeddings/word_embeddings_2", "bert/encoder/embedding_hidden_mapping_in/kernel"),
        r"g/bert_model\.ckpt: 2 of 48 variables have no place in Google's BERT: bert/embeddings/word_embeddings_2, "
        r"bert/encoder/embedding_hidden_mapping_in/kernel$",
    ),
    "other leaves": (
        added("bert/pooler/dense/gamma", "bert/embeddings/LayerNorm/kernel"),
        "2 of 48 .*: bert/embeddings/LayerNorm/kernel, bert/pooler/dense/gamma$",
    ),
    "moments of a foreign variable": (added("x/adam_m"), "1 of 47 variables have no place in Google's BERT: x/adam_m$"),
    "another optimiser": (added("output_bias/Adam"), "1 of 47 .*: output_bias/Adam$"),
    "another scope": (added("bert_1/pooler/dense/bias"), "1 of 47 .*: bert_1/pooler/dense/bias$"),
    "two tasks": (
        added("output_weights", "output_bias"),
        r"heads of several tasks, .*: cls/predictions/output_bias, .*cls/seq_relationship/output_weights, output_bias",
    ),
    "no key": (removed(KEY), r"layer_0/attention/self/query/kernel is there, but not .*/layer_0/.*self/key/kernel$"),
    "no query": (
        removed(KEY.replace("key", "query")),
        r"missing: .*self/\{query,key,value\}/kernel; unknown: .*self/key/kernel, ",
    ),
    "no bias": (removed("cls/predictions/output_bias"), r"BertForPreTraining; missing: cls/predictions/output_bias$"),
    "a key of another shape": (
        lambda arrays: arrays | {KEY: np.zeros((16, 8), np.float32)},
        r"query/kernel is \(16, 16\), .*key/kernel is \(16, 8\), .*; they must have the same shape",
    ),
    "whole numbers": (
        lambda arrays: arrays | {KEY: np.zeros((16, 16), np.int32)},
        f"{KEY} is of type int32; weights are floating-point numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_VARIABLES)
def test_bad_variables_are_named(tmp_path: Path, case: str) -> None:
    spoil, message = BAD_VARIABLES[case]
    folder = changed_checkpoint(tmp_path / "g", spoil(random_arrays("pretrained")))
    with pytest.raises(InputError, match=message):
        write_checkpoint(read_google(folder, cased=False), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_damaged_weight_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    folder = shutil.copytree(PRETRAINED, tmp_path / "g")
    data = folder / "bert_model.ckpt.data-00000-of-00002"
    raw = bytearray(data.read_bytes())
    raw[0] ^= 1
    data.write_bytes(raw)
    with pytest.raises(InputError, match=r"data-00000-of-00002: bert/embeddings/LayerNorm/beta \(bytes 0 to 64\) has"):
        write_checkpoint(read_google(folder, cased=False), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_damage_in_the_moments_of_an_optimiser_matters_to_nobody(tmp_path: Path) -> None:
    folder = shutil.copytree(WRITTEN_BY_TENSORFLOW / "classifier", tmp_path / "g")
    data = folder / "model.ckpt-7.data-00000-of-00001"
    whole = data.read_bytes()
    moment = values("output_bias/adam_m", (3,)).tobytes()
    assert whole.count(moment) == 1
    data.write_bytes(whole.replace(moment, bytes(12)))
    before, after = (
        read_google(source, cased=False).weights for source in (WRITTEN_BY_TENSORFLOW / "classifier", folder)
    )
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_the_vocabulary_comes_back_from_the_folder(tmp_path: Path) -> None:
    write_checkpoint(read_google(PRETRAINED, cased=True), tmp_path / "m")
    tokenizer = Tokenizer.load(tmp_path / "m")
    assert tokenizer.cased
    assert tokenizer.ids(["the old stones, turning"]) == [
        [PIECES.index(piece) for piece in "the old stone ##s , turn ##ing".split()]
    ]
