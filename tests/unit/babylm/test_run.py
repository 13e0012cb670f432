"""A whole entry on small made-up data: its parts against the single commands, its stops, and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path
from shutil import copyfile, copytree, rmtree
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from bertwright.babylm import measures, plan, results
from bertwright.babylm.measures import fine_tune
from bertwright.babylm.request import EntryRequest, opened
from bertwright.babylm.run import training_words, typed_settings
from bertwright.babylm.settings import EntrySettings
from bertwright.babylm.text import draw_text, make_corpus
from bertwright.cli import main
from bertwright.corpus.sample import draw_documents
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.experiments.data import PAPER_TASKS, find_source
from bertwright.files import read_object, write_json
from bertwright.objectives.dataset import used_documents
from bertwright.pretraining.measure import Timings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.pretraining.snapshots import words_folders
from bertwright.reports.blimp import read_blimp
from bertwright.reports.runs import read_run
from bertwright.scoring.evaluate import measure_minimal_pairs
from bertwright.scoring.pairs import MinimalPair, Paradigm
from bertwright.scoring.settings import ScoreSettings
from bertwright.text.document import TextSettings
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from bertwright.training import loop
from tests.support.blimp import made_up_pairs, write_blimp, write_lines
from tests.support.folders import contents, read_jsonl, with_words
from tests.support.page_data import documents
from tests.support.paper_data import write_data

SMALL = "--size 1x64 --lengths 16 --batch-size 8 --evaluations 2 --threads 1 --precision fp32 --compile off".split()


def entry_of(out: Path, *options: str) -> int:
    return main(["babylm", "--out", str(out), *options, *SMALL])


@pytest.fixture(scope="module")
def entry_data(tmp_path_factory: pytest.TempPathFactory, own_corpus: Path) -> Path:
    """Text, a corpus as if its text had a million words, minimal pairs, and one task of GLUE."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text(documents(30), "utf-8")
    write_blimp(folder / "blimp")
    write_lines(
        folder / "supplement" / "qa.jsonl", ({"sentence_good": f"{n} a", "sentence_bad": f"a {n}"} for n in "cde")
    )
    others = "mnli qqp qnli sst2 cola stsb mrpc squad1 squad2 swag ner wikigold".split()
    write_data(folder / "data", without=others)
    with_words(Path(copytree(own_corpus, folder / "corpus")), 1_000_000)
    return folder


def measured(entry_data: Path) -> list[str]:
    pairs = [
        "--blimp",
        str(entry_data / "blimp"),
        "--supplement",
        str(entry_data / "supplement"),
        "--checkpoint-pairs",
        "2",
    ]
    return [*pairs, "--glue", str(entry_data / "data"), "--glue-rows", "12"]


