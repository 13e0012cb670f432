"""text → vocabulary → shards → encoder → task, in a few minutes and offline, with the gain from pre-training."""

import math
import shutil
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertwright.console import say, say_once
from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError, MissingExtra, Stopped
from bertwright.finetuning.baselines import bag_of_words_baseline, majority_baseline
from bertwright.finetuning.evaluate import evaluate_task
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.config import with_dropout
from bertwright.model.folder import open_model, save_model
from bertwright.objectives.masked_lm import open_pretrained
from bertwright.pretraining.choose import plain_settings
from bertwright.pretraining.held_out import held_out_fraction
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import TUNED_DROPOUT, PretrainSettings
from bertwright.pretraining.setup import build_model, encoder_config
from bertwright.quickstart.docstrings import collect, corpus_text, write_documents
from bertwright.quickstart.task import LibraryTask, make_task, read_own_text, write_task
from bertwright.reports.report import with_pages
from bertwright.tasks.classification.examples import TextExamples, learn, read_examples
from bertwright.tasks.classification.spec import CLASSIFY, ClassificationTask, with_columns
from bertwright.tasks.fill_mask import fill_masks
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_paragraphs
from bertwright.text.wordpiece import VOCABULARY, Tokenizer, train_wordpiece
from bertwright.training.hardware import Numerics

SEEDS = 5
TRAIN_SENTENCES = 50
"""Number of labelled sentences per class."""
_OUTPUTS = (
    "quickstart.txt",
    "text.txt",
    "task",
    "tokenizer",
    "corpus",
    "pretraining",
    "untrained",
    "finetuned-scratch",
    "finetuned-pretrained",
)
"""Files and folders that the quickstart writes. The first one marks a folder as its own."""
PRETRAINING_FRACTION = 0.55
"""Fraction of the time for pre-training; the rest is for reading, the corpus and ten fine-tunings."""


def run_quickstart(*, corpus: Path | None, minutes: float, out: Path) -> dict[str, Any]:
    """Run all stages in about `minutes`, with everything in `out`; return the metrics and a text for people.

    corpus: a person's text, or None for the documentation on this machine. Raises InputError for bad arguments and for
    too little text, and Stopped where a person stops it.
    """
    if not 0.5 <= minutes < math.inf:
        raise InputError(f"--minutes: expected 0.5 or more, got {minutes}")
    _refuse_used(out)
    if corpus is not None and corpus.resolve().is_relative_to(out.resolve()):
        raise InputError(f"--corpus {corpus}: lies in --out {out}, which will be emptied; choose another --out")
    start = time.monotonic()
    task = _gather(corpus, out)
    say(f"[2/5] vocabulary and corpus: {(out / 'text.txt').stat().st_size / 1e6:.1f} MB of text")
    _build(out)
    pretraining_minutes = minutes * PRETRAINING_FRACTION
    say(f"[3/5] pre-training a small BERT for {pretraining_minutes:.1f} minutes: masked LM and next sentence")
    settings, numerics = _pretraining(pretraining_minutes, out)
    pretrained = pretrain(settings, corpus=out / "corpus", out=out / "pretraining", numerics=numerics)
    pretrained = with_pages(pretrained, out / "pretraining")
    if pretrained["stopped"]:
        raise Stopped(f"stopped during pre-training; {_starts_again(out)}")
    results: dict[str, Any] = {"out": str(out), "held_out": pretrained["held_out"], "curve": pretrained["curve"]}
    if task:
        say(f"[4/5] fine-tuning {SEEDS} seeds from the pre-trained encoder and {SEEDS} from scratch")
        _save_untrained(settings, out)
        results |= _compare(task, out)
    say("[5/5] filling masks")
    results["filled"] = _fill_masks(out)
    results["minutes"] = (time.monotonic() - start) / 60
    return {**results, "text": _text(results, task, settings, out, own_text=corpus is not None)}


def _starts_again(out: Path) -> str:
    return f"`bertwright quickstart --out {out}` starts again"


def _refuse_used(out: Path) -> None:
    """Raise InputError for a file, and for a folder that holds anything but the files of an earlier quickstart."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: expected a folder, and {out} is a file")
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    if names - set(_OUTPUTS) or (names and _OUTPUTS[0] not in names):
        raise InputError(f"{out}: holds other files than quickstart's own; choose another --out")


def _empty(out: Path) -> None:
    """Make the folder, or remove the files of an earlier quickstart from it, and mark it as the quickstart's own."""
    out.mkdir(parents=True, exist_ok=True)
    names = [name for name in reversed(_OUTPUTS) if (out / name).exists()]
    for name in names:
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if names:
        say(f"{out}: the files of an earlier quickstart are replaced")
    (out / _OUTPUTS[0]).write_text("made by: bertwright quickstart\n", "utf-8", newline="\n")


