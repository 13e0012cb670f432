"""A new BiLSTM between a model and a task's head, and the layers and rates of backbones of several parts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bertwright.errors import InputError, Stopped
from bertwright.finetuning.grid import parse_grid, search_grid
from bertwright.finetuning.run import TuneRequest, finetune
from bertwright.finetuning.schedule import scheduled
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import (
    add_bilstm,
    check_settings,
    initial_model,
    initial_weights,
    open_initial_model,
    train_plan,
)
from bertwright.model.backbones import build_backbone
from bertwright.model.encoder import init_weights
from bertwright.model.families.bilstm import TopConfig
from bertwright.model.families.elmo import PairConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.system import System, system_config
from bertwright.serving.predictor import load
from bertwright.sklearn import BertClassifier, BertVectorizer
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.kinds import kind_of
from bertwright.text.wordpiece import Tokenizer
from bertwright.training.signals import Signals
from tests.support.folders import weights_in
from tests.support.task_examples import example_data
from tests.support.texts import PLACES

SST2 = get_task("sst2")
FAST = FinetuneSettings(epochs=1, batch_size=4, learning_rate=1e-3, max_length=40, threads=1, precision="fp32")
STILL = FAST.model_copy(update={"learning_rate": 1e-12, "bilstm": 16})
"""So small a rate that a model ends as it began."""


@pytest.fixture(scope="module")
def pretrained_models(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> dict[str, str]:
    """A BERT, which has a pooler, a GPT-1 and a pair of LSTMs."""
    folder = tmp_path_factory.mktemp("models")
    vocab_size = Tokenizer.load(places_tokenizer).vocab_size

    def shape(system: System) -> Any:
        return system_config(system, "tiny", vocab_size, max_positions=64)

    for name, config in (
        ("bert", shape("bert")),
        ("gpt", shape("gpt")),
        ("pair", PairConfig(left=shape("lstm-left"), right=shape("lstm-right"))),
    ):
        model = nn.ModuleDict({"encoder": build_backbone(config)})
        if name == "bert":
            model["pooler"] = nn.ModuleDict({"dense": nn.Linear(128, 128)})
        init_weights(model, 0.05, torch.Generator().manual_seed(4))
        save_model(folder / name, model, config=config, tokenizer=places_tokenizer, architecture="BertModel")
    return {name: str(folder / name) for name in ("bert", "gpt", "pair")}


@pytest.fixture
def sst2_data(tmp_path: Path) -> Path:
    return example_data(SST2, tmp_path).data


def test_it_begins_anew_with_every_seed_and_the_model_below_as_it_was(
    pretrained_models: dict[str, str], sst2_data: Path, tmp_path: Path
) -> None:
    heads = []
    for seed in (0, 1):
        settings = STILL.model_copy(update={"first_seed": seed})
        finetune(settings, SST2, model=pretrained_models["bert"], data=sst2_data, out=tmp_path / f"run-{seed}")
        heads.append(weights_in(tmp_path / f"run-{seed}" / "model"))
    start = open_model(pretrained_models["bert"]).weights or {}
    for name, tensor in start.items():
        if name.startswith("encoder."):
            inside = f"encoder.inner.{name.removeprefix('encoder.')}"
            torch.testing.assert_close(heads[0][inside], tensor, rtol=0, atol=1e-9)
    assert not any(name.startswith("pooler.") for name in heads[0])  # what is on top is read as it is
    for name in ("encoder.lstm.weight_ih_l0", "encoder.lstm.weight_hh_l0_reverse", "classifier.linear.weight"):
        assert heads[0][name].shape == heads[1][name].shape
        assert float((heads[0][name] - heads[1][name]).abs().max()) > 1e-2
    saved = open_model(str(tmp_path / "run-0"))
    assert saved.config == TopConfig(inner=open_model(pretrained_models["bert"]).config, width=16)  # type: ignore[arg-type]
    answering = load(tmp_path / "run-0", precision="fp32")
    one, other = answering.vectors(["a film", "a play"])
    cosine = float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
    assert answering.search("a film", texts=["a play"])[0].score == pytest.approx(cosine, abs=1e-5)


def test_the_next_task_takes_it_over(pretrained_models: dict[str, str], sst2_data: Path, tmp_path: Path) -> None:
    """A folder with a BiLSTM on top is a model like any other, and gets no second one."""
    learned = FAST.model_copy(update={"bilstm": 16})
    finetune(learned, SST2, model=pretrained_models["bert"], data=sst2_data, out=tmp_path / "first")
    still = STILL.model_copy(update={"bilstm": None})
    finetune(still, SST2, model=str(tmp_path / "first"), data=sst2_data, out=tmp_path / "second")
    before, after = weights_in(tmp_path / "first" / "model"), weights_in(tmp_path / "second" / "model")
    for name, tensor in before.items():
        if name.startswith("encoder."):
            torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-9)
    with pytest.raises(InputError, match="first already has a BiLSTM on top; name the model below it"):
        finetune(learned, SST2, model=str(tmp_path / "first"), data=sst2_data, out=tmp_path / "third")
    features = FAST.model_copy(update={"features": "last"})
    with pytest.raises(InputError, match=r"--features: .*first already has a BiLSTM on top"):
        finetune(features, SST2, model=str(tmp_path / "first"), data=sst2_data, out=tmp_path / "third")
    with pytest.raises(InputError, match="frozen features need a backbone without it"):
        load(tmp_path / "first").vectors("a text", pool="mean")


@pytest.mark.parametrize("option", [{"new_layers": 1}, {"frozen_layers": 1}, {"layer_decay": 0.9}])
@pytest.mark.parametrize("system", ["albert", "albert-attention"])
def test_layers_that_share_weights_cannot_be_chosen_alone(option: dict[str, Any], system: System) -> None:
    """All layers of an ALBERT would be frozen, or learn with the smallest rate."""
    shared = system_config(system, "4x64", 100)
    for config in (shared, TopConfig(inner=shared, width=16)):
        with pytest.raises(InputError, match="own, and those of the-model share theirs; leave the options out"):
            check_settings(FAST.model_copy(update=option), config, "the-model")
        check_settings(FAST, config, "the-model")


def test_metrics_are_printed_after_each_epoch_of_the_first_seed(
    pretrained_models: dict[str, str], sst2_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = FAST.model_copy(update={"epochs": 3, "seeds": 2})
    finetune(settings, SST2, model=pretrained_models["bert"], data=sst2_data, out=tmp_path / "run")
    lines = (tmp_path / "run" / "seed-0" / "metrics.jsonl").read_text().splitlines()
    accuracies = [entry["held_out"]["accuracy"] for entry in map(json.loads, lines) if "held_out" in entry]
    printed = [text for text in capsys.readouterr().err.splitlines() if text.startswith("epoch ")]
    assert len(accuracies) == len(printed) == 3
    for number, (text, accuracy) in enumerate(zip(printed, accuracies, strict=True), 1):
        assert text.startswith(f"epoch {number}/3 · accuracy {accuracy:.4f}")
        assert "collapsed" not in text


def test_rates_layers_and_what_stays(pretrained_models: dict[str, str], sst2_data: Path) -> None:
    """The BiLSTM learns at the rate of the head; layers are counted in each of two backbones, wherever they stand."""
    options = {"bilstm": 16, "head_learning_rate": 1e-2, "layer_decay": 0.5, "new_layers": 1, "frozen_layers": 1}
    settings = FAST.model_copy(update=options)
    saved, words = open_initial_model(pretrained_models["pair"], None)
    saved = add_bilstm(settings, saved)
    work = kind_of(SST2).prepare(SST2, sst2_data, words, saved.config, settings.max_length)
    scale = train_plan(scheduled(settings, saved.config, 8), work, saved.config, 0).scale
    named = {
        "classifier.linear.weight": 10.0,
        "encoder.lstm.bias_hh_l0": 10.0,
        "encoder.inner.left.layers.1.lstm.weight_hr_l0": 0.5,
        "encoder.inner.right.layers.0.lstm.weight_ih_l0": 0.25,
        "encoder.inner.right.embeddings.word.weight": 0.125,
    }
    assert {name: pytest.approx(scale(name)) for name in named} == named
    model = initial_model(settings, work, initial_weights(settings, work, saved), 0)
    learns = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert set(named) <= set(learns)
    still = {name for name, does in learns.items() if not does}
    assert still == {name for name in learns if ".embeddings." in name or ".layers.0." in name}
    start, now = saved.weights or {}, model.state_dict()
    for name, tensor in now.items():
        kept = name in start and torch.equal(start[name], tensor)
        assert kept == (name in still), name


def test_a_search_over_widths_that_goes_on(pretrained_models: dict[str, str], sst2_data: Path, tmp_path: Path) -> None:
    arguments: Any = {"model": pretrained_models["pair"], "data": sst2_data, "out": tmp_path / "grid"}
    grid = parse_grid("bilstm=8,16", FAST)
    first = search_grid(FAST, SST2, grid, TuneRequest(**arguments))
    assert {open_model(row["model"]).config.hidden for row in first["rows"]} == {8, 16}
    again = search_grid(FAST, SST2, grid, TuneRequest(resume=True, **arguments))
    assert again["rows"] == first["rows"]
    with pytest.raises(InputError, match="--grid bilstm=7: invalid value '7' of bilstm"):
        parse_grid("bilstm=7", FAST)


@pytest.mark.parametrize(("model", "bilstm", "task"), [("gpt", None, "mrpc"), ("pair", 16, "sst2")])
def test_a_run_that_was_stopped_and_one_that_recomputes_end_in_the_same_bytes(
    model: str, bilstm: int | None, task: str, pretrained_models: dict[str, str], tmp_path: Path
) -> None:
    spec = get_task(task)
    arguments: Any = {"model": pretrained_models[model], "data": example_data(spec, tmp_path).data}
    settings = FAST.model_copy(update={"epochs": 2, "bilstm": bilstm})
    finetune(settings, spec, out=tmp_path / "whole", **arguments)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Signals, "received", property(lambda self: True, lambda self, value: None), raising=False)
        with pytest.raises(Stopped):
            finetune(settings, spec, out=tmp_path / "torn", **arguments)
    assert list((tmp_path / "torn" / "seed-0" / "checkpoints").iterdir())
    finetune(settings, spec, out=tmp_path / "torn", resume=True, **arguments)
    finetune(settings.model_copy(update={"activation_checkpointing": True}), spec, out=tmp_path / "again", **arguments)
    whole = weights_in(tmp_path / "whole" / "model")
    for other in (weights_in(tmp_path / name / "model") for name in ("torn", "again")):
        assert other.keys() == whole.keys()
        assert all(torch.equal(other[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("model", ["gpt", "pair"])
def test_estimators_take_other_backbones(model: str, pretrained_models: dict[str, str], tmp_path: Path) -> None:
    texts, labels = [f"{'near' if row % 2 else 'far'} the {noun}" for row, noun in enumerate(PLACES)], [0, 1] * 4
    fitted = BertClassifier(
        pretrained_models[model], epochs=1, batch_size=32, max_length=16, precision="fp32", threads=1
    )
    fitted.fit(texts, labels)
    probabilities = fitted.predict_proba(texts)
    fitted.save(tmp_path / "saved")
    again = BertClassifier.load(tmp_path / "saved").predict_proba(texts)
    np.testing.assert_allclose(again, probabilities, atol=1e-6)
    answers = load(tmp_path / "saved", precision="fp32")(texts)
    np.testing.assert_allclose(
        [[one.probabilities[label] for label in "01"] for one in answers], probabilities, atol=1e-6
    )
    assert BertVectorizer(pretrained_models[model]).fit_transform(texts).shape[0] == len(texts)
