"""Phases and micro-batches of a pre-training run; the record from which a run resumes; the initial model."""

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertwright.cli import main
from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.finetuning.prepare import prepare
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import open_model, save_model
from bertwright.objectives import pair_index as plans
from bertwright.objectives.masked_lm import to_inputs
from bertwright.pretraining.evaluate import ValidationRows, evaluate_pretraining
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.run import pretrain, resolve_run
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, build_model, encoder_config, prepare_pretraining
from bertwright.tasks.classification.spec import CLASSIFY
from bertwright.text.vocabulary import Rules
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from bertwright.training.distributed import Ranks
from bertwright.training.hardware import Numerics, resolve_numerics
from bertwright.training.run_folder import RunFolder, start_run
from bertwright.training.run_lock import locked


@pytest.fixture
def opened_corpus(own_corpus: Path) -> Corpus:
    return Corpus.open(own_corpus)


def prepared(corpus: Corpus, **changes: object) -> Pretraining:
    phases = (Phase(length=16, share=0.75), Phase(length=32, share=0.25))
    settings = PretrainSettings.model_validate(
        {"phases": phases, "steps": 40, "batch_size": 6, "micro_tokens": 64, **changes}
    )
    model = build_model(settings, encoder_config(settings, corpus.tokenizer.vocab_size), None, corpus)
    return Pretraining(settings, model, [(corpus, 1.0)], None)