def _gather(corpus: Path | None, out: Path) -> LibraryTask | None:
    """Read the text, then write text.txt and task/; return the task, or None where the text is too small for one."""
    if corpus is None:
        say("[1/5] reading the documentation on this machine (nothing is imported or run)")
        documentation = collect()
        drawn = make_task(documentation, train_sentences=TRAIN_SENTENCES, test_sentences=50, seed=0)
        task: LibraryTask | None = drawn
        texts = corpus_text(documentation, exclude_modules=drawn.held_out)
    else:
        say(f"[1/5] reading {corpus}")
        own_text = read_own_text(corpus, train_sentences=TRAIN_SENTENCES, seed=0)
        task = own_text.task
        texts = ("\n".join(sentences) for sentences in own_text.documents)
    _empty(out)
    write_documents(texts, out / "text.txt")
    if task:
        (out / "task").mkdir()
        write_task(task, out / "task")
    return task


def _build(out: Path) -> None:
    settings = TextSettings(lines="sentences")
    paragraphs = read_paragraphs([out / "text.txt"], settings)
    train_wordpiece(paragraphs, vocab_size=VOCABULARY).save(out / "tokenizer")
    build_corpus([out / "text.txt"], tokenizer=out / "tokenizer", out=out / "corpus", settings=settings)


def _pretraining(minutes: float, out: Path) -> tuple[PretrainSettings, Numerics | None]:
    """Return the settings that `pretrain --minutes M --held-out F` chooses for the corpus in `out`, and numerics."""
    corpus = out / "corpus"
    typed = {
        "minutes": minutes,
        "held_out_share": held_out_fraction([corpus], 0.02),
        "held_out_rows": 512,
        "evaluations": 6,
    }
    return plain_settings(typed, corpus={corpus: 1.0}, out=out / "pretraining")


def _save_untrained(settings: PretrainSettings, out: Path) -> None:
    """Save the model with which pre-training started, so that "from scratch" differs only in the pre-training."""
    data = Corpus.open(out / "corpus")
    config = encoder_config(settings, data.tokenizer.vocab_size)
    model = build_model(settings, config, None, data)
    tokenizer = out / "tokenizer"
    tuned = with_dropout(config, TUNED_DROPOUT)
    save_model(out / "untrained", model, config=tuned, tokenizer=tokenizer, architecture="BertForPreTraining")


def _compare(task: LibraryTask, out: Path) -> dict[str, Any]:
    """Return test accuracies of majority, bag of words, scratch and pretrained: means and deviations over the seeds."""
    spec = with_columns(CLASSIFY, text=("sentence",), label="label")
    folder = out / "task"
    learned = learn(spec, folder / "train.tsv")
    train, test = (read_examples(learned, folder / name) for name in ("train.tsv", "test.tsv"))
    accuracy = _baseline_accuracies(learned, train, test)
    deviation: dict[str, float] = {}
    said: set[str] = set()  # messages about the same files, which would repeat for each seed
    settings = FinetuneSettings(seeds=SEEDS)
    for name, source in (("scratch", str(out / "untrained")), ("pretrained", str(out / "pretraining"))):
        try:
            result = finetune(settings, spec, model=source, data=folder, out=out / f"finetuned-{name}")
        except Stopped:
            raise Stopped(f"stopped during fine-tuning; {_starts_again(out)}") from None
        with say_once(said):
            values = [
                evaluate_task(learned, model=seed["model"], data=folder / "test.tsv")["accuracy"]
                for seed in result["seeds"]
            ]
        accuracy[name], deviation[name] = statistics.fmean(values), statistics.stdev(values)
    return {"accuracy": accuracy, "sd": deviation, "classes": len(task.labels), "test_sentences": len(test)}


def _baseline_accuracies(task: ClassificationTask, train: TextExamples, test: TextExamples) -> dict[str, float]:
    """Return the accuracies of the commonest label and of a bag of words, which is left out without scikit-learn."""
    accuracy = {"majority": majority_baseline(task, train, test)["accuracy"]}
    try:
        accuracy["bag_of_words"] = bag_of_words_baseline(task, train, test)["accuracy"]
    except MissingExtra as error:
        say(f"{error}; the table has no bag of words")
    return accuracy


