"""The plan of a run against numbers computed by hand, real files, and the run itself."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from bertwright.cli import main
from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.config import size_config
from bertwright.objectives import pair_index as plans
from bertwright.objectives.sentence_pairs import plan_rows
from bertwright.objectives.settings import ExampleSettings
from bertwright.objectives.shown_rows import first_rows
from bertwright.pretraining import dry_run, measure, resources, run, setup
from bertwright.pretraining.dry_run import PhasePlan, plan_pretraining, plan_warnings
from bertwright.pretraining.measure import Timings, affordable_steps
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.resources import (
    Disk,
    activation_bytes,
    checkpoint_bytes,
    count_moments,
    count_parameters,
    estimate_memory,
    meta_model,
)
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.setup import Pretraining, build_model, encoder_config
from bertwright.text.byte_pairs import train_byte_pairs
from bertwright.training.checkpoint import save_checkpoint
from bertwright.training.hardware import Numerics
from bertwright.training.optimizer import build_optimizer
from bertwright.training.settings import OptimizerSettings
from tests.support.folders import read_jsonl

PHASES = (Phase(length=16, share=0.75), Phase(length=32, share=0.25))
OPTIONS = ["--lengths", "16:0.75,32:0.25", "--batch-size", "6", "--threads", "1", "--precision", "fp32"]
TIMINGS = Timings(steps=(0.5, 1.0), evaluation=0.5, checkpoint=0.25)


def short_settings(**changes: Any) -> PretrainSettings:
    return PretrainSettings.model_validate(
        {"phases": PHASES, "steps": 40, "batch_size": 6, "threads": 1, "precision": "fp32", **changes}
    )


def files_under(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_parameters_are_the_published_ones() -> None:
    assert count_parameters(meta_model(size_config("base", 30_522), second_sentence="next")) == 110_106_428
    assert count_parameters(meta_model(size_config("large", 30_522), second_sentence="next")) == 336_226_108


def test_memory_of_large_by_hand() -> None:
    settings = PretrainSettings(size="large", steps=1, micro_tokens=1024, batch_size=256)
    memory = estimate_memory(settings, encoder_config(settings, 30_522), precision="fp32")
    assert memory.weights + memory.gradients + memory.moments == 16 * 336_226_108
    # 2 rows of 512: 23 whole layers of 17·1024 + 2.5·16·512 numbers a token, embeddings of 1.5·1024, a last layer for
    # 78 places (77 masked and [CLS]) of 14·1024 + 2.5·16·512 over keys and values of 3·1024, and 2·77 rows of logits
    kept = 2 * (512 * (23 * (17 * 1024 + 40 * 512) + 1.5 * 1024 + 3 * 1024) + 78 * (14 * 1024 + 40 * 512))
    assert memory.activations == round(1.8 * 4 * (kept + 2 * 77 * 30_522))
    assert memory.peak == memory.process + 16 * 336_226_108 + memory.activations
    muon = settings.model_copy(update={"optimizer": OptimizerSettings(method="muon")})
    less = estimate_memory(muon, encoder_config(settings, 30_522), precision="fp32")
    assert memory.moments - less.moments == 4 * 24 * 12 * 1024**2  # one average of every matrix of the layers


@pytest.mark.parametrize(
    ("system", "size", "length"),
    [
        ("bert", "tiny", 16),
        ("bert", "mini", 32),
        ("bert", "4x128", 64),
        ("bert-left", "4x128", 64),
        ("gpt", "tiny", 32),
        ("lstm-right", "2x128", 32),
    ],
)
def test_activations_are_what_autograd_keeps(own_corpus: Path, system: str, size: str, length: int) -> None:
    settings = short_settings(
        system=system, size=size, phases=(Phase(length=length, share=1.0),), micro_tokens=4 * length
    )
    data = Corpus.open(own_corpus)
    model = build_model(settings, encoder_config(settings, data.tokenizer.vocab_size), None, data)
    trained = Pretraining(settings, model, [(data, 1.0)], None)
    inputs = trained.micro_batches(0, 0)[0]
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses = model.trainable().step(inputs)
    num_bytes = sum(storage.nbytes() for storage in kept.values())
    planned = activation_bytes(settings, model.encoder.config, length=length, precision="fp32")
    pieces, predictions = data.tokenizer.vocab_size, round(0.15 * length) if system == "bert" else length
    logits = 4 * len(inputs.ids) * predictions * pieces  # our own loss keeps them elsewhere, or not at all
    if system != "bert":  # it keeps the gradient of the word embeddings
        num_bytes -= 4 * pieces * (model.encoder.config.hidden + 1)
    assert planned - logits == pytest.approx(num_bytes, rel=0.05)
    assert losses


@pytest.mark.parametrize(("dropout", "precision", "numbers"), [(0.0, "fp32", 0), (0.0, "bf16", 1), (0.1, "bf16", 3)])
def test_attention_step_by_step_is_planned(own_corpus: Path, dropout: float, precision: str, numbers: int) -> None:
    """Numbers that a token keeps for each head and position: of a row twice as long, twice as many."""
    settings = short_settings(dropout=dropout, phases=(Phase(length=32, share=1.0),), micro_tokens=64)
    config = encoder_config(settings, Corpus.open(own_corpus).tokenizer.vocab_size).model_copy(update={"layers": 3})
    kept = [
        activation_bytes(settings, config.model_copy(update={"heads": heads}), length=32, precision=precision)
        for heads in (1, 2)
    ]
    tokens_of_layers = 2 * 64 + 2 * (round(0.15 * 32) + 1)  # the last layer computes the masked positions and [CLS]
    bytes_of_number = 4 if precision == "fp32" else 2
    assert kept[1] - kept[0] == pytest.approx(numbers * 32 * tokens_of_layers * bytes_of_number)


@pytest.mark.parametrize("method", ["adamw", "muon"])
def test_a_checkpoint_is_as_large_as_planned(
    own_corpus: Path, tmp_path: Path, method: Literal["adamw", "muon"]
) -> None:
    settings, data = short_settings(optimizer=OptimizerSettings(method=method)), Corpus.open(own_corpus)
    model = build_model(settings, encoder_config(settings, data.tokenizer.vocab_size), None, data)
    optimizer = build_optimizer(model, settings.optimizer, blocks=model.trainable().blocks)
    saved = save_checkpoint(tmp_path, model, optimizer, step=1, notes={})
    written = sum(path.stat().st_size for path in saved.iterdir())
    planned = checkpoint_bytes(count_parameters(model), count_moments(model, settings.optimizer))
    assert planned == pytest.approx(written, rel=0.01)
    assert planned <= written


def test_disk_at_once() -> None:
    assert Disk(checkpoint=100, checkpoints=1, kept=1, model=40, metrics=7).peak == 147
    assert Disk(checkpoint=100, checkpoints=3, kept=2, model=40, metrics=7).peak == 307
    assert Disk(checkpoint=100, checkpoints=3, kept=2, model=140, metrics=7).peak == 347


def test_a_plan_by_hand_that_leaves_no_file(own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_SMALL", 1)  # a run would now write its plans beside this small corpus
    monkeypatch.setattr(dry_run, "measure_timings", lambda *_, **__: TIMINGS)
    before = files_under(own_corpus)
    settings = short_settings(held_out_share=0.2, evaluations=4, log_every=10, save_minutes=0.2)
    report = plan_pretraining(settings, corpus=own_corpus, out=tmp_path / "run")
    assert files_under(own_corpus) == before
    assert not list(tmp_path.iterdir())
    assert [(p["steps"], p["rows"], p["tokens"]) for p in report["phases"]] == [(30, 180, 2880), (10, 60, 1920)]
    assert (report["steps"], report["rows"], report["tokens"]) == (40, 240, 4800)
    # 30 · 0.5 + 10 · 1 s; four evaluations; a checkpoint each 12 s and one at the end
    assert report["seconds"] == {"training": 25.0, "evaluations": 2.0, "checkpoints": 0.75}
    assert report["hours"] == pytest.approx(27.75 / 3600)
    assert report["disk"]["checkpoints"] == 3
    assert report["disk"]["metrics"] == (4 + 1 + 4) * 230
    files = -(-180 // report["phases"][0]["corpus_rows"]), -(-60 // report["phases"][1]["corpus_rows"])
    rows = [files[n] * report["phases"][n]["corpus_rows"] for n in (0, 1)]
    assert report["disk"]["plans"] == 25 * sum(rows)
    assert report["memory"]["measured_peak"] > 4 * 4 * report["parameters"]


@pytest.mark.slow
def test_epochs_count_the_rows_of_the_walk(own_corpus: Path, tmp_path: Path) -> None:
    report = plan_pretraining(short_settings(), corpus=own_corpus, out=tmp_path / "run")
    data = Corpus.open(own_corpus)
    for phase, rows in zip(report["phases"], (180, 60), strict=True):
        walked = plan_rows(data.sentence_lengths(), data.document_first(), length=phase["length"], seed=0, epoch=0)
        assert phase["corpus_rows"] == len(walked)
        assert phase["epochs"] == pytest.approx(rows / len(walked))
    assert "\n  total " in report["text"]


def test_columns_of_a_long_plan_stand_apart(own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "measure_timings", lambda *_, **__: TIMINGS)
    monkeypatch.setattr(dry_run, "refuse_disk", lambda *_: None)
    report = plan_pretraining(short_settings(steps=None, minutes=1e6), corpus=own_corpus, out=tmp_path / "run")
    lines = report["text"].splitlines()
    first = next(number for number, line in enumerate(lines) if line.lstrip().startswith("length "))
    table = [re.split(" {2,}", line.strip()) for line in lines[first : first + 4]]
    assert [len(cells) for cells in table] == [8, 8, 8, 6]  # the totals have no row length and no time of a step
    for cells, phase in zip(table[1:], report["phases"], strict=False):
        assert cells[1:5] == [f"{phase[name]:,}" for name in ("steps", "rows", "tokens", "corpus_rows")]
        assert cells[5] == f"{phase['epochs']:,.2f} times"
    assert len({len(line) for line in lines[first : first + 4]}) == 1


def test_the_run_does_the_planned_steps(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (dry_run, run):
        monkeypatch.setattr(module, "measure_timings", lambda *_, **__: TIMINGS)
    for name, options in (("steps", ["--steps", "3"]), ("minutes", ["--minutes", "0.1"])):
        start = ["pretrain", "--corpus", str(own_corpus), "--out", str(tmp_path / name), *options, *OPTIONS, "--json"]
        start += ["--evaluations", "20"]
        with monkeypatch.context() as several:
            several.setenv("WORLD_SIZE", "2")
            assert main([*start, "--plan"]) == 2
        assert "--plan: expected one process, got 2" in capsys.readouterr().err
        assert main([*start, "--plan"]) == 0
        planned = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert not (tmp_path / name).exists()
        assert main([*start, "--sharding", "fsdp2"]) == 0
        said = capsys.readouterr().err
        assert "--evaluations 20: there is no validation data" in said
        assert "--sharding fsdp2: has no effect with one process" in said
        lines = read_jsonl(tmp_path / name / "metrics.jsonl")
        # 6 s; 20 evaluations and a checkpoint are more than half of them, so half remains: 3 s / (0.75·0.5 + 0.25·1)
        assert planned["steps"] == lines[-1]["step"] == {"steps": 3, "minutes": 5}[name]


def test_minutes_pay_for_evaluations_and_checkpoints() -> None:
    settings = short_settings(steps=None, minutes=10.0, evaluations=100, save_minutes=2.0)
    # 600 s less 100 evaluations of 0.5 s and 6 checkpoints of 0.25 s, by 0.625 s a step
    assert affordable_steps(settings, TIMINGS) == round((600 - 50 - 1.5) / 0.625)


def test_memory_that_cannot_suffice_is_refused_before_anything_is_made(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a model was made")

    monkeypatch.setattr(setup, "build_model", never)
    monkeypatch.setattr(resources, "usable_bytes", lambda _: 16 * 2**30)
    silly = [
        "--recipe",
        "paper-large",
        "--steps",
        "3",
        "--lengths",
        "128",
        "--micro-tokens",
        "1000000",
        "--precision",
        "fp32",
    ]
    start = ["pretrain", "--corpus", str(own_corpus), "--out", str(tmp_path / "run"), *silly]
    for options in ([], ["--plan"], ["--plan", "--json"]):
        assert main([*start, *options]) == 2
        said = capsys.readouterr().err
        assert "--micro-tokens 1000000, and 16.0 GiB are available" in said
        assert "use --micro-tokens 1024" in said
    monkeypatch.setattr(resources, "usable_bytes", lambda _: 2 * 2**30)
    assert main(start) == 2
    assert "a smaller --size" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_measured_peak_over_the_limit_is_refused(
    own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "usable_bytes", lambda _: 2**20)
    with pytest.raises(InputError, match="1 MiB are available"):
        plan_pretraining(short_settings(), corpus=own_corpus, out=tmp_path / "run")
    with pytest.raises(InputError, match="1 MiB are available"):  # and so is the run itself, before its first step
        run.pretrain(short_settings(), corpus=own_corpus, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_disk_that_cannot_suffice_is_refused(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 3 * 2**20})
    monkeypatch.setattr(resources.shutil, "disk_usage", lambda _: usage)
    start = ["pretrain", "--corpus", str(own_corpus), "--out", str(tmp_path / "run"), "--steps", "3", *OPTIONS]
    for options in ([], ["--plan"]):
        assert main([*start, *options]) == 2
        assert "3 MiB are free there" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_of_steps_needs_the_disk_of_the_checkpoints_that_it_will_write(
    own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks: list[Disk] = []
    monkeypatch.setattr(resources, "refuse_disk", lambda disk, _: disks.append(disk))
    rate = Numerics(precision="fp32", threads=1, peak_flops=1e9)
    data = Corpus.open(own_corpus)
    for steps in (40, 10**7):
        settings = short_settings(steps=steps)
        config = encoder_config(settings, data.tokenizer.vocab_size)
        resources.refuse_unfit(
            settings, config, numerics=rate, out=tmp_path / "run", tokenizer=own_corpus / "tokenizer", processes=1
        )
    assert [disk.checkpoints for disk in disks] == [1, settings.keep + 1]


def phase(steps: int, rows: int, corpus_rows: int, length: int = 128) -> PhasePlan:
    seen = rows / corpus_rows
    return PhasePlan(length, max(1, rows // steps), steps, rows, rows * length, corpus_rows, seen, (seen,), 1.0, steps)


@pytest.mark.parametrize(
    ("changes", "phases", "wanted"),
    [
        ({"steps": 10}, [phase(10, 60, 100)], "read 0.60 times"),
        ({"steps": 2000}, [phase(2000, 12_000, 100)], "read 120 times"),
        ({"steps": 100, "batch_size": 256}, [phase(100, 256, 200)], "a step has 256 rows and the corpus 200"),
        ({"steps": 900, "optimizer": {"warmup": 0.01}}, [phase(900, 900, 900)], "warm-up has 9 steps"),
        ({"steps": 100}, [phase(100, 600, 600)], "tokens of text for each of the"),
        ({"steps": 100}, [phase(100, 600, 600)], "tiny learned with 1e-3 to 2e-3"),
        ({"steps": 100}, [phase(100, 600, 600)], "--start local"),
        ({"optimizer": {"learning_rate": 2e-3}}, [phase(40, 600, 600)], "collapsed"),
        ({"start": "matching"}, [phase(100, 600, 600)], "--optimizer muon kept it"),
        ({}, [phase(30, 60, 60, 32), phase(10, 60, 60)], "do not start with short rows"),
    ],
)
def test_warnings(own_corpus: Path, changes: dict[str, Any], phases: list[PhasePlan], wanted: str) -> None:
    settings, data = short_settings(**changes), Corpus.open(own_corpus)
    model = build_model(settings, encoder_config(settings, data.tokenizer.vocab_size), None, data)
    trained = Pretraining(settings, model, [(data, 1.0)], None)
    said = list(plan_warnings(settings, trained, settings.steps or 0, phases))
    assert [wanted in warning for warning in said].count(True) == 1, said
    continued = Pretraining(settings, model, [(data, 1.0)], None, initial_model=("a model", None))
    left = [warning for warning in plan_warnings(settings, continued, settings.steps or 0, phases) if wanted in warning]
    assert len(left) == int(wanted not in ("tiny learned with 1e-3 to 2e-3", "--start local"))


def test_good_settings_give_no_warning_but_that_of_the_small_vocabulary(own_corpus: Path) -> None:
    good = {"learning_rate": 2e-3, "bias_correction": True, "warmup": 0.05}
    settings, data = short_settings(optimizer=good, start="local", batch_size=32, steps=9825), Corpus.open(own_corpus)
    model = build_model(settings, encoder_config(settings, data.tokenizer.vocab_size), None, data)
    trained = Pretraining(settings, model, [(data, 1.0)], None)
    (said,) = plan_warnings(settings, trained, 9825, [phase(9825, 9825 * 32, 300_000)])
    assert "pieces of the vocabulary" in said


def test_masks_of_words_that_hide_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thai has no blanks between its words, so that each line is one word, longer than the masks of a row."""
    letters = [chr(code) for code in range(0xE01, 0xE2F)]
    lines = ["".join(letters[(7 * line + step * step) % len(letters)] for step in range(60)) for line in range(80)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines), "utf-8")
    train_byte_pairs(lines, vocab_size=300).save(tmp_path / "tok")
    build_corpus([tmp_path / "text.txt"], tokenizer=tmp_path / "tok", out=tmp_path / "corpus", workers=1)
    out = tmp_path / "run"
    options = "--system roberta --steps 1 --size 1x64 --lengths 32 --batch-size 4 --start random --threads 1".split()
    command = ["pretrain", "--corpus", str(tmp_path / "corpus"), "--out", str(out), *options]
    assert main([*command, "--mask-units", "word"]) == 2
    assert "no piece is masked in the rows of the first step: with --mask-units word" in capsys.readouterr().err
    assert not out.exists()
    rows = first_rows(tmp_path / "corpus", ExampleSettings(second_sentence="none"), rows=8, length=32, seed=0)
    replaced = {(each.replacement, each.read) for row in rows for each in row.predictions}
    assert ("masked", "<mask>") in replaced
    assert ("random", "<mask>") not in replaced