def test_corpora_by_other_rules_are_named(
    opened_corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(opened_corpus.folder, tmp_path / "old")
    path = tmp_path / "old" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["text"]["rules"]
    path.write_text(json.dumps(manifest))
    settings = PretrainSettings.model_validate({"size": "tiny", "steps": 2, "phases": [{"length": 16, "share": 1.0}]})
    options: dict[str, Any] = {"out": tmp_path / "run", "init_from": None, "write_plans": False}
    prepare_pretraining(settings, corpus=opened_corpus.folder, held_out=opened_corpus.folder, **options)
    assert "rules for text" not in capsys.readouterr().err
    message = f"{path.parent}: was built by version 1 of the rules for text, {opened_corpus.folder} by version 2"
    prepare_pretraining(settings, corpus=opened_corpus.folder, held_out=path.parent, **options)
    assert message in capsys.readouterr().err
    prepare_pretraining(settings, corpus={opened_corpus.folder: 0.5, path.parent: 0.5}, held_out=None, **options)
    assert message in capsys.readouterr().err


def test_phases_follow_one_another_and_rows_are_cut_by_tokens(opened_corpus: Corpus) -> None:
    batches = prepared(opened_corpus).batches(40)
    assert [inputs.ids.shape for inputs in batches(0)] == [(4, 16), (2, 16)]
    assert [inputs.ids.shape[1] for inputs in batches(29)] == [16, 16]
    assert [inputs.ids.shape for inputs in batches(30)] == [(2, 32)] * 3
    assert [inputs.ids.shape for inputs in batches(39)] == [(2, 32)] * 3


def test_a_phase_continues_after_the_rows_of_earlier_phases_of_its_length(opened_corpus: Corpus) -> None:
    phases = [Phase(length=length, share=share) for length, share in ((16, 0.5), (32, 0.25), (16, 0.25))]
    torn, whole = prepared(opened_corpus, phases=phases).batches(40), prepared(opened_corpus).batches(40)
    for step, same in ((0, 0), (19, 19), (30, 20), (39, 29)):
        for inputs, wanted in zip(torn(step), whole(same), strict=True):
            assert torch.equal(inputs.ids, wanted.ids)
            assert torch.equal(inputs.picked, wanted.picked)


def moved_run(trained: Pretraining, here: Numerics, folder: Path) -> tuple[RunFolder, dict[str, Any]]:
    """Return a run that was begun on another processor, and what a run that was begun here has resolved."""
    run = start_run(folder, kind="pretrain", settings={}, data={}, resume=False)
    resolve_run(trained, run, here, allow_other=False)
    settled = run.record["resolved"]
    run.note(resolved={**settled, "numerics": {**settled["numerics"], "processor": "another", "peak_flops": 1.0}})
    return run, settled


def test_a_run_notes_the_processor_that_it_resumes_on(opened_corpus: Corpus, tmp_path: Path) -> None:
    trained, here = prepared(opened_corpus), resolve_numerics("fp32", threads=1)
    run, settled = moved_run(trained, here, tmp_path / "run")
    with pytest.raises(InputError, match="started with another, this machine has"):
        resolve_run(trained, run, here, allow_other=False)
    assert run.record["resolved"]["numerics"]["processor"] == "another"
    resolved, _ = resolve_run(trained, run, here, allow_other=True)
    assert resolved == here
    assert run.record["resolved"] == {**settled, "numerics": here.model_dump()}
    assert resolve_run(trained, run, here, allow_other=False) == (here, 40)


def test_a_run_keeps_its_precision_where_auto_would_choose_another_one(opened_corpus: Corpus, tmp_path: Path) -> None:
    trained, here = prepared(opened_corpus), resolve_numerics("fp32", threads=1)
    run, _ = moved_run(trained, here, tmp_path / "run")
    other = here.model_copy(update={"precision": "bf16", "processor": "of bf16", "peak_flops": 2.0})
    resolved, _ = resolve_run(trained, run, other, allow_other=True)
    assert (resolved.precision, resolved.processor) == ("fp32", here.processor)
    assert resolved.peak_flops > 2.0


class _SecondRank(Ranks):
    """A rank whose rank zero has other numerics."""

    numerics: Mapping[str, Any] = {}

    def broadcast(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.numerics.get("processor", value)
        return {**value, "numerics": value["numerics"] | self.numerics}


def test_ranks_have_the_threads_of_rank_zero_and_with_muon_its_processor(opened_corpus: Corpus, tmp_path: Path) -> None:
    here, threads = resolve_numerics("fp32", threads=1), torch.get_num_threads()
    trained = prepared(opened_corpus, optimizer={"method": "muon"})
    run = start_run(tmp_path / "run", kind="pretrain", settings={}, data={}, resume=False)
    trained.ranks = _SecondRank(rank=1)
    _SecondRank.numerics = {"processor": "another"}
    with pytest.raises(InputError, match="1 of 1 ranks have another processor than rank 0, which has another"):
        resolve_run(trained, run, here, allow_other=False)
    moved, _ = moved_run(prepared(opened_corpus), here, tmp_path / "moved")
    with pytest.raises(InputError, match="1 of 1 ranks have"):
        resolve_run(trained, moved, here, allow_other=True)
    run = start_run(tmp_path / "other", kind="pretrain", settings={}, data={}, resume=False)
    _SecondRank.numerics = {"threads": 2}
    try:
        assert resolve_run(trained, run, here, allow_other=False)[0].threads == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_the_cut_changes_no_row(opened_corpus: Corpus) -> None:
    narrow, wide = prepared(opened_corpus).batches(40), prepared(opened_corpus, micro_tokens=10_000).batches(40)
    rows = np.concatenate([inputs.ids.numpy() for inputs in narrow(7)])
    (whole,) = wide(7)
    np.testing.assert_array_equal(rows, whole.ids.numpy())
    assert sum(len(inputs.labels) for inputs in narrow(7)) == len(whole.labels)


def test_time_left_counts_longer_rows_as_longer_steps(opened_corpus: Corpus) -> None:
    run = prepared(opened_corpus)
    assert run.work_left(10, 40) == 20 * 16 + 10 * 32
    assert run.work_left(35, 40) == 5 * 32
    assert run.work_left(40, 40) == 0


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="either --steps or --minutes"):
        PretrainSettings(steps=3, minutes=1.0)
    with pytest.raises(ValueError, match=r"sum to 1, got 0\.5"):
        PretrainSettings(steps=3, phases=(Phase(length=16, share=0.5),))


# ---------------------------------------------------------------- sentence order in place of next sentence


def model_for(corpus: Corpus, second_sentence: str, init_from: Path | None = None, seed: int = 0):
    settings = PretrainSettings.model_validate(
        {"steps": 1, "seed": seed, "examples": {"second_sentence": second_sentence}}
    )
    config = encoder_config(settings, corpus.tokenizer.vocab_size)
    return build_model(settings, config, open_model(str(init_from)) if init_from else None, corpus).eval()


def test_masked_lm_is_evaluated_on_the_same_rows_and_sentence_order_on_its_own(opened_corpus: Corpus) -> None:
    ordered, following = model_for(opened_corpus, "order"), model_for(opened_corpus, "next")  # the same weights
    validation = ValidationRows.of([(opened_corpus, 1.0)], "order", rows=60, length=32)
    with torch.inference_mode():
        figures = validation.metrics(ordered)
        other = ValidationRows.of([(opened_corpus, 1.0)], "next", rows=60, length=32).metrics(following)
        assert validation.further
        whole = to_inputs(validation.further.batch(0, np.arange(60)))
        logits = ordered.logits(whole)[1]
    assert {name: figures[name] for name in figures if not name.startswith("sop")} == {
        name: other[name] for name in other if not name.startswith("nsp")
    }
    assert logits is not None
    assert figures["sop_loss"] == pytest.approx(float(F.cross_entropy(logits, whole.is_random)), rel=1e-5)
    assert figures["sop_accuracy"] == pytest.approx(float((logits.argmax(1) == whole.is_random).float().mean()))


def two_steps(**changes: Any) -> PretrainSettings:
    """Settings of a run of two steps of four rows of 32 tokens."""
    steps = {"phases": (Phase(length=32, share=1.0),), "steps": 2, "batch_size": 4, "evaluations": 1}
    return PretrainSettings.model_validate({**steps, "precision": "fp32", "threads": 1, **changes})


@pytest.mark.parametrize("share", [0.0, 0.35])
def test_of_its_own_corpus_a_model_is_measured_on_what_its_run_kept(
    opened_corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    settings = two_steps(size="1x64", held_out_share=share)
    result = pretrain(settings, corpus=opened_corpus.folder, out=tmp_path / "run")
    capsys.readouterr()
    again = evaluate_pretraining(str(tmp_path / "run"), opened_corpus.folder, length=32)
    message = capsys.readouterr().err
    assert "the model was trained on this corpus" in message
    if share:
        assert "kept for validation are measured, a fraction of 0.35" in message
        assert {name: again[name] for name in result["held_out"]} == pytest.approx(result["held_out"], rel=1e-5)
    else:
        assert "the numbers below are better than those of other text" in message
    copy = shutil.copytree(tmp_path / "run" / "model", tmp_path / "elsewhere")
    every = evaluate_pretraining(str(copy), opened_corpus.folder, length=32)  # nothing says what it was trained on
    assert capsys.readouterr().err == ""
    assert (every == again) != bool(share)


def test_positions_that_no_row_has_are_noted(
    opened_corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, short, tuned = (tmp_path / name for name in ("run", "short", "tuned"))
    pretrain(two_steps(size="1x64"), corpus=opened_corpus.folder, out=run)
    assert open_model(str(run)).trained_positions == 32
    shorter = two_steps(phases=(Phase(length=16, share=1.0),))
    pretrain(shorter, corpus=opened_corpus.folder, init_from=str(run), out=short)
    assert open_model(str(short)).trained_positions == 32  # the initial model was trained on them
    longer = two_steps(phases=(Phase(length=512, share=1.0),))
    pretrain(longer, corpus=opened_corpus.folder, init_from=str(run), out=tmp_path / "long")
    assert open_model(str(tmp_path / "long")).trained_positions == 512
    capsys.readouterr()
    evaluate_pretraining(str(run), opened_corpus.folder, length=48)
    assert "run: was trained on rows of up to 32 tokens and has not learned" in capsys.readouterr().err
    lines = [f"{row} {'the ship sails on ' * (1 + 9 * (row % 2))},{'ab'[row % 3 % 2]}\n" for row in range(12)]
    (tmp_path / "a.csv").write_text("".join(["text,label\n", *lines]))
    prepare(FinetuneSettings(), CLASSIFY, str(run), tmp_path / "a.csv", None, cache=tuned)
    assert re.search(r"a\.csv: \d of 1\d training texts have more than 32 tokens", capsys.readouterr().err)
    prepare(FinetuneSettings(max_length=32), CLASSIFY, str(run), tmp_path / "a.csv", None, cache=tuned)
    assert "more than 32 tokens, and" not in capsys.readouterr().err


@pytest.mark.parametrize("system", ["bert", "bert-left"])
def test_a_run_without_pairs_has_one_segment(opened_corpus: Corpus, tmp_path: Path, system: str) -> None:
    """The second segment is not trained: tasks with pairs, and validation rows, would read random numbers."""
    settings = two_steps(system=system, size="2x128", examples={"second_sentence": "none"})
    result = pretrain(settings, corpus=opened_corpus.folder, held_out=opened_corpus.folder, out=tmp_path / "run")
    saved = open_model(str(tmp_path / "run" / "model"))
    assert saved.weights
    first, second = saved.weights["encoder.embeddings.segment.weight"]
    assert torch.equal(first, second)
    again = evaluate_pretraining(str(tmp_path / "run"), opened_corpus.folder, length=32)
    assert {name: again[name] for name in result["held_out"]} == pytest.approx(result["held_out"], rel=1e-5)
    rows_added = {"encoder.embeddings.word.weight": torch.zeros(8, 128), "masked_lm.bias": torch.full((8,), 50.0)}
    padded = {name: torch.cat([saved.weights[name], rows]) for name, rows in rows_added.items()}
    more_rows = saved.config.model_copy(update={"vocab_size": saved.config.vocab_size + 8})
    parts = {"tokenizer": saved.tokenizer, "architecture": saved.architecture}
    save_model(tmp_path / "padded", {**saved.weights, **padded}, config=more_rows, **parts)
    assert evaluate_pretraining(str(tmp_path / "padded"), opened_corpus.folder, length=32) == pytest.approx(
        again, rel=1e-5
    )
    table = torch.stack([first, first + 1.0])
    weights = {**saved.weights, "encoder.embeddings.segment.weight": table}
    save_model(tmp_path / "other", weights, config=saved.config, tokenizer=saved.tokenizer, architecture="BertModel")
    begun = settings.model_copy(update={"optimizer": settings.optimizer.model_copy(update={"learning_rate": 1e-9})})
    pretrain(begun, corpus=opened_corpus.folder, out=tmp_path / "begun", init_from=str(tmp_path / "other"))
    kept = open_model(str(tmp_path / "begun" / "model")).weights
    assert kept
    torch.testing.assert_close(kept["encoder.embeddings.segment.weight"], table)
    pretrain(settings, corpus=opened_corpus.folder, out=tmp_path / "next", init_from=str(tmp_path / "run"))
    learned = open_model(str(tmp_path / "next" / "model")).weights
    assert learned
    first, second = learned["encoder.embeddings.segment.weight"]
    assert torch.equal(first, second)


def test_the_head_of_another_objective_is_not_taken_over(opened_corpus: Corpus, tmp_path: Path) -> None:
    trained = model_for(opened_corpus, "next", seed=1)
    save_model(
        tmp_path / "model",
        trained,
        config=trained.encoder.config,
        tokenizer=opened_corpus.folder / "tokenizer",
        architecture="BertForPreTraining",
    )
    fresh = model_for(opened_corpus, "order").state_dict()
    kept, changed = (model_for(opened_corpus, kind, tmp_path / "model").state_dict() for kind in ("next", "order"))
    head = "next_sentence.linear.weight"
    assert all(torch.equal(kept[name], value) for name, value in trained.state_dict().items())
    assert all(torch.equal(changed[name], kept[name]) for name in kept if not name.startswith("next_sentence"))
    assert torch.equal(changed[head], fresh[head])
    assert not torch.equal(changed[head], kept[head])


# ---------------------------------------------------------------- a run that begins from a model


@pytest.fixture
def begun(opened_corpus: Corpus, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that pre-trains two steps in a folder below `tmp_path` and returns its run.json."""

    def run(name: str, *, resume: bool = False, allow_other_numerics: bool = False, **changes: Any) -> dict[str, Any]:
        sources = {"init_from": changes.pop("init_from", None), "held_out": changes.pop("held_out", None)}
        settings_of_run = {
            "phases": [{"length": 16, "share": 1.0}],
            "steps": 2,
            "batch_size": 2,
            "precision": "fp32",
            **changes,
        }
        settings = PretrainSettings.model_validate({"threads": 1, **settings_of_run})
        more = {"resume": resume, "allow_other_numerics": allow_other_numerics}
        pretrain(settings, corpus=opened_corpus.folder, out=tmp_path / name, **sources, **more)
        record: dict[str, Any] = json.loads((tmp_path / name / "run.json").read_text())
        return record

    return run


def test_settings_default_to_those_of_the_initial_model(
    begun: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun("first", initializer_range=0.07)
    capsys.readouterr()
    record = begun("second", init_from=str(tmp_path / "first"), size="2x128", start="local")
    assert record["settings"]["initializer_range"] == 0.07
    assert open_model(str(tmp_path / "second")).config.initializer_range == 0.07
    assert "--start local: has no effect with --init-from; attention keeps the weights of" in capsys.readouterr().err
    assert "start: local" not in (tmp_path / "second" / "model" / "README.md").read_text()
    with pytest.raises(InputError, match=r"expected the size mini .*, got tiny"):
        begun("third", init_from=str(tmp_path / "first"), size="4x256")
    with pytest.raises(
        InputError, match="--init-from random:tiny: expected a pre-trained model; a run without --init-from"
    ):
        begun("third", init_from="random:tiny")


def test_the_initial_model_is_identified_by_its_weights(begun: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    for seed in (1, 2):
        begun(f"from{seed}", seed=seed, initializer_range=0.05)
    record = begun("run", init_from=str(tmp_path / "from1"))
    assert record["data"]["init_from"].startswith("sha256:")
    (tmp_path / "moved").symlink_to(tmp_path / "from1")
    begun("run", init_from=str(tmp_path / "moved"), resume=True)
    with pytest.raises(InputError, match=r"another configuration: data.init_from is 'sha256:"):
        begun("run", init_from=str(tmp_path / "from2"), resume=True)


def test_a_resumed_run_names_only_the_option_that_was_typed(
    opened_corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings of the run, which are of another shape than the model, were not typed."""

    def refusal(name: str, *more: str) -> str:
        start = f"pretrain --corpus {opened_corpus.folder} --out {tmp_path / name} --steps 1 --threads 1"
        shape = [] if "--resume" in more else "--lengths 16 --batch-size 2 --precision fp32".split()
        capsys.readouterr()
        status = main([*start.split(), *shape, *more])
        said = capsys.readouterr().err
        assert status == (2 if "--resume" in more else 0), said
        return said

    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    refusal("first", "--size", "2x64")
    refusal("second", "--size", "1x64")
    for more in ([], ["--recipe", "paper-base"], ["--plan"]):
        said = refusal("second", "--resume", "--init-from", first, *more)
        assert f"--init-from {first}: {second} was started without a model; leave --init-from out" in said
        assert not re.search("--(size|start|activation|lengths)", said)
    refusal("third", "--init-from", first)
    said = refusal("third", "--resume", "--init-from", second)
    assert f"--init-from {second}: {tmp_path / 'third'} was started from other weights, of {first};" in said
    assert "--size" not in said
    said = refusal("third", "--resume")
    assert f"{tmp_path / 'third'}: was started with --init-from {first}; give it with --resume, too" in said


def test_a_refused_process_leaves_the_record_of_the_other(begun: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    record = begun("run")
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps(record | {"finished": False}))
    before = path.read_bytes()
    with locked(tmp_path / "run"), pytest.raises(InputError, match="another process works on this run"):
        begun("run", resume=True, allow_other_numerics=True, micro_tokens=64)
    assert path.read_bytes() == before
    resumed = begun("run", resume=True, allow_other_numerics=True, micro_tokens=64)
    assert resumed["settings"]["micro_tokens"] == 64


def test_validation_on_a_training_corpus_is_reported(
    begun: Callable[..., dict[str, Any]], opened_corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    begun("run", held_out=opened_corpus.folder, evaluations=1)
    assert "is used for training too; the validation metrics are of text seen in training" in capsys.readouterr().err


def test_padding_is_the_vocabularys_own(tmp_path: Path, own_text: Path) -> None:
    pieces = train_wordpiece([own_text.read_text("utf-8")], vocab_size=400).pieces
    pieces = [*pieces[1:8], pieces[0], *pieces[8:]]
    Tokenizer(pieces, Rules(cased=False, strip_accents=False)).save(tmp_path / "other")
    build_corpus([own_text], tokenizer=tmp_path / "other", out=tmp_path / "corpus", workers=1)
    settings = PretrainSettings(phases=(Phase(length=16, share=1.0),), batch_size=2, steps=1, threads=1)
    pretrain(settings, corpus=tmp_path / "corpus", out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["pad_token_id"] == 7


@pytest.mark.parametrize(
    "options", [{"clip": math.inf}, {"weight_decay": math.inf}, {"epsilon": math.inf}, {"clip": math.nan}]
)
def test_figures_of_the_optimiser_are_finite(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        PretrainSettings.model_validate({"steps": 1, "optimizer": options})
    with pytest.raises(ValueError, match="finite"):
        PretrainSettings(steps=1, initializer_range=math.inf)


@pytest.mark.parametrize(("static_masks", "most"), [(0, 3), (5, 5)])
def test_the_disk_of_plans_is_that_of_those_that_stay(
    opened_corpus: Corpus, monkeypatch: pytest.MonkeyPatch, static_masks: int, most: int
) -> None:
    monkeypatch.setattr(plans, "_SMALL", 1)
    (rows,) = prepared(
        opened_corpus, phases=[{"length": 16, "share": 1.0}], examples={"static_masks": static_masks}
    ).phase_rows
    assert rows.missing_plan_bytes(1) == 0  # the first is made to be counted
    one = rows.missing_plan_bytes(2 * rows.num_rows(0))
    assert one > 0
    assert rows.missing_plan_bytes(40 * rows.num_rows(0)) == (most - 1) * one


# ---------------------------------------------------------------- the record of a run that is resumed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"static_masks": 2}, "examples.static_masks is 0 there and 2 here"),
        ({"masking": {"units": "span"}}, "units is 'piece' there and 'span' here"),
        ({"second_sentence": "order"}, "second_sentence is 'next' there and 'order' here"),
    ],
)
def test_another_configuration_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    start_run(tmp_path / "run", kind="t", settings=PretrainSettings(steps=7), data={}, resume=False)
    before = (tmp_path / "run" / "run.json").read_bytes()
    start_run(tmp_path / "run", kind="t", settings=PretrainSettings(steps=7), data={}, resume=True)
    settings = PretrainSettings.model_validate({"steps": 7, "examples": changes})
    with pytest.raises(InputError, match=message):
        start_run(tmp_path / "run", kind="t", settings=settings, data={}, resume=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == before