def _fill_masks(out: Path) -> list[dict[str, Any]]:
    """Fill a mask in three sentences of the corpus with the pre-trained model."""
    saved = open_model(str(out / "pretraining"))
    model, tokenizer = open_pretrained(saved), Tokenizer.load(saved.tokenizer)
    sentences = [
        line
        for line in (out / "text.txt").read_text("utf-8").splitlines()
        if 8 <= len(line.split()) <= 16 and "[" not in line
    ]
    filled = []
    for sentence in sentences[:: max(1, len(sentences) // 3)][:3]:
        words = sentence.split()
        middle = len(words) // 2
        masked = " ".join([*words[:middle], "[MASK]", *words[middle + 1 :]])
        best = fill_masks(model, tokenizer, masked, top_k=4)[0]
        filled.append(
            {"text": masked, "was": words[middle], "pieces": best.pieces, "probabilities": best.probabilities}
        )
    return filled


def _text(
    results: Mapping[str, Any], task: LibraryTask | None, settings: PretrainSettings, out: Path, *, own_text: bool
) -> str:
    metrics = results["held_out"]
    lines = [
        "",
        f"Masked LM on validation text: loss {metrics['mlm_loss']:.2f} nats, accuracy {metrics['mlm_accuracy']:.1%}; "
        f"next sentence: accuracy {metrics['nsp_accuracy']:.1%}",
        "",
    ]
    if task:
        lines += _table(results, task, own_text=own_text)
    lines += [
        "Filled masks",
        *(f"  {mask['text']}   (was: {mask['was']})\n    {_candidates(mask)}" for mask in results["filled"]),
        "",
    ]
    lines += [*_by_hand(out, task, settings), "", f"{results['minutes']:.1f} minutes in all"]
    return "\n".join(lines)


def _candidates(mask: Mapping[str, Any]) -> str:
    pairs = zip(mask["pieces"], mask["probabilities"], strict=True)
    return "  ".join(f"{piece} {probability:.2f}" for piece, probability in pairs)


def _table(results: Mapping[str, Any], task: LibraryTask, *, own_text: bool) -> list[str]:
    """Return the table of accuracies, and a sentence about the gain from pre-training."""
    accuracy, deviation = results["accuracy"], results["sd"]
    names = {
        "majority": "always the commonest",
        "bag_of_words": "bag of words + logistic regression",
        "scratch": "BERT from scratch",
        "pretrained": "BERT, pre-trained",
    }
    question = "Which library does this sentence describe?"
    if own_text:
        question = "Which document does this sentence come from?"
    lines = [
        f"{question} {len(task.labels)} classes, {len(task.train)} labelled sentences, "
        f"{results['test_sentences']} to test, {SEEDS} seeds",
    ]
    for key in accuracy:
        spread = f" ± {deviation[key]:.1%}" if key in deviation else ""
        lines.append(f"  {names[key]:36}{accuracy[key]:6.1%}{spread}")
    gain = accuracy["pretrained"] - accuracy["scratch"]
    noise = max(deviation["pretrained"], deviation["scratch"])
    verdict = f"Pre-training was worth {100 * gain:+.1f} points over the same model from scratch."
    if gain <= noise:
        verdict = f"Pre-training did not help here: {100 * gain:+.1f} points, no more than the deviation of the seeds."
    if "bag_of_words" in accuracy and accuracy["pretrained"] - accuracy["bag_of_words"] <= noise:
        verdict += " It is no better than the bag of words: give more text and more minutes."
    return [*lines, verdict, ""]


def _by_hand(out: Path, task: LibraryTask | None, settings: PretrainSettings) -> list[str]:
    """Return the list of outputs, and the commands that do the same step by step."""
    lines = [
        f"Everything lies in {out}/: text.txt, tokenizer/, corpus/, pretraining/ (with loss.png), task/, finetuned-*/",
        "The same by hand:",
        f"  bertwright tokenizer train {out}/text.txt --out tok",
        f"  bertwright corpus build {out}/text.txt --lines sentences --tokenizer tok --out corpus",
        f"  bertwright pretrain --corpus corpus --out run --minutes {settings.minutes:.4g} "
        f"--held-out {settings.held_out_share:g}",
    ]
    if task:
        lines += [
            f"  bertwright finetune classify --model run --data {out}/task --text-column sentence --out tuned "
            f"--seeds {SEEDS}",
            f"  bertwright predict --model tuned --input {out}/task/test.tsv --output answers.tsv",
        ]
    return [*lines, '  bertwright fill --model run "The function returns a [MASK] of values."']