def test_documents_of_validation_that_are_trained_on_too_are_told(
    own_text: Path, own_corpus: Path, tmp_path: Path
) -> None:
    documents = own_text.read_text("utf-8").strip().split("\n\n")
    half = tmp_path / "half.txt"
    half.write_text("\n\n".join(reversed(documents[: len(documents) // 2])), "utf-8")
    build_corpus([half], tokenizer=own_corpus / "tokenizer", out=tmp_path / "half", workers=1)
    settings = short_settings(size="1x64", held_out_share=0.4)

    def shared(**options: Any) -> list[str]:
        paths = {"out": tmp_path / "run", "held_out": None, "init_from": None, **options}
        trained, _ = setup.prepare_pretraining(settings, **paths)
        return [warning for warning in dry_run.run_warnings(trained, 40) if "in the text of training too" in warning]

    assert shared(corpus=own_corpus) == []
    (of_two,) = shared(corpus={own_corpus: 1.0, tmp_path / "half": 1.0})
    (of_other,) = shared(corpus=own_corpus, held_out=tmp_path / "half")
    kept = Corpus.open(tmp_path / "half").num_documents
    assert of_other.startswith(f"{kept} of the {kept} documents for validation are in the text of training too")
    assert 0 < int(of_two.split()[0]) < int(of_two.split()[3])


def test_a_run_needs_no_hashes_of_documents(own_corpus: Path, tmp_path: Path) -> None:
    """They serve a warning alone, so a corpus without them gives another warning."""
    corpus = tmp_path / "corpus"
    shutil.copytree(own_corpus, corpus)
    for path in corpus.glob("*.hashes"):
        path.unlink()
    paths: Any = {"out": tmp_path / "run", "held_out": None, "init_from": None, "corpus": corpus}
    trained, _ = setup.prepare_pretraining(short_settings(size="1x64", held_out_share=0.4), **paths)
    (warning,) = [text for text in dry_run.run_warnings(trained, 40) if "for validation" in text]
    assert warning.startswith("the documents for validation were not compared with those of training: ")
    assert ".hashes" in warning
