"""The next-token loss beside a task's: what it is, whose head it uses, when it is there, and who is refused it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from bertwright.errors import InputError
from bertwright.finetuning.auxiliary_lm import COUNT, TERM, BackboneCall, language_loss, recorded, with_language
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.setup import initial_model
from bertwright.model.backbones import build_backbone
from bertwright.model.config import with_dropout
from bertwright.model.encoder import init_weights
from bertwright.model.folder import open_model, save_model
from bertwright.model.heads import TiedOutput
from bertwright.model.system import System, system_config
from bertwright.objectives.language_model import LanguageModel
from bertwright.serving.predictor import load
from bertwright.tasks.binding import BoundTask, open_tokenizer
from bertwright.tasks.kinds import kind_of
from bertwright.tasks.spec import get_spec
from bertwright.text.wordpiece import Tokenizer
from tests.support.folders import read_jsonl
from tests.support.task_examples import example_data

FAST = FinetuneSettings(epochs=1, batch_size=4, learning_rate=1e-3, max_length=40, threads=1, precision="fp32")
LEFT: tuple[System, ...] = ("gpt", "bert-left", "lstm-left")


@pytest.fixture(scope="module")
def language_models(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> dict[str, str]:
    """A language model's folder for each system."""
    folder = tmp_path_factory.mktemp("models")
    vocab_size = Tokenizer.load(places_tokenizer).vocab_size
    for system in (*LEFT, "bert-right"):
        shape = system_config(system, "tiny", vocab_size, max_positions=64)
        config = with_dropout(shape, 0.0)
        model = LanguageModel(config)
        init_weights(model, 0.05, torch.Generator().manual_seed(4))
        for name, parameter in model.named_parameters():
            if name.endswith("bias") and "encoder" not in name:
                nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(5))
        kind = model.architecture
        save_model(folder / system, model, config=config, tokenizer=places_tokenizer, architecture=kind)
    return {system: str(folder / system) for system in (*LEFT, "bert-right")}


def bound(model: str, task: str, folder: Path) -> tuple[BoundTask, nn.Module]:
    """A task with the next-token loss at weight 2, and the model before its first step."""
    saved, spec = open_model(model), get_spec(task)
    data = example_data(spec, folder).data
    work = kind_of(spec).prepare(spec, data, open_tokenizer(saved), saved.config, FAST.max_length)
    work = with_language(work, saved, weight=2.0, num_pieces=saved.config.vocab_size)
    return work, initial_model(FAST.model_copy(update={"lm_weight": 2.0}), work, saved, 3)


def plain_loss(model: Any, system: System, ids: Tensor, mask: Tensor) -> Tensor:
    """Row by row, the cross entropy between the logits of each position and the next token."""
    total = torch.zeros(())
    for row, real in zip(ids, mask, strict=True):
        alone = row[real][None].long()
        last = model.encoder(alone, torch.zeros_like(alone), torch.ones_like(alone, dtype=torch.bool)).last[0]
        words = model.encoder.embeddings.word.weight
        if system == "gpt":
            logits = F.linear(last, words)
        elif system == "bert-left":
            logits = model.masked_lm(last, words)
        else:
            logits = last @ words.T + model.lm.bias
        total = total + F.cross_entropy(logits[:-1], alone[0, 1:], reduction="sum")
    return total


@pytest.mark.parametrize("system", LEFT)
def test_the_loss_is_that_of_the_shifted_logits_by_the_models_own_head(
    system: System, language_models: dict[str, str], tmp_path: Path
) -> None:
    work, model = bound(language_models[system], "sst2", tmp_path)
    stored = open_model(language_models[system]).weights or {}
    for name in ("masked_lm.bias", "lm.bias"):
        assert (name in model.state_dict()) == (name in stored)
        if name in stored:
            assert torch.equal(model.state_dict()[name], stored[name])
    trainable, batch = work.trainable(model), work.batch(np.arange(len(work.lengths)))
    if system == "bert-left":  # one segment, as the plain computation has it
        assert not batch.segments.any()
    total, counted = trainable.step(batch)[TERM]
    torch.testing.assert_close(total, 2.0 * plain_loss(model, system, batch.ids, batch.mask), rtol=1e-4, atol=1e-4)
    assert trainable.counts(batch)[counted] == work.lengths.sum() - len(work.lengths)
    grown = trainable.flops(batch)
    assert grown > kind_of(work.task).prepare(
        work.task,
        tmp_path / "data",
        open_tokenizer(open_model(language_models[system])),
        open_model(language_models[system]).config,
        40,
    ).trainable(model).flops(batch)