@pytest.fixture(scope="module")
def entry(entry_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An entry with all measurements and the models after 1M and 2M words."""
    out = tmp_path_factory.mktemp("entry") / "entry"
    corpus = ["--corpus", str(entry_data / "corpus"), "--words", "1M", "--epochs", "3"]
    assert entry_of(out, *corpus, *measured(entry_data)) == 0
    return out


def test_its_models_open_as_the_pipeline_of_the_challenge_opens_them(entry: Path) -> None:
    assert sorted(path.name for path in (entry / "checkpoints").iterdir()) == ["1M", "2M"]
    weights = set()
    for folder in (entry / "model", *(entry / "checkpoints").iterdir()):
        model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        rows = tokenizer("The ferry leaves the [MASK].", return_tensors="pt")
        assert rows["input_ids"][0, 0] == tokenizer.cls_token_id
        with torch.no_grad():
            theirs = model(**rows).logits
        assert theirs.shape == (1, rows["input_ids"].shape[1], Tokenizer.load(folder).vocab_size)
        weights.add((folder / "model.safetensors").read_bytes())
    assert len(weights) == 3


@pytest.mark.parametrize("system", ["bert --second-sentence next", "modernbert --second-sentence next", "gpt-bert"])
def test_an_entry_of_another_system(
    system: str, entry_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "entry"
    options = ["--corpus", str(entry_data / "text.txt"), *TEXT, "--blimp", str(entry_data / "blimp")]
    system, *others = system.split()
    assert entry_of(out, *options, "--system", system, *others) == 0
    results = read_object(out / "results.json")
    assert 0 < results["budget"]["words"] <= 2 * results["budget"]["text"]["words"]
    assert read_object(out / "pretraining" / "run.json")["settings"]["system"] == system
    assert results["blimp"]["pairs"] > 0
    assert entry_of(out, *options, "--system", "albert") == 2
    assert f'its entry was begun with system "{system}", now it is "albert"' in capsys.readouterr().err


def test_an_entry_without_a_system_in_its_record_is_one_of_bert(
    entry_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--corpus", str(entry_data / "text.txt"), *TEXT]
    assert entry_of(tmp_path / "entry", *options, "--system", "bert") == 0
    record = read_object(tmp_path / "entry" / "entry.json")
    assert record["pretraining"].pop("system") == "bert"
    write_json(tmp_path / "entry" / "entry.json", record)
    assert entry_of(tmp_path / "entry", *options) == 2
    assert 'its entry was begun with system "bert", now it is "modernbert"' in capsys.readouterr().err
    assert entry_of(tmp_path / "entry", *options, "--system", "bert") == 0


def test_its_numbers_are_those_of_the_single_commands(entry: Path, entry_data: Path, tmp_path: Path) -> None:
    results = read_object(entry / "results.json")

    def accuracy(model: Path, kind: str, ids: Path | None = None) -> float:
        settings = ScoreSettings(masking="piece")
        scored = measure_minimal_pairs(str(model), entry_data / kind, pair_ids=ids, settings=settings, precision="fp32")
        return scored.accuracy

    first_two = tmp_path / "pairs.json"
    uids = [path.stem for path in (entry_data / "blimp").iterdir()]
    first_two.write_text(json.dumps({uid: ["0", "1"] for uid in uids}))
    assert results["blimp"]["accuracy"] == accuracy(entry / "model", "blimp")
    assert results["supplement"]["accuracy"] == accuracy(entry / "model", "supplement")
    for name, values in results["checkpoints"].items():
        assert values["blimp"] == accuracy(entry / "checkpoints" / name, "blimp", first_two)
    assert results["checkpoints"].keys() == {"1M", "2M"}
    assert results["curve"]["blimp"] == [
        [int(name[0]) * 10**6, values["blimp"]] for name, values in results["checkpoints"].items()
    ]
    phenomena = results["curve"]["phenomena"]
    assert phenomena.keys() == results["blimp"]["phenomena"].keys() == results["checkpoint_phenomena"]["2M"].keys()
    for name, points in phenomena.items():
        assert points == [[10**6 * count, results["checkpoint_phenomena"][f"{count}M"][name]] for count in (1, 2)]
    lines = [json.loads(line) for line in (entry / "pretraining" / "metrics.jsonl").read_text().splitlines()]
    bits = [[line["words"], line["held_out"]["mlm_bits_per_character"]] for line in lines if "held_out" in line]
    assert results["curve"]["bits_per_character"] == bits
    assert len(bits) == 2
    assert results["glue"].keys() == {"rte"}
    assert results["glue"]["rte"]["rows"] == 12
    record = read_object(entry / "glue" / "rte" / "run.json")
    assert results["glue"]["rte"]["mean"] == record["result"]["mean"]


def test_its_card_has_every_budget(entry: Path, entry_data: Path) -> None:
    card, budget = (entry / "model" / "README.md").read_text("utf-8"), read_object(entry / "results.json")["budget"]
    parameters = sum(weight.numel() for weight in load_file(entry / "model" / "model.safetensors").values())
    steps = budget["steps"]
    assert budget["parameters"] == parameters
    assert budget["tokens"] == steps * 8 * 16
    assert 2_000_000 < budget["words"] <= 3_000_000
    tokens = Corpus.open(entry_data / "corpus").manifest.tokens
    for line in (
        "- words of text: 1,000,000 in ",
        f"- words seen, repeats counted: {budget['words']:,}; the text was read {budget['epochs']:g} times",
        f"- tokens: {tokens:,} of the text, {budget['tokens']:,} in all steps with padding",
        f"- parameters: {parameters:,}",
        f"- training: {steps:,} steps, {budget['minutes']:,} minutes",
        "| BLiMP, mean of the paradigms | ",
        "| rte, accuracy | ",
        "Checkpoints, measured on the first 2 pairs of each paradigm:",
    ):
        assert line in card
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert (entry / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_its_models_are_measured_on_the_documents_kept_for_validation(
    entry: Path, entry_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for model in ("model", "checkpoints/1M", "pretraining"):
        command = ["evaluate", "pretraining", "--model", str(entry / model), "--corpus", str(entry_data / "corpus")]
        assert main([*command, "--length", "16"]) == 0
        streams = capsys.readouterr()
        assert "only the documents that training kept for validation are measured" in streams.err
        printed.append(streams.out)
    assert printed[0] == printed[2] != printed[1]


def test_the_report_of_its_pre_training_has_the_minimal_pairs(entry: Path) -> None:
    results, page = read_object(entry / "results.json"), (entry / "pretraining" / "report.html").read_text("utf-8")
    blimp = read_blimp(read_run(entry / "pretraining"))
    assert blimp.notes == []
    assert [(model.title, evaluation.accuracy) for model, evaluation in blimp.measured] == [
        *((f"{name} words", values["blimp"]) for name, values in results["checkpoints"].items()),
        ("final model", results["blimp"]["accuracy"]),
    ]
    assert [words for words, _ in blimp.curves[0]] == [10**6, 2 * 10**6]
    assert 'aria-label="BLiMP, phenomena, 10 pairs, over words seen; chance: 50 %"' in page
    assert f"<td>{results['blimp']['accuracy']:.1%}</td>" in page


def test_the_same_command_repeats_nothing(entry: Path, entry_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trains(*_: Any) -> None:
        raise AssertionError("a step was repeated")

    monkeypatch.setattr(loop.Loop, "step", trains)
    before = contents(entry)
    corpus = ["--corpus", str(entry_data / "corpus"), "--words", "1M", "--epochs", "3"]
    assert entry_of(entry, *corpus, *measured(entry_data)) == 0
    after = contents(entry)
    assert after.keys() == before.keys()
    drawn = {"curve.png", "pretraining/report.html"}  # the report has the time at which it was written
    assert [name for name in after if after[name] != before[name] and name not in drawn] == []


def test_a_plan_writes_nothing(
    entry: Path,
    entry_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pre-training is planned with trial steps, here of 0.5 s, and the rest by the speed of these."""
    timings = Timings(steps=(0.5,), evaluation=6.0, checkpoint=0.0)
    monkeypatch.setattr("bertwright.pretraining.dry_run.measure_timings", lambda *_, **__: timings)
    corpus = ["--corpus", str(entry_data / "corpus"), "--words", "1M", "--epochs", "3", "--plan", "--json"]
    names = "corpus pre-training blimp blimp,_checkpoints supplement supplement,_checkpoints rte model_card".split()
    for out, is_finished in ((entry, True), (tmp_path / "new", False)):
        before = contents(tmp_path)
        assert entry_of(out, *corpus, *measured(entry_data)) == 0
        planned = json.loads(capsys.readouterr().out.splitlines()[-1])
        steps = planned["steps"]
        assert [step["step"] for step in steps] == [name.replace("_", " ") for name in names]
        assert {step["finished"] for step in steps[1:]} == {is_finished}
        assert contents(tmp_path) == before
        assert steps[6]["what"] == "12 rows, epochs: 20, seeds: 1"
    assert planned["speed"] == "trial steps"
    num_steps = read_object(entry / "pretraining" / "run.json")["result"]["steps"]
    assert steps[1]["minutes"] == pytest.approx((0.5 * num_steps + 2 * 6) / 60)
    manifest = Corpus.open(entry_data / "corpus").manifest
    pairs = [line for file in (entry_data / "blimp").iterdir() for line in read_jsonl(file)]
    texts = [pair[name].split() for pair in pairs for name in ("sentence_good", "sentence_bad")]
    lengths = [len(text) * manifest.tokens / 1_000_000 for text in texts]
    seconds = sum(length * (length + 2) for length in lengths) / 3 * 0.5 / (8 * 16)
    assert steps[2]["minutes"] == pytest.approx(seconds / 60)


def test_a_plan_is_longer_for_more_words(entry_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the words are twice the pre-training, where the speed of the machine and the size are fixed."""
    measure = plan.resolve_numerics
    fixed = measure("fp32", threads=1).model_copy(update={"peak_flops": 1e10})
    monkeypatch.setattr(plan, "resolve_numerics", lambda *_, **__: fixed)
    requests = [request_of(entry_data, tmp_path / "new", text_words=words) for words in (10**6, 2 * 10**6)]
    minutes = [plan.plan_entry(request)["steps"][1]["minutes"] for request in requests]
    assert minutes[1] == pytest.approx(2 * minutes[0])


def interrupts(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


TEXT = ["--words", "1200", "--epochs", "2", "--vocab-size", "200", "--held-out", "0.2"]


@pytest.mark.slow
def test_a_stopped_entry_continues(
    entry_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the vocabulary, in pre-training and in BLiMP, it ends in the results of an undisturbed one."""
    options = ["--corpus", str(entry_data / "text.txt"), *TEXT, "--blimp", str(entry_data / "blimp")]
    calm, torn = tmp_path / "calm", tmp_path / "torn"
    assert entry_of(calm, *options) == 0

    step = loop.Loop.step

    def stops_at(self: Any, number: int, batches: Any) -> None:
        if number == 3:
            raise KeyboardInterrupt
        step(self, number, batches)

    for target in ("bertwright.babylm.text.train_wordpiece", "bertwright.babylm.text.build_corpus"):
        with monkeypatch.context() as patched:
            patched.setattr(target, interrupts)
            assert entry_of(torn, *options) == 130
    with monkeypatch.context() as patched:
        patched.setattr(loop.Loop, "step", stops_at)
        assert entry_of(torn, *options) == 130
    with monkeypatch.context() as patched:
        patched.setattr("bertwright.scoring.evaluate.accuracy_of", interrupts)
        assert entry_of(torn, *options) == 130
    assert (torn / "model").is_dir()
    assert entry_of(torn, *options) == 0
    results = [read_object(out / "results.json") for out in (calm, torn)]
    for result in results:
        del result["out"], result["budget"]["minutes"]
    assert results[0] == results[1]
    for name in ("model/model.safetensors", "tokenizer/vocab.txt", "blimp/final/metrics.json"):
        texts = [(out / name).read_bytes().replace(str(out).encode(), b"") for out in (calm, torn)]
        assert texts[0] == texts[1]
    capsys.readouterr()
    assert entry_of(torn, *options, "--seed", "1") == 2
    assert "its entry was begun with seed" in capsys.readouterr().err


def test_the_vocabulary_is_learned_from_the_drawn_text_alone(entry_data: Path, tmp_path: Path) -> None:
    request = request_of(entry_data, tmp_path, text_words=1200, vocab_size=300)
    corpus = Corpus.open(make_corpus(request, draw_text(request)))
    texts = (entry_data / "text.txt").read_text("utf-8").strip().split("\n\n")
    is_drawn = draw_documents(np.array([len(text.split()) for text in texts]), 1200, seed=0)
    drawn = [text for text, of_sample in zip(texts, is_drawn, strict=True) if of_sample]
    assert len(drawn) < len(texts)
    assert corpus.manifest.words == sum(len(text.split()) for text in drawn)
    assert corpus.tokenizer_hash == train_wordpiece(lines_of(drawn), vocab_size=300).hash
    assert corpus.tokenizer_hash != train_wordpiece(lines_of(texts), vocab_size=300).hash


def test_a_text_that_was_changed_after_the_vocabulary_is_refused(
    entry_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other documents would be drawn, so that the vocabulary would be that of another text."""
    text = Path(copyfile(entry_data / "text.txt", tmp_path / "text.txt"))
    request = replace(request_of(entry_data, tmp_path / "entry", text_words=1200, vocab_size=300), corpus=(str(text),))
    with monkeypatch.context() as patched, opened(request):
        patched.setattr("bertwright.babylm.text.build_corpus", interrupts)
        with pytest.raises(KeyboardInterrupt):
            make_corpus(request, draw_text(request))
    text.write_text(f"Another first document.\n\n{text.read_text('utf-8')}", "utf-8")
    assert draw_text(request) is None
    with pytest.raises(InputError, match=r"text\.txt: the text was changed after the vocabulary in .*tokenizer"):
        make_corpus(request, None)


def test_the_words_of_copies_and_of_validation_are_not_seen(own_corpus: Path, tmp_path: Path) -> None:
    """Models are kept at a million words where the run sees as many."""
    corpus = Corpus.open(with_words(Path(copytree(own_corpus, tmp_path / "corpus")), 1_250_000))
    kept = {int(number) for number in used_documents(corpus, part="held_out", held_out_share=0.2)}
    copies = {int(number) for number in corpus.duplicates}
    first, lengths, trained = corpus.document_first(), corpus.sentence_lengths(), 0
    for number in set(range(corpus.num_documents)) - kept - copies:
        trained += int(lengths[first[number] : first[number + 1]].sum())
    words = 1_250_000 * trained / corpus.num_tokens
    assert training_words(corpus, 0.2) == pytest.approx(words)
    request = EntryRequest(out=tmp_path, entry=EntrySettings(passes=1), text=TextSettings(), pretraining={})
    for seen, is_kept in ((999_999.0, False), (1_000_000.0, True)):
        settings = typed_settings(request, 1_250_000, 0.2, trained=seen)
        assert settings["checkpoints_by_words"] is is_kept


def test_notes_name_ties_and_only_what_was_measured(entry_data: Path, tmp_path: Path) -> None:
    request = replace(request_of(entry_data, tmp_path), blimp=entry_data / "blimp")
    assert results._notes(request, {"glue": {}}) == []
    whole = {"ties": 0, "pairs": 67_000, "absent": [], "same": []}
    about = "Minimal pairs: masking `piece`, fp32."
    assert results._notes(request, {"blimp": whole}) == [about, "BLiMP: 67,000 pairs."]
    part = {"ties": 1_200, "pairs": 2_000, "absent": ["passive_2", "wh_island"], "same": ["passive_1 324"]}
    kept = replace(request, blimp_pairs=tmp_path / "kept.json")
    assert results._notes(kept, {"blimp": part}) == [
        about,
        "BLiMP: 2,000 pairs, those that kept.json names.",
        "BLiMP: its mean lacks the paradigms passive_2, wh_island, which the data do not have.",
        "BLiMP: 1,200 pairs have two equal scores, and count as wrong.",
        "BLiMP: these pairs have the same sentence twice: passive_1 324.",
    ]


def test_the_help_has_the_defaults_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["babylm", "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(the two may be swapped), or none. (default: none)" in words


def lines_of(texts: list[str]) -> list[str]:
    return [line for text in texts for line in text.splitlines()]


def request_of(entry_data: Path, out: Path, **settings: Any) -> EntryRequest:
    return EntryRequest(
        out=out,
        entry=EntrySettings.model_validate(settings),
        text=TextSettings(),
        pretraining={"size": "1x64"},
        corpus=(str(entry_data / "text.txt"),),
    )


REFUSED: tuple[tuple[str, str], ...] = (
    ("--words 1k", "expected --corpus TEXT, or --mix SOURCE=FRACTION"),
    ("--corpus {text} --mix {text}=1 --words 1k", "expected --corpus TEXT, or --mix SOURCE=FRACTION"),
    ("--corpus absent.txt --words 1k", "absent.txt: no file or folder has this name"),
    ("--corpus {text} --words 1M", "words in 30 documents, expected at least 1M; add text, or lower --words"),
    ("--mix {text}=0.5 --words 1k", "expected fractions that sum to 1"),
    ("--corpus {corpus} --words 2M", "has 1,000,000 words, expected 2M (--words)"),
    ("--corpus {corpus} --words 900k", "has 1,000,000 words, expected 900k (--words)"),
    ("--corpus {corpus} --words 1M --vocab-size 123 --cased", "text; leave out --vocab-size, --cased"),
    ("--corpus {corpus} --words 1M --lines sentences", "has a vocabulary and its text; leave out --lines"),
    ("--corpus {text} --words 1k --system electra", "--system electra: an entry needs a masked LM"),
    ("--corpus {text} --words 1k --system gpt2", "--system gpt2: an entry needs a masked LM"),
    ("--corpus {text} --words 1k --blimp absent", "--blimp absent: there is no such file or folder"),
    ("--corpus {text} --words 1k --blimp {text}", "expected"),
    ("--corpus {text} --words 1k --supplement {data}", "expected files *.jsonl"),
    ("--corpus {text} --words 1k --blimp-pairs {text}", "needs --blimp"),
    ("--corpus {text} --words 1k --glue {blimp}", "expected the files of at least one task of GLUE"),
    ("--corpus {text} --words 1k --glue {broken}", "RTE/train.tsv:2: "),
    ("--corpus {text} --words none", "--words 'none': expected a number of words"),
)


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_bad_input_leaves_nothing(
    options: str, message: str, entry_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = entry_data / "broken"
    (broken / "glue" / "RTE").mkdir(parents=True, exist_ok=True)
    for name in ("train", "dev"):
        (broken / "glue" / "RTE" / f"{name}.tsv").write_text("sentence1\tsentence2\tlabel\nalone\n")
    names = {
        "text": entry_data / "text.txt",
        "corpus": entry_data / "corpus",
        "data": entry_data / "data",
        "blimp": entry_data / "blimp",
        "broken": broken,
    }
    assert entry_of(tmp_path / "entry", *options.format_map(names).split()) == 2
    assert message in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_a_size_that_is_none_is_refused_before_the_folder_is_made(
    entry_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["babylm", "--corpus", str(entry_data / "text.txt"), "--words", "1k", "--out", str(tmp_path / "entry")]
    assert main([*command, "--size", "2x30"]) == 2
    assert "2x30" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_what_nothing_was_made_with_may_change(entry_data: Path, tmp_path: Path) -> None:
    def begin(vocab_size: int, **pretraining: Any) -> None:
        request = request_of(entry_data, tmp_path, text_words=1000, vocab_size=vocab_size)
        with opened(replace(request, pretraining={"size": "1x64", **pretraining})):
            pass

    (tmp_path / ".lock").touch()  # a start that was killed at once
    begin(10)
    begin(200)
    (tmp_path / "tokenizer").mkdir()
    begin(200, batch_size=7)
    with pytest.raises(InputError, match=r"its entry was begun with --vocab-size 200, now it is 300; give the same"):
        begin(300, batch_size=7)
    with pytest.raises(InputError, match=r"its entry was begun with seed null, now it is 3"):  # it draws the documents
        begin(200, seed=3)
    (tmp_path / "pretraining").mkdir()
    write_json(tmp_path / "pretraining" / "run.json", {"kind": "pretrain"})
    with pytest.raises(InputError, match=r"its entry was begun with batch_size 7, now it is 8"):
        begin(200, batch_size=8)


def test_only_folders_named_after_words_are_checkpoints(tmp_path: Path) -> None:
    for name in ("10M", "2M", "notes", "1M.old"):
        (tmp_path / name).mkdir()
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "3M").touch()
    assert [path.name for path in words_folders(tmp_path)] == ["2M", "10M"]


@pytest.mark.parametrize("others", [[], ["--plan"]])
def test_an_occupied_folder_stays(
    others: list[str], entry_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal comes before the words of the text are counted."""
    (tmp_path / "mine.txt").write_text("mine")
    assert entry_of(tmp_path, "--corpus", str(entry_data / "text.txt"), *TEXT, *others) == 2
    printed = capsys.readouterr().err
    assert "exists already and is not an empty folder" in printed
    assert "counts the words" not in printed
    assert contents(tmp_path) == {"mine.txt": b"mine"}


def test_measurements_may_be_added_but_not_left_out(
    entry: Path,
    entry_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The card keeps its measurements while others are added, and a report that is missing is written."""
    out = Path(copytree(entry, tmp_path / "entry"))
    (out / "pretraining" / "report.html").unlink()
    corpus = ["--corpus", str(entry_data / "corpus"), "--words", "1M", "--epochs", "3"]
    options = measured(entry_data)
    without_glue = [*options[:-4], *options[-2:]]
    record = read_object(out / "entry.json")
    write_json(out / "entry.json", {**record, "glue": None})
    with monkeypatch.context() as patched:
        patched.setattr("bertwright.babylm.run.fine_tune", interrupts)
        assert entry_of(out, *corpus, *options) == 130
    assert "| BLiMP, mean of the paradigms |" in (out / "model" / "README.md").read_text("utf-8")
    assert entry_of(out, *corpus, *options) == 0
    gone: Any = SimpleNamespace(
        out=out, entry=EntrySettings(), settings=PretrainSettings(steps=1), glue_tasks=list, allow_other_numerics=False
    )
    glue = read_object(out / "results.json")["glue"]
    assert fine_tune(gone, out / "model") == glue != {}  # also where the files are gone
    assert read_object(out / "entry.json") == record
    assert (out / "pretraining" / "report.html").is_file()
    capsys.readouterr()
    ids = tmp_path / "pairs.json"
    ids.write_text(json.dumps({"transitive": ["0"]}))
    assert entry_of(out, *corpus, *options, "--blimp-pairs", str(ids)) == 2
    assert "its entry was begun with --blimp-pairs null, now it is" in capsys.readouterr().err
    assert read_object(out / "entry.json") == record
    assert entry_of(out, *corpus, *without_glue) == 2
    assert f"its entry was begun with --glue {json.dumps(record['glue'])[:20]}" in capsys.readouterr().err
    for others in ([], ["--plan"]):
        assert entry_of(out, *corpus[:-1], "4", *options, *others) == 2
        assert "its entry was begun with --epochs 3.0, now it is 4.0" in capsys.readouterr().err


def test_data_that_were_changed_since_give_no_mixed_entry(
    entry: Path, entry_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(copytree(entry, tmp_path / "entry"))
    for name in ("blimp", "supplement", "data", "corpus"):
        copytree(entry_data / name, tmp_path / name)
    replaced = json.dumps(str(entry_data))[1:-1], json.dumps(str(tmp_path))[1:-1]
    (out / "entry.json").write_text((out / "entry.json").read_text("utf-8").replace(*replaced), "utf-8")
    command = ["--corpus", str(tmp_path / "corpus"), "--words", "1M", "--epochs", "3", *measured(tmp_path)]
    before = contents(out)
    train = next((tmp_path / "data" / "glue").glob("*/train.tsv"))
    lines = train.read_text("utf-8").splitlines(keepends=True)
    train.write_text("".join([lines[0], *lines[:0:-1]]), "utf-8")
    assert entry_of(out, *command) == 2
    assert re.search(r"was fine-tuned on other files of .* remove .* to fine-tune again", capsys.readouterr().err)
    train.write_text("".join(lines), "utf-8")
    manifest = read_object(tmp_path / "corpus" / "manifest.json")
    write_json(tmp_path / "corpus" / "manifest.json", {**manifest, "fingerprint": "0" * 64})
    assert entry_of(out, *command) == 2
    capsys.readouterr()
    assert contents(out) == before
    write_json(tmp_path / "corpus" / "manifest.json", manifest)
    rmtree(out / "checkpoints" / "2M")
    curve = read_object(out / "results.json")["curve"]
    write_lines(tmp_path / "blimp" / "hypernym.jsonl", made_up_pairs("hypernym", 4))
    assert entry_of(out, *command) == 0
    assert "checkpoints 2M: are no longer there; what was measured of them before is kept" in capsys.readouterr().err
    results = read_object(out / "results.json")
    assert results["curve"]["blimp"][1] == curve["blimp"][1]
    assert [len(results["curve"]["phenomena"][name]) for name in ("hypernym", "argument_structure")] == [1, 2]
    assert "hypernym" in read_object(out / "blimp" / "1M" / "metrics.json")["paradigms"]  # as for the final model
    assert "hypernym" in (out / "blimp" / "part.jsonl").read_text("utf-8")
    assert "| 2M |" in (out / "model" / "README.md").read_text("utf-8")


def test_the_first_pairs_are_those_of_the_data() -> None:
    lines = made_up_pairs("transitive", 5)
    pairs = tuple(MinimalPair(line["pairID"], line["sentence_good"], line["sentence_bad"], "") for line in lines)
    paradigm = Paradigm("transitive", "argument_structure", pairs)
    assert [pair.id for pair in measures.first_pairs([paradigm], 3)[0].pairs] == ["0", "1", "2"]
    assert measures.first_pairs([paradigm], 0) == [paradigm]


def test_other_data_than_those_of_glue_are_named(tmp_path: Path) -> None:
    task, folder = PAPER_TASKS["qnli"], tmp_path / "data" / "glue" / "QNLI"
    folder.mkdir(parents=True)
    for name in ("train.derived.tsv", "dev.tsv"):
        (folder / name).write_text("index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n", "utf-8")
    (tmp_path / "run").mkdir()
    result = {"metric": "accuracy", "mean": 0.7, "sd": 0.0, "scores": [0.7]}
    write_json(tmp_path / "run" / "run.json", {"finished": True, "result": result})
    _, files = find_source(task, tmp_path / "data") or ("", {})
    request: Any = SimpleNamespace(
        **{"out": tmp_path, "glue": tmp_path / "data", "glue_data": tmp_path / "rows", "allow_other_numerics": False},
        entry=EntrySettings(),
        settings=PretrainSettings(steps=1),
        glue_tasks=lambda: [(task, files)],
        task_run=lambda _: tmp_path / "run",
    )
    glue = fine_tune(request, tmp_path / "model")
    assert results._notes(request, {"glue": glue})[1] == f"qnli: other data than GLUE's: {task.sources[1].note}."
