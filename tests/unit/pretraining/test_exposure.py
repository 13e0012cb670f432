"""Words seen against the text and the rows themselves, budgets in words and epochs, and the models that are kept."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.corpus.shards import Corpus
from bertwright.model.folder import open_model
from bertwright.objectives.dataset import Examples, Spans
from bertwright.objectives.settings import ExampleSettings
from bertwright.pretraining import dry_run
from bertwright.pretraining.exposure import Exposure
from bertwright.pretraining.measure import Timings
from bertwright.pretraining.phases import Phase
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training import loop
from tests.support.folders import contents, read_jsonl, with_words, without_words

BASE: dict[str, Any] = {
    "phases": (Phase(length=16, share=0.5), Phase(length=32, share=0.5)),
    "batch_size": 4,
    "threads": 1,
    "precision": "fp32",
    "compile": "off",
    "examples": {"second_sentence": "none"},
}
OPTIONS = ["--lengths", "16:0.5,32:0.5", "--batch-size", "4", "--threads", "1", "--precision", "fp32"]
OPTIONS += ["--size", "tiny", "--second-sentence", "none"]


def settings_with(**changes: Any) -> PretrainSettings:
    return PretrainSettings.model_validate({**BASE, **changes})


def exposure_of(corpora: list[Corpus], rows: list[Any], ends: tuple[float, ...] = (1.0,)) -> Exposure:
    """Phases that end at these fractions of the steps."""

    def bounds(steps: int) -> list[tuple[int, int]]:
        last = [round(end * steps) for end in ends]
        return list(zip([0, *last[:-1]], last, strict=True))

    return Exposure(corpora, rows, bounds=bounds, batch_sizes=[4] * len(ends))


def rows_of(corpus: Corpus, length: int, **settings: Any) -> Examples:
    return Examples(corpus, ExampleSettings(**settings), length=length, seed=0)


@pytest.fixture(scope="module")
def counted(own_corpus: Path) -> Corpus:
    return Corpus.open(own_corpus)


@pytest.mark.parametrize("kind", ["rows", "spans", "spans with ends"])
def test_an_epoch_has_each_word_of_the_text_once(counted: Corpus, own_text: Path, kind: str) -> None:
    end_id = 3 if kind == "spans with ends" else None
    rows: Any = Spans(counted, length=32, seed=0, end_id=end_id)
    if kind == "rows":
        rows = rows_of(counted, 32, second_sentence="none")
    words = len(own_text.read_text("utf-8").split())
    exposure = exposure_of([counted], [rows])
    steps = rows.num_rows(0) // 4
    assert exposure.words(steps, steps) == pytest.approx(words * 4 * steps / rows.num_rows(0), abs=0.5)
    assert exposure.epochs(steps, steps) == [4 * steps / rows.num_rows(0)]
    assert exposure.words(0, steps) == 0


def test_random_second_sentences_are_seen_too(counted: Corpus) -> None:
    """Every sentence of every row of the plan counts, by a plain loop."""
    rows = rows_of(counted, 32)
    lengths = counted.sentence_lengths().tolist()
    planned = rows._plans.of(0).tolist()
    tokens = sum(sum(lengths[a : a + a_count]) + sum(lengths[b : b + b_count]) for a, a_count, b, b_count, _ in planned)
    assert rows.text_tokens() == tokens > 1.1 * counted.num_tokens
    steps = 10 * rows.num_rows(0)  # 40 epochs
    words = exposure_of([counted], [rows]).words(steps, steps)
    assert words == pytest.approx(40 * (counted.manifest.words or 0) * tokens / counted.num_tokens, abs=0.5)


def test_phases_add_up(counted: Corpus) -> None:
    short, long = (rows_of(counted, length, second_sentence="none") for length in (16, 32))
    exposure = exposure_of([counted], [short, long], (0.75, 1.0))
    words = counted.manifest.words or 0
    expected = [words * (4 * 30 / short.num_rows(0) + 4 * extra / long.num_rows(0)) for extra in (0, 7)]
    assert [exposure.words(done, 40) for done in (30, 37)] == pytest.approx(expected, abs=0.5)
    assert exposure.words(15, 40) == pytest.approx(expected[0] / 2, abs=0.5)


@pytest.mark.parametrize("budget", [{"words": 5000}, {"epochs": 2.0}, {"words": 5000, "epochs": 7}])
def test_a_budget_is_used_and_not_exceeded(counted: Corpus, budget: dict[str, Any]) -> None:
    rows = [rows_of(counted, length, second_sentence="none") for length in (16, 32)]
    exposure = exposure_of([counted], rows, (0.5, 1.0))
    steps = exposure.budget_steps(settings_with(**budget))
    assert steps is not None

    def used(steps: int) -> float:
        return exposure.words(steps, steps) / 5000 if "words" in budget else exposure.epochs(steps, steps)[0] / 2

    assert used(steps) <= 1 < used(steps + 1)


def test_a_rounded_sample_ends_with_its_epochs(counted: Corpus) -> None:
    """Ten times 9,990 words are 99,900: a budget of 100,000 words in ten epochs ends there."""
    rows = [rows_of(counted, 32, second_sentence="none")]
    exposure = exposure_of([counted], rows)
    words = counted.manifest.words or 0
    by_epochs = exposure.budget_steps(settings_with(epochs=10))
    assert exposure.budget_steps(settings_with(epochs=10, words=round(10 * words * 1.005))) == by_epochs


def run_with(corpus: Path, out: Path, *options: str) -> int:
    return main(["pretrain", "--corpus", str(corpus), "--out", str(out), *OPTIONS, *options])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--words 0", "--words '0': expected a number of words above 0, such as 10M"),
        ("--words 10X", "--words '10X': expected a number of words above 0, such as 10M"),
        ("--words=-5", "--words '-5': expected a number of words above 0, such as 10M"),
        ("--words 10", "--words 10: expected at least one step; 4 rows have "),
        ("--words 1M --epochs 3", "--words 1M --epochs 3: the training text read 3 times has "),
        ("--words 5k --steps 3", "give either --steps or --minutes, or --words, --epochs or both"),
        ("--words 5k --minutes 3", "give either --steps or --minutes, or --words, --epochs or both"),
        ("--epochs 0", "--epochs"),
        ("--words 5k --checkpoints-by-words", "and the first model is kept at 1M; leave the option out"),
        ("--minutes 5 --checkpoints-by-words", "--checkpoints-by-words needs --words, --epochs or --steps"),
    ],
)
def test_bad_budgets_are_refused(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    assert run_with(own_corpus, tmp_path / "run", *options.split()) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", ["--words 5k", "--epochs 1 --checkpoints-by-words"])
def test_a_corpus_without_counts_is_refused(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    corpus = without_words(Path(copytree(own_corpus, tmp_path / "corpus")))
    assert run_with(corpus, tmp_path / "run", *options.split()) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "needs a corpus whose words were counted, and its manifest.json has no number of words" in error
    assert "build the corpus again, or give --epochs or --steps in place of words" in error
    assert not (tmp_path / "run").exists()


def test_a_plan_says_words_and_epochs(
    own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = dict.fromkeys(("weights", "gradients", "moments", "measured_peak"), 1)
    timings = Timings(steps=(0.5, 1.0), evaluation=0.0, checkpoint=0.0)
    monkeypatch.setattr(dry_run, "_measure", lambda *_: (memory, timings))
    assert run_with(own_corpus, tmp_path / "run", "--words", "5k", "--plan", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert 4000 < plan["words"] <= 5000
    assert plan["epochs"] == pytest.approx(plan["words"] / (Corpus.open(own_corpus).manifest.words or 0), rel=1e-3)
    assert plan["exposure"] == f"{plan['words']:,} words of text, read {plan['epochs']:.4g} times"


@pytest.fixture
def large_words(own_corpus: Path, tmp_path: Path) -> Path:
    """The corpus as if its text had five million words."""
    return with_words(Path(copytree(own_corpus, tmp_path / "corpus")), 5_000_000)


def test_a_run_keeps_models_by_words(large_words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same in a run that was killed between two of them and resumed."""
    settings = settings_with(words=12_000_000, checkpoints_by_words=True, log_every=1)
    calm, torn = tmp_path / "calm", tmp_path / "torn"
    result = pretrain(settings, corpus=large_words, out=calm)
    assert 11_800_000 < result["words"] <= 12_000_000
    assert result["epochs"] == pytest.approx(result["words"] / 5e6, rel=1e-3)
    kept = sorted(path.name for path in (calm / "words").iterdir())
    assert kept == sorted(f"{words}M" for words in range(1, 11))
    seen = {line["step"]: line["words"] for line in read_jsonl(calm / "metrics.jsonl")}
    card = (calm / "words" / "3M" / "README.md").read_text("utf-8")
    step = int(card.partition("steps: ")[2].split()[0].replace(",", ""))
    assert seen[step] <= 3_000_000 < seen[step + 1]
    assert f"- exposure: {seen[step]:,} words of text, read {seen[step] / 5e6:.4g} times" in card
    assert open_model(str(calm / "words" / "3M")).architecture == open_model(str(calm)).architecture
    record = json.loads((calm / "run.json").read_text("utf-8"))
    assert record["exposure"] == {name: result[name] for name in ("words", "epochs")}

    really = loop.Loop.step

    def dies(self: Any, step: int, batches: Any) -> None:
        if step == 35:
            raise KeyboardInterrupt
        really(self, step, batches)

    monkeypatch.setattr(loop.Loop, "is_time_to_save", lambda self, done: done == 20)
    with monkeypatch.context() as patched:
        patched.setattr(loop.Loop, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            pretrain(settings, corpus=large_words, out=torn)
    pretrain(settings, corpus=large_words, out=torn, resume=True)
    assert contents(torn / "words") == contents(calm / "words")


def test_the_end_of_a_run_is_a_mark(large_words: Path, tmp_path: Path) -> None:
    pretrain(settings_with(words=2_000_000, checkpoints_by_words=True), corpus=large_words, out=tmp_path / "run")
    weights = [tmp_path / "run" / name / "model.safetensors" for name in ("words/1M", "words/2M", "model")]
    assert weights[1].read_bytes() == weights[2].read_bytes() != weights[0].read_bytes()


def test_marks_are_those_of_the_challenge(tmp_path: Path, own_corpus: Path) -> None:
    folder = with_words(Path(copytree(own_corpus, tmp_path / "corpus")), 10_000_000)
    opened = Corpus.open(folder)
    exposure = exposure_of([opened], [rows_of(opened, 16, second_sentence="none")])
    steps = exposure.budget_steps(settings_with(words=1_000_000_000))
    assert steps is not None
    marks = exposure.marks(steps)
    millions = [*range(1, 11), *range(20, 101, 10), *range(200, 1001, 100)]
    assert [words // 10**6 for words in marks] == millions
    assert marks[10**9] == steps
    assert all(exposure.words(step, steps) <= words for words, step in marks.items())