@pytest.mark.parametrize("task", ["mrpc", "swag", "squad1", "ner"])
@pytest.mark.parametrize("system", LEFT)
def test_every_kind_of_task_has_its_own_loss_beside_it(
    system: System, task: str, language_models: dict[str, str], tmp_path: Path
) -> None:
    """The task's loss and gradient of its head are what they are without; all rows that are read are predicted."""
    work, model = bound(language_models[system], task, tmp_path)
    saved, spec = open_model(language_models[system]), get_spec(task)
    alone = kind_of(spec).prepare(spec, tmp_path / "data", open_tokenizer(saved), saved.config, FAST.max_length)
    batch = work.batch(np.arange(len(work.lengths)))
    both, one = work.trainable(model), alone.trainable(model)
    terms, without = both.step(batch), one.step(batch)
    assert set(terms) == {*without, TERM}
    torch.testing.assert_close(terms["loss"][0], without["loss"][0], rtol=1e-5, atol=1e-5)
    assert both.counts(batch) == {**one.counts(batch), COUNT: both.tokens(batch) - len(batch.mask)}
    assert float(terms[TERM][0].detach()) > 0
    terms["loss"][0].backward()
    head = next(part for name, part in model.named_parameters() if name.startswith(f"{work.head}."))
    assert head.grad is not None
    assert float(head.grad.abs().max()) > 0


def test_a_backbone_is_overheard_only_within(language_models: dict[str, str]) -> None:
    backbone = build_backbone(open_model(language_models["gpt"]).config).eval()
    ids = torch.randint(5, 90, (2, 7))
    rows = ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)
    at = torch.tensor([[6, 0], [3, 3]])
    with torch.inference_mode():
        before = backbone(*rows, at=at).last
        with recorded(backbone) as calls:
            assert torch.allclose(backbone(*rows, at=at).last, before, atol=1e-6)
            assert torch.allclose(backbone.summary(*rows), backbone(*rows).last[:, -1], atol=1e-6)
            assert [call.last.shape for call in calls] == [(2, 7, backbone.config.hidden)] * 3
        assert backbone(*rows, at=at).last.shape == before.shape
        assert len(calls) == 3


def test_what_pads_a_row_is_not_predicted(language_models: dict[str, str]) -> None:
    config = open_model(language_models["gpt"]).config
    model = nn.ModuleDict({"encoder": build_backbone(config), "lm": TiedOutput(config, bias=False)}).eval()
    ids = torch.randint(5, 90, (1, 6))
    mask = torch.ones_like(ids, dtype=torch.bool)
    wider = torch.nn.functional.pad(ids, (0, 3), value=7), torch.nn.functional.pad(mask, (0, 3))
    losses = []
    with torch.no_grad():
        for padded_ids, real in ((ids, mask), wider):
            last = model["encoder"](padded_ids, torch.zeros_like(padded_ids), real).last
            losses.append(
                float(language_loss(model, BackboneCall(padded_ids, real, last), num_pieces=config.vocab_size))
            )
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_rows_without_a_piece_are_not_predicted(language_models: dict[str, str]) -> None:
    """A table with more rows than the vocabulary has pieces gives the loss of the table without them."""
    config = open_model(language_models["gpt"]).config
    model = nn.ModuleDict({"encoder": build_backbone(config), "lm": TiedOutput(config, bias=False)}).eval()
    words = model["encoder"].word_embeddings()[0].weight
    ids, last = torch.randint(5, 60, (2, 6)), torch.randn(2, 6, config.hidden)
    call = BackboneCall(ids, torch.ones_like(ids, dtype=torch.bool), last)
    with torch.no_grad():
        loss = language_loss(model, call, num_pieces=60)
        logits = last[:, :-1].flatten(0, 1) @ words[:60].T
        expected = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="sum")
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)
        assert float(loss) < float(language_loss(model, call, num_pieces=config.vocab_size))


def finetune_logged(
    settings: FinetuneSettings, model: str, folder: Path, **more: Any
) -> tuple[list[dict[str, Any]], Any]:
    """The log lines of a short fine-tuning and the weights of its model."""
    data = folder / "data"
    if not data.exists():
        example_data(get_spec("sst2"), folder)
    out = folder / f"run-{len(list(folder.iterdir()))}"
    finetune(settings, get_spec("sst2"), model=model, data=data, out=out, **more)
    lines = read_jsonl(out / "seed-0" / "metrics.jsonl")
    return [line for line in lines if "loss" in line], out


