"""Published folders become model folders: every layout of weights, every head, names and casing kept; else refused."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save_file

from bertwright import load
from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.finetuning.evaluate import predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop import checkpoint
from bertwright.interop import import_model as importing
from bertwright.interop.import_model import import_model
from bertwright.model.bert import open_architecture
from bertwright.model.folder import open_model
from bertwright.tasks.classification.spec import CLASSIFY
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from tests.support.commands import run_bertwright
from tests.support.folders import update_json, weights_in
from tests.support.gpt_files import release
from tests.support.hub import hub_server
from tests.support.parity import BERT_CLASSES

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


@pytest.fixture(scope="module")
def pieces(own_text: Path) -> list[str]:
    return train_wordpiece(own_text.read_text("utf-8").splitlines(), vocab_size=400, cased=True).pieces


def publish(folder: Path, pieces: list[str], kind: str = "BertForPreTraining", **config: Any) -> Any:
    """A folder as transformers saves it."""
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    words = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=False)
    (folder / "vocab.txt").unlink()
    words.save_pretrained(folder)
    torch.manual_seed(7)
    settings = transformers.BertConfig(vocab_size=len(pieces), max_position_embeddings=40, **{**SHAPE, **config})
    model = getattr(transformers, kind)(settings).eval()
    model.save_pretrained(folder)
    return model


def as_pickle(folder: Path) -> None:
    torch.save(weights_in(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def as_old_pickle(folder: Path) -> None:
    torch.save(weights_in(folder), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "model.safetensors").unlink()


def as_shards(folder: Path, ending: str = "safetensors") -> None:
    weights, base = weights_in(folder), "model" if ending == "safetensors" else "pytorch_model"
    names, places = sorted(weights), {}
    for number in (1, 2, 3):
        file = f"{base}-{number:05}-of-00003.{ending}"
        part = {name: weights[name] for name in names[number - 1 :: 3]}
        places |= dict.fromkeys(part, file)
        save_file(part, folder / file) if ending == "safetensors" else torch.save(part, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{base}.{ending}.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


def as_pickled_shards(folder: Path) -> None:
    as_shards(folder, "bin")


def as_of_2018(folder: Path) -> None:
    """gamma and beta, the decoder written out, position ids among the weights, no model_type, no architectures."""
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights_in(folder).items()
    }
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"]
    old["bert.embeddings.position_ids"] = torch.arange(40)[None]
    torch.save(old, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))


def as_wrapped(folder: Path) -> None:
    torch.save({f"module.{name}": tensor for name, tensor in weights_in(folder).items()}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def as_halves(folder: Path) -> None:
    halves = {name: tensor.half() for name, tensor in weights_in(folder).items()}
    save_file(halves, folder / "model.safetensors")


@pytest.mark.parametrize(
    "stored", [as_pickle, as_old_pickle, as_shards, as_pickled_shards, as_of_2018, as_wrapped], ids=lambda f: f.__name__
)
def test_every_layout_of_weights_gives_the_same_folder(tmp_path: Path, pieces: list[str], stored: Any) -> None:
    publish(tmp_path / "m", pieces)
    plain = import_model(str(tmp_path / "m"), tmp_path / "plain")
    assert (plain["architecture"], plain["vocabulary"], plain["cased"]) == ("BertForPreTraining", len(pieces), True)
    assert plain["parameters"] == sum(tensor.numel() for tensor in weights_in(tmp_path / "m").values())
    stored(tmp_path / "m")
    report = import_model(str(tmp_path / "m"), tmp_path / "own")
    assert report["found"] != plain["found"]
    assert (tmp_path / "own" / "model.safetensors").read_bytes() == (
        tmp_path / "plain" / "model.safetensors"
    ).read_bytes()


def test_half_precision_becomes_fp32(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces)
    whole = weights_in(tmp_path / "m")
    as_halves(tmp_path / "m")
    import_model(str(tmp_path / "m"), tmp_path / "own")
    for name, tensor in weights_in(tmp_path / "own").items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, whole[name].half().float())


@pytest.mark.parametrize("kind", BERT_CLASSES)
def test_every_class_goes_to_us_and_back_bit_by_bit(tmp_path: Path, pieces: list[str], kind: str) -> None:
    """theirs → ours → theirs → ours: the same bits, names of labels and casing."""
    labels = {"id2label": {0: "B-x", 1: "I-x", 2: "O"}, "label2id": {"B-x": 0, "I-x": 1, "O": 2}}
    outputs = labels if kind in ("BertForTokenClassification", "BertForSequenceClassification") else {}
    first = publish(tmp_path / "m", pieces, kind, **outputs)
    report = import_model(str(tmp_path / "m"), tmp_path / "own")
    assert report["architecture"] == kind
    assert report["labels"] == list(outputs.get("label2id", ()))
    theirs = getattr(transformers, kind).from_pretrained(tmp_path / "own")
    for name, tensor in first.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
    if outputs:
        assert theirs.config.id2label == labels["id2label"]
    words = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "own"))
    assert words("Größe Apple")["input_ids"][1:-1] == Tokenizer.load(tmp_path / "m").ids(["Größe Apple"])[0]
    theirs.save_pretrained(tmp_path / "again")
    words.save_pretrained(tmp_path / "again")
    import_model(str(tmp_path / "again"), tmp_path / "own2")
    ours, back = open_model(str(tmp_path / "own")), open_model(str(tmp_path / "own2"))
    assert ours.config == back.config
    assert ours.labels == back.labels
    assert ours.weights is not None
    assert back.weights is not None
    assert set(ours.weights) == set(back.weights)
    assert all(torch.equal(back.weights[name], tensor) for name, tensor in ours.weights.items())
    assert Tokenizer.load(tmp_path / "own2").hash == Tokenizer.load(tmp_path / "own").hash
    assert open_architecture(back).architecture == kind


def test_the_heads_that_are_there_count(tmp_path: Path, pieces: list[str]) -> None:
    """The folder is like that of bert-base-uncased: its class is a masked LM, and its weights have both heads."""
    publish(tmp_path / "m", pieces)
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["BertForMaskedLM"]}))
    assert import_model(str(tmp_path / "m"), tmp_path / "own")["architecture"] == "BertForPreTraining"


def test_a_classifier_answers_after_its_import(tmp_path: Path, pieces: list[str]) -> None:
    """Labels are the file's, or given; `predict` gives the probabilities of transformers."""
    theirs = publish(tmp_path / "m", pieces, "BertForSequenceClassification", num_labels=3)
    import_model(str(tmp_path / "m"), tmp_path / "own", labels=["bad", "fair", "good"], text=["a", "b"])
    (tmp_path / "t.tsv").write_text("a\tb\nOne word.\tAnother text here.\nThe end\tThe beginning\n")
    command = [sys.executable, "-m", "bertwright", "predict", "--model", str(tmp_path / "own")]
    command += ["--input", str(tmp_path / "t.tsv"), "--output", str(tmp_path / "answers.tsv"), "--precision", "fp32"]
    subprocess.run(command, check=True, capture_output=True)
    answered = [line.split("\t") for line in (tmp_path / "answers.tsv").read_text().splitlines()]
    assert answered[0] == ["a", "b", "label", "probability_bad", "probability_fair", "probability_good"]
    assert len(answered) == 3
    words = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "m"))
    with torch.inference_mode():
        for row in answered[1:]:
            expected = theirs(**words(row[0], row[1], return_tensors="pt")).logits.softmax(-1)[0]
            assert row[2] == ("bad", "fair", "good")[int(expected.argmax())]
            assert np.allclose([float(value) for value in row[3:]], expected.numpy(), atol=2e-6)
    plain = import_model(str(tmp_path / "m"), tmp_path / "unnamed")
    assert plain["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_a_model_of_spans_takes_the_named_squad_task(
    tmp_path: Path, pieces: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers, scores and null odds are those of a search through all that transformers' logits allow."""
    theirs = publish(tmp_path / "m", pieces, "BertForQuestionAnswering")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    question, context = "Who waits?", "The miller waits at the old bridge."
    row = words(question, context, return_tensors="pt", return_offsets_mapping=True)
    places = row.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        logits = theirs(**row)
    start, end = (values[0].tolist() for values in (logits.start_logits, logits.end_logits))
    first = int(row["token_type_ids"][0].argmax())
    spans = [(i, j) for i in range(first, len(places) - 1) for j in range(i, min(i + 30, len(places) - 1))]
    i, j = max(spans, key=lambda span: start[span[0]] + end[span[1]])
    odds = start[0] + end[0] - start[i] - end[j]
    source = tmp_path / "asked.jsonl"
    source.write_text(json.dumps({"question": question, "context": context}) + "\n", "utf-8")
    for task in (None, "squad1", "squad2"):
        report = import_model(str(tmp_path / "m"), tmp_path / f"own-{task}", task=task)
        assert report["task"] == (task or "squad1")
        assert ("taken for a model of SQuAD 1.1" in capsys.readouterr().err) is (task is None)
        predict_file(str(tmp_path / f"own-{task}"), str(source), str(tmp_path / "answers.jsonl"))
        answer = json.loads((tmp_path / "answers.jsonl").read_text("utf-8"))
        best = context[places[i][0] : places[j][1]]
        assert answer["answer"] == ("" if task == "squad2" and odds > 0 else best)
        assert answer.get("null_odds") == (pytest.approx(odds, abs=1e-4) if task == "squad2" else None)
        noted = open_model(str(tmp_path / f"own-{task}")).extra
        assert noted["max_length"] == 40  # all that it has; 384 of more
    with pytest.raises(InputError, match="--task is for models of spans without a noted task"):
        import_model(str(tmp_path / "own-squad1"), tmp_path / "again", task="squad2")
    assert import_model(str(tmp_path / "own-squad2"), tmp_path / "again")["task"] == "squad2"


def test_a_model_of_choices_answers_after_its_import(tmp_path: Path, pieces: list[str]) -> None:
    theirs = publish(tmp_path / "m", pieces, "BertForMultipleChoice")
    assert import_model(str(tmp_path / "m"), tmp_path / "own")["task"] == "swag"
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    context, choices = "The miller waits.", ["The ferry leaves.", "She eats.", "Nobody comes to the old bridge."]
    rows = words([context] * 3, choices, padding=True, return_tensors="pt")
    with torch.inference_mode():
        wanted = theirs(**{name: values[None] for name, values in rows.items()}).logits[0].softmax(-1).tolist()
    source = tmp_path / "asked.jsonl"
    source.write_text(json.dumps({"context": context, "choices": choices}) + "\n", "utf-8")
    predict_file(str(tmp_path / "own"), str(source), str(tmp_path / "answers.jsonl"))
    answer = json.loads((tmp_path / "answers.jsonl").read_text("utf-8"))
    assert answer["probabilities"] == pytest.approx(wanted, abs=1e-5)
    assert answer["label"] == int(np.argmax(wanted))
    with pytest.raises(InputError, match="--task is for models of spans"):
        import_model(str(tmp_path / "m"), tmp_path / "again", task="squad1")


def test_a_regression_is_one(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces, "BertForSequenceClassification", num_labels=1)
    import_model(str(tmp_path / "m"), tmp_path / "own")
    assert open_model(str(tmp_path / "own")).extra["task"]["kind"] == "regression"


def test_a_problem_that_the_outputs_cannot_answer_is_refused(tmp_path: Path, pieces: list[str]) -> None:
    for outputs, problem, words in (
        (
            3,
            "regression",
            "problem_type single_label_classification, multi_label_classification with 3 outputs, got 'regr",
        ),
        (1, "single_label_classification", "expected problem_type regression with 1 outputs, got 'single_label_class"),
        (3, "guess", "got 'guess'"),
    ):
        folder = tmp_path / f"{problem}{outputs}"
        publish(folder, pieces, "BertForSequenceClassification", num_labels=outputs)
        change_config(folder, problem_type=problem)
        with pytest.raises(InputError, match=words):
            import_model(str(folder), tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_a_published_masked_lm_fills_without_a_pooler(tmp_path: Path, pieces: list[str]) -> None:
    theirs = publish(tmp_path / "m", pieces, "BertForMaskedLM")
    import_model(str(tmp_path / "m"), tmp_path / "own")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    row = words("The [MASK] waits.", return_tensors="pt")
    with torch.inference_mode():
        shares = theirs(**row).logits[0, row["input_ids"][0].tolist().index(words.mask_token_id)].softmax(-1)
    model = load(tmp_path / "own", precision="fp32")
    (mask_result,) = model("The [MASK] waits.").masks
    assert [piece.piece for piece in mask_result] == words.convert_ids_to_tokens(shares.topk(5).indices.tolist())
    assert [piece.probability for piece in mask_result] == pytest.approx(shares.topk(5).values.tolist(), abs=1e-6)
    assert main(["fill", "The [MASK] waits.", "--model", str(tmp_path / "own")]) == 0
    assert main(["fill", "The \ud800 [MASK]", "--model", str(tmp_path / "own")]) == 2


def test_a_published_model_of_next_sentences_predicts_them_without_filling(tmp_path: Path, pieces: list[str]) -> None:
    theirs = publish(tmp_path / "m", pieces, "BertForNextSentencePrediction")
    import_model(str(tmp_path / "m"), tmp_path / "own")
    pair = ("The miller waits.", "The ferry leaves.")
    row = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")(*pair, return_tensors="pt")
    with torch.inference_mode():
        wanted = float(theirs(**row).logits.softmax(-1)[0, 0])
    model = load(tmp_path / "own", precision="fp32")
    assert model.next_sentence(*pair) == pytest.approx(wanted, abs=1e-6)
    assert main(["next-sentence", *pair, "--model", str(tmp_path / "own")]) == 0
    assert main(["next-sentence", "a", "\ud800", "--model", str(tmp_path / "own")]) == 2
    assert main(["fill", "The [MASK] waits.", "--model", str(tmp_path / "own")]) == 2


def test_casing_is_taken_from_the_files_or_asked_for(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces)
    with pytest.raises(InputError, match="its tokenizer's files say cased; leave --casing out"):
        import_model(str(tmp_path / "m"), tmp_path / "own", cased=False)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "m" / name).unlink()
    (tmp_path / "m" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    with pytest.raises(InputError, match="give --casing cased or --casing uncased"):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    assert import_model(str(tmp_path / "m"), tmp_path / "own", cased=False)["cased"] is False


class Bomb:
    """A pickle that would create a file where it is opened."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def change_config(folder: Path, **config: Any) -> None:
    update_json(folder / "config.json", **config)


def truncate_file(path: Path, share: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def remove_weight(folder: Path, name: str) -> None:
    weights = weights_in(folder)
    del weights[name]
    save_file(weights, folder / "model.safetensors")


def with_tensor(folder: Path, name: str, tensor: torch.Tensor) -> None:
    save_file({**weights_in(folder), name: tensor}, folder / "model.safetensors")


def without_shard(folder: Path) -> None:
    as_shards(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()


def with_an_outside_shard(folder: Path) -> None:
    as_shards(folder)
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model-00002-of-00003", "../model-00002-of-00003"))


def with_swapped_shards(folder: Path) -> None:
    as_shards(folder)
    one, two = folder / "model-00001-of-00003.safetensors", folder / "model-00002-of-00003.safetensors"
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)


def with_code(folder: Path) -> None:
    torch.save({**weights_in(folder), "bomb": Bomb(folder / "exploded")}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cut_pickle(folder: Path) -> None:
    as_pickle(folder)
    truncate_file(folder / "pytorch_model.bin")


def whole_object(folder: Path) -> None:
    torch.save({"state_dict": weights_in(folder), "epoch": 3}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def with_pointer(folder: Path) -> None:
    as_pickle(folder)
    (folder / "pytorch_model.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


def with_nonsense(folder: Path) -> None:
    as_pickle(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02.")


WORDS = "bert.embeddings.word_embeddings.weight"
BAD = {
    "no weights": (lambda m: (m / "model.safetensors").unlink(), "holds no weights: expected model.safetensors"),
    "truncated safetensors": (lambda m: truncate_file(m / "model.safetensors"), "broken or truncated safetensors file"),
    "truncated pickle": (cut_pickle, "pytorch_model.bin: broken or truncated"),
    "code in a pickle": (with_code, "holds more than tensors, so it is not opened"),
    "a pickle of more than weights": (whole_object, "expected a state dict of named tensors"),
    "a missing shard": (
        without_shard,
        "names the file model-00002-of-00003.safetensors, which is not in the same folder",
    ),
    "a shard elsewhere": (with_an_outside_shard, "which is not in the same folder"),
    "swapped shards": (with_swapped_shards, "which model.safetensors.index.json says it holds"),
    "a missing tensor": (lambda m: remove_weight(m, "bert.pooler.dense.bias"), "missing: bert.pooler.dense.bias"),
    "a surplus tensor": (
        lambda m: with_tensor(m, "bert.adapter.weight", torch.ones(1)),
        "do not belong to a BERT: bert.adapter",
    ),
    "a surplus layer": (
        lambda m: with_tensor(m, "bert.encoder.layer.2.output.dense.bias", torch.ones(32)),
        "unknown: bert.encoder.layer.2.output.dense.bias",
    ),
    "another shape": (
        lambda m: with_tensor(m, "cls.predictions.bias", torch.ones(9)),
        r"cls.predictions.bias is \(9,\), not",
    ),
    "fewer layers said": (lambda m: change_config(m, num_hidden_layers=1), "unknown: bert.encoder.layer.1"),
    "another architecture": (
        lambda m: change_config(m, model_type="roberta"),
        "46 of 46 tensors do not belong to a RoBERTa: bert.embeddings",
    ),
    "an untied decoder": (
        lambda m: with_tensor(m, "cls.predictions.decoder.weight", weights_in(m)[WORDS] + 1),
        "only models that tie the two",
    ),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), "tokenizer.json: there is no such file"),
    "whole numbers as weights": (
        lambda m: with_tensor(m, "cls.predictions.bias", torch.ones(400, dtype=torch.int32)),
        "cls.predictions.bias is torch.int32",
    ),
    "no number": (
        lambda m: with_tensor(m, "bert.pooler.dense.bias", torch.full((32,), torch.nan)),
        "infinite values or values that are no numbers in bert.pooler.dense.bias",
    ),
    "one name twice": (
        lambda m: with_tensor(m, "pooler.dense.bias", torch.ones(32)),
        "is stored twice, under two names and with different values",
    ),
    "no model type": (lambda m: change_config(m, model_type=None), "model_type is None"),
    "an odd activation": (lambda m: change_config(m, hidden_act=[]), r"hidden_act is \[\]; allowed are gelu"),
    "an odd note": (lambda m: change_config(m, bertwright=3), "bertwright is 3; it must be an object"),
    "an odd class": (
        lambda m: change_config(m, architectures="BertModel"),
        "class name in architectures, got 'BertModel'",
    ),
    "an odd size": (lambda m: change_config(m, hidden_size="wide"), "hidden_size is 'wide'"),
    "an enormous size": (lambda m: change_config(m, num_hidden_layers=10**30), "num_hidden_layers is 1000000"),
    "a negative padding": (lambda m: change_config(m, pad_token_id=-1), "pad_token_id is -1"),
    "half a character": (lambda m: change_config(m, id2label={"0": "\ud800"}), "half of a surrogate pair"),
    "a deep hole": (lambda m: (m / "config.json").write_text("[" * 100_000), "nested too deeply"),
    "a pointer": (with_pointer, "a Git LFS pointer, not the weights"),
    "no pickle": (with_nonsense, "pytorch_model.bin: "),
    "no description": (lambda m: (m / "tokenizer.json").write_text('{"model": null}'), "not the description of a BERT"),
    "another unknown piece": (
        lambda m: (m / "tokenizer_config.json").write_text('{"unk_token": "<unk>"}'),
        "unk_token is '<unk>'; a BERT tokenizer has '\\[UNK\\]'",
    ),
    "an added token": (
        lambda m: (m / "added_tokens.json").write_text('{"<new>": 400}'),
        "the added token '<new>' is not in the vocabulary with the id 400",
    ),
    "no JSON": (lambda m: (m / "config.json").write_text("{"), "config.json:1: not valid JSON"),
    "a list": (lambda m: (m / "config.json").write_text("[]"), "expected a JSON object, got a list"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_whole_is_refused_and_nothing_written(tmp_path: Path, pieces: list[str], name: str) -> None:
    spoil, words = BAD[name]
    publish(tmp_path / "m", pieces)
    spoil(tmp_path / "m")
    with pytest.raises(InputError, match=words):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    assert not (tmp_path / "own").exists()
    assert not (tmp_path / "m" / "exploded").exists()


def test_a_classifier_of_unknown_kind_is_refused(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces, "BertForSequenceClassification", num_labels=3)
    change_config(tmp_path / "m", architectures=None)
    with pytest.raises(InputError, match="fit BertForSequenceClassification, BertForMultipleChoice, BertForTok"):
        import_model(str(tmp_path / "m"), tmp_path / "own")


def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces)
    (tmp_path / "m" / "tokenizer.json").unlink()
    (tmp_path / "m" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    for name, value in (
        ("tokenizer_class", "BertJapaneseTokenizer"),
        ("do_basic_tokenize", False),
        ("never_split", ["<a>"]),
        ("strip_accents", "x"),
    ):
        (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, name: value}))
        with pytest.raises(InputError, match=f"{name} is "):
            import_model(str(tmp_path / "m"), tmp_path / "own")
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    import_model(str(tmp_path / "m"), tmp_path / "own")


def test_labels_that_are_alike_are_refused(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces, "BertForSequenceClassification", num_labels=3)
    change_config(tmp_path / "m", id2label={"0": "a", "1": "a", "2": "b"})
    with pytest.raises(InputError, match="the outputs 0 and 1 have the same label 'a'; name each differently"):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    change_config(tmp_path / "m", id2label={"0": "a", "1": " ", "2": "b"})
    with pytest.raises(InputError, match="the label of output 1 is empty: ' '; name each output"):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    assert import_model(str(tmp_path / "m"), tmp_path / "own", labels=["x", "y", "z"])["labels"] == ["x", "y", "z"]


def test_a_folder_of_ours_keeps_the_labels_of_its_task(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces, "BertForSequenceClassification", num_labels=2)
    change_config(tmp_path / "m", id2label={"0": "bad", "1": "good"})
    import_model(str(tmp_path / "m"), tmp_path / "ours")
    with pytest.raises(InputError, match=r"--label no, yes: .*ours was fine-tuned by bertwright for the labels bad"):
        import_model(str(tmp_path / "ours"), tmp_path / "other", labels=["no", "yes"])
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    del config["id2label"], config["label2id"]
    (tmp_path / "ours" / "config.json").write_text(json.dumps(config))
    assert import_model(str(tmp_path / "ours"), tmp_path / "again")["labels"] == ["bad", "good"]
    assert load(tmp_path / "again", precision="fp32")("a text").label in ("bad", "good")
    for note in ("x", {"labels": 3}):
        config["bertwright"]["task"] = note
        (tmp_path / "ours" / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=r"ours: config\.json notes a task that is not known here"):
            import_model(str(tmp_path / "ours"), tmp_path / "none")
    publish(tmp_path / "spans", pieces, "BertForQuestionAnswering")  # a model without labels
    change_config(tmp_path / "spans", bertwright={"task": "squad1"})
    with pytest.raises(InputError, match=r"spans: config\.json notes a task that is not known here: 'squad1'"):
        import_model(str(tmp_path / "spans"), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_other_programs_read_the_models_positions(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces)
    import_model(str(tmp_path / "m"), tmp_path / "own")
    assert json.loads((tmp_path / "own" / "tokenizer_config.json").read_text())["model_max_length"] == 40


@pytest.mark.parametrize(
    ("labels", "expected", "task"),
    [
        (["O", "U-x", "L-x"], ["O", "S-x", "E-x"], "ner"),
        (["x-B", "O", "x-I"], ["B-x", "O", "I-x"], "ner"),
        (["S-x", "U-x", "O"], ["S-x", "U-x", "O"], "pos"),
        (["NOUN", "VERB", "O"], ["NOUN", "VERB", "O"], "pos"),
    ],
)
def test_labels_of_a_tagger_in_another_scheme_are_entities(
    tmp_path: Path, pieces: list[str], labels: list[str], expected: list[str], task: str
) -> None:
    publish(tmp_path / "m", pieces, "BertForTokenClassification", num_labels=3)
    assert import_model(str(tmp_path / "m"), tmp_path / "own", labels=labels)["labels"] == expected
    saved = open_model(str(tmp_path / "own"))
    assert saved.extra["task"]["name"] == task
    assert sorted(saved.extra["task"]["labels"]) == sorted(saved.labels) == sorted(expected)


def test_labels_must_fit(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces, "BertForTokenClassification", num_labels=3)
    for labels in (["a", "b"], ["a", "b", "b"]):
        with pytest.raises(InputError, match="for 3 outputs; give each output a different name"):
            import_model(str(tmp_path / "m"), tmp_path / "own", labels=labels)
    change_config(tmp_path / "m", id2label={"0": "a", "2": "c"})
    with pytest.raises(InputError, match=r"id2label has 2 names, and none of them for output 1: its keys are 0, 2;"):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    change_config(tmp_path / "m", id2label={"0": "a", "1": "c"})
    with pytest.raises(InputError, match="id2label names 2 labels, but there are 3 outputs"):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    publish(tmp_path / "p", pieces)
    with pytest.raises(InputError, match="is a BertForPreTraining, which has no labels to name"):
        import_model(str(tmp_path / "p"), tmp_path / "own", labels=["a"])


def test_two_texts_need_two_segments(tmp_path: Path, pieces: list[str]) -> None:
    kinds = {"BertForQuestionAnswering": (), "BertForMultipleChoice": (), "BertForSequenceClassification": ("a", "b")}
    for kind, text in kinds.items():
        publish(tmp_path / kind, pieces, kind, type_vocab_size=1)
        with pytest.raises(InputError, match=r"reads two texts, and the model has one segment"):
            import_model(str(tmp_path / kind), tmp_path / "own", text=text)
    import_model(str(tmp_path / kind), tmp_path / "own")
    assert len(load(tmp_path / "own")(["a text"])) == 1
    (tmp_path / "train.tsv").write_text("a\tb\tlabel\n" + "x\ty\t0\nv\tw\t1\nu\tw\t1\n" * 9, "utf-8")
    task = CLASSIFY.model_copy(update={"text": ("a", "b")})
    settings = FinetuneSettings(epochs=3, batch_size=32, max_length=32)
    with pytest.raises(InputError, match="classify: reads two texts"):
        finetune(settings, task, model=str(tmp_path / "own"), data=tmp_path, out=tmp_path / "run")
    publish(tmp_path / "next", pieces, "BertForNextSentencePrediction", type_vocab_size=1)
    import_model(str(tmp_path / "next"), tmp_path / "own-next")
    assert main(["next-sentence", "a", "b", "--model", str(tmp_path / "own-next")]) == 2


def test_a_model_made_elsewhere_must_be_imported_first(
    tmp_path: Path, pieces: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    publish(tmp_path / "m", pieces, "BertForSequenceClassification")
    (tmp_path / "rows.tsv").write_text("text\na\n", "utf-8")
    wanted = f"was fine-tuned by another program; import it first: bertwright import {tmp_path / 'm'} --out MODEL"
    with pytest.raises(InputError, match=re.escape(wanted)):
        predict_file(str(tmp_path / "m"), str(tmp_path / "rows.tsv"), str(tmp_path / "out.tsv"))
    with pytest.warns(UserWarning, match="as it is, it gives vectors"):
        assert load(tmp_path / "m").labels == ()


def test_the_settings_of_old_are_told_to_be_renamed(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces)
    (tmp_path / "m" / "config.json").rename(tmp_path / "m" / "bert_config.json")
    with pytest.raises(
        InputError, match=r"its settings have the old name bert_config\.json; rename that file to config\.json"
    ):
        import_model(str(tmp_path / "m"), tmp_path / "own", cased=True)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, pieces: list[str]) -> None:
    with pytest.raises(InputError, match="no such folder; for a model of the Hugging Face Hub write hub:NAME"):
        import_model("own/absent", tmp_path / "own")
    with pytest.raises(InputError, match="no checkpoint of a known format"):
        import_model(str(tmp_path), tmp_path / "own")
    with pytest.raises(InputError, match="the checkpoint has no name"):
        import_model("", tmp_path / "own")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--out .*file/own: expected a folder, but .*file is a file"):
        import_model(str(tmp_path), tmp_path / "file" / "own")
    publish(tmp_path / "m", pieces)
    (tmp_path / "own").mkdir()
    with pytest.raises(InputError, match="exists already"):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    shutil.rmtree(tmp_path / "own")
    import_model(str(tmp_path / "m"), tmp_path / "own")


def test_a_model_that_is_written_during_an_import_stays(
    tmp_path: Path, pieces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "m", pieces)
    import_model(str(tmp_path / "m"), tmp_path / "first")

    def late(foreign: Any) -> None:
        shutil.copytree(tmp_path / "first", tmp_path / "own")
        (tmp_path / "own" / "README.md").write_text("mine")

    monkeypatch.setattr(checkpoint, "check_complete", late)
    with pytest.raises(InputError, match="own: exists already and is not an empty folder"):
        import_model(str(tmp_path / "m"), tmp_path / "own")
    assert (tmp_path / "own" / "README.md").read_text() == "mine"


def test_a_gpt_is_recognised(tmp_path: Path) -> None:
    release(tmp_path / "gpt")
    report = import_model(str(tmp_path / "gpt"), tmp_path / "own")
    assert (report["architecture"], report["model"]) == ("OpenAIGPTLMHeadModel", str(tmp_path / "own"))
    again = import_model(str(tmp_path / "own"), tmp_path / "again")
    assert again["found"] == "a GPT-1 in Hugging Face's layout, model.safetensors"
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    with pytest.raises(InputError, match="is a GPT-1: its text is lower-cased"):
        import_model(str(tmp_path / "gpt"), tmp_path / "third", cased=True)


REVISION = "2e" * 20


class ModelHub(BaseHTTPRequestHandler):
    """The part of the Hub that a download needs; `requested` holds the paths."""

    folder: ClassVar[Path]
    requested: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.requested.append(path)
        names = [file.name for file in self.folder.iterdir()]
        if path in ("/api/models/own/bert/revision/main", f"/api/models/own/bert/revision/{REVISION}"):
            siblings = [{"rfilename": name} for name in names]
            self.answer(json.dumps({"id": "own/bert", "sha": REVISION, "siblings": siblings}).encode())
        elif path.startswith("/api/models/own/bert/tree/"):
            sizes = {name: (self.folder / name).stat().st_size for name in names}
            listed = [
                {"type": "file", "path": name, "size": sizes[name], "oid": f"{sizes[name]:040x}"} for name in names
            ]
            self.answer(json.dumps(listed).encode())
        elif path.startswith("/own/bert/resolve/") and path.rpartition("/")[2] in names:
            self.answer((self.folder / path.rpartition("/")[2]).read_bytes(), etag=True)
        else:
            self.answer(None)

    do_HEAD = do_GET

    def answer(self, body: bytes | None, *, etag: bool = False) -> None:
        self.send_response(200 if body is not None else 404)
        if body is None:
            self.send_header("X-Error-Code", "RepoNotFound")
        if etag:
            self.send_header("ETag", f'"{hashlib.sha1(body or b"").hexdigest()}"')
            self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body or b"")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.slow
def test_a_model_of_the_hub_is_downloaded_and_imported(tmp_path: Path, pieces: list[str]) -> None:
    publish(tmp_path / "m", pieces)
    import_model(str(tmp_path / "m"), tmp_path / "plain")
    (tmp_path / "m" / "tf_model.h5").write_bytes(b"weights of another framework")
    ModelHub.folder = tmp_path / "m"
    with hub_server(ModelHub, tmp_path / "home") as environment:

        def run(source: str) -> subprocess.CompletedProcess[str]:
            return run_bertwright("import", source, "--out", tmp_path / "own", "--json", env=os.environ | environment)

        absent = run("hub:own/absent")
        assert absent.returncode == 2, absent.stderr
        assert "hub:own/absent: the Hub has no such model" in absent.stderr
        completed = run("hub:own/bert")
        assert completed.returncode == 0, (completed.stderr, ModelHub.requested)
        assert not any(name.endswith("tf_model.h5") for name in ModelHub.requested)
        shutil.rmtree(tmp_path / "own")
        assert run(f"hub:own/bert@{REVISION}").returncode == 0
    assert json.loads(completed.stdout)["architecture"] == "BertForPreTraining"
    for name in ("model.safetensors", "vocab.txt", "config.json"):
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_weights_of_dense_layers_are_downloaded() -> None:
    files = ["pytorch_model.bin", "2_Dense/pytorch_model.bin", "2_Dense/model.safetensors", "2_Dense/config.json"]
    others = ["tf_model.h5", "rust_model.ot", "flax_model.msgpack"]
    assert list(filter_repo_objects(files + others, allow_patterns=importing._DOWNLOADED)) == files