def test_weight_nought_is_none_and_half_is_gpts(language_models: dict[str, str], tmp_path: Path) -> None:
    nought = FAST.model_copy(update={"lm_weight": 0.0})
    half = FAST.model_copy(update={"lm_weight": 0.5})
    lines, left = finetune_logged(FAST, language_models["bert-left"], tmp_path)
    lines_nought, left_nought = finetune_logged(nought, language_models["bert-left"], tmp_path)
    assert TERM not in lines[0]
    assert TERM not in lines_nought[0]
    first, second = (load_file(out / "model" / "model.safetensors") for out in (left, left_nought))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(name.startswith("masked_lm.") for name in first)
    lines, gpt = finetune_logged(FAST, language_models["gpt"], tmp_path)
    lines_half, gpt_half = finetune_logged(half, language_models["gpt"], tmp_path)
    assert lines[0][TERM] == lines_half[0][TERM] > 0
    first, second = (load_file(out / "model" / "model.safetensors") for out in (gpt, gpt_half))
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines_nought, _ = finetune_logged(nought, language_models["gpt"], tmp_path)
    assert TERM not in lines_nought[0]


def test_a_padded_table_gives_the_same_run(language_models: dict[str, str], tmp_path: Path) -> None:
    """Rows without a piece have a large bias; they are in no loss of the run."""
    half = FAST.model_copy(update={"lm_weight": 0.5})
    saved = open_model(language_models["bert-left"])
    weights = dict(saved.weights or {})
    for name, value in (("encoder.embeddings.word.weight", 0.0), ("masked_lm.bias", 50.0)):
        rows = weights[name].new_full((8, *weights[name].shape[1:]), value)
        weights[name] = torch.cat([weights[name], rows])
    config = saved.config.model_copy(update={"vocab_size": saved.config.vocab_size + 8})
    parts: Any = {"tokenizer": saved.tokenizer, "architecture": saved.architecture}
    save_model(tmp_path / "padded", weights, config=config, **parts)
    plain, _ = finetune_logged(half, language_models["bert-left"], tmp_path)
    padded, _ = finetune_logged(half, str(tmp_path / "padded"), tmp_path)
    assert [line[TERM] for line in padded] == pytest.approx([line[TERM] for line in plain], rel=1e-4)


def test_the_head_learns_goes_into_the_folder_and_is_no_head_for_masks(
    language_models: dict[str, str], tmp_path: Path
) -> None:
    settings = FAST.model_copy(update={"lm_weight": 0.5})
    _, out = finetune_logged(settings, language_models["bert-left"], tmp_path)
    before, after = (open_model(folder).weights or {} for folder in (language_models["bert-left"], str(out)))
    name = "masked_lm.transform.weight"
    assert float((after[name] - before[name]).abs().max()) > 1e-5
    model = load(out)
    assert model.kind == "classification"
    assert not model.can("fill")
    assert load(language_models["bert-left"]).kind == "vectors"


def test_who_is_refused(language_models: dict[str, str], tmp_path: Path) -> None:
    example_data(get_spec("squad1"), tmp_path)
    where: Any = {"data": tmp_path / "data", "out": tmp_path / "run"}
    settings = FAST.model_copy(update={"lm_weight": 0.5})
    words = Path(language_models["gpt"])
    with pytest.raises(
        InputError,
        match=r"--lm-weight 0\.5: random:tiny has states that depend on later tokens",
    ):
        finetune(settings, get_spec("squad1"), model="random:tiny", tokenizer=words, **where)
    with pytest.raises(
        InputError,
        match=r"bert-right has states that depend on later tokens",
    ):
        finetune(settings, get_spec("squad1"), model=language_models["bert-right"], **where)
    add_bilstm = settings.model_copy(update={"bilstm": 16})
    with pytest.raises(InputError, match="gpt with a BiLSTM on top has states that depend on later tokens"):
        finetune(add_bilstm, get_spec("squad1"), model=language_models["gpt"], **where)
    features = settings.model_copy(update={"features": "last"})
    with pytest.raises(InputError, match="leave --bilstm and --lm-weight out"):
        finetune(features, get_spec("squad1"), model=language_models["gpt"], **where)
    assert not (tmp_path / "run").exists()


def test_the_weight_of_gpts_language_loss_where_none_is_set() -> None:
    plain = FinetuneSettings()
    shapes = {system: system_config(system, "base", 100) for system in ("bert", "gpt")}
    assert [plain.language_weight(shapes[system]) for system in shapes] == [0.0, 0.5]
    assert FinetuneSettings(lm_weight=0.0).language_weight(shapes["gpt"]) == 0.0
    assert FinetuneSettings(features="last").language_weight(shapes["gpt"]) == 0.0
