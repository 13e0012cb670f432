"""text → vocabulary → shards → encoder → task, in a few minutes and offline, with the gain from pre-training."""

import itertools
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from os.path import samefile
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
from bertwright.locks import is_held, locked_file
from bertwright.model.config import with_dropout
from bertwright.model.folder import open_model, save_model
from bertwright.objectives.masked_lm import open_pretrained
from bertwright.portable import replace_path
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
from bertwright.training.run_lock import is_locked

SEEDS = 5
TRAIN_SENTENCES = 50
"""Number of labelled sentences per class."""
_MARKER, _MADE_BY = "quickstart.txt", "made by: bertwright quickstart"
"""Name and first line of the file that marks a folder as a quickstart's own."""
_LOCK = ".quickstart.lock"
"""Name of the file whose lock the running quickstart holds."""
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
        raise InputError(f"--corpus {corpus}: lies in --out {out}, which will be renamed; choose another --out")
    start = time.monotonic()
    texts, task = _gather(corpus)
    _make_folder(out)
    with locked_file(out / _LOCK, f"{out}: another quickstart is working in this folder"):
        (out / _MARKER).write_text(f"{_MADE_BY}\n", "utf-8", newline="\n")
        return _run_stages(texts, task, corpus=corpus, minutes=minutes, out=out, start=start)


def _run_stages(
    texts: Iterable[str], task: LibraryTask | None, *, corpus: Path | None, minutes: float, out: Path, start: float
) -> dict[str, Any]:
    """Run the stages after the reading of the text; return the metrics and a text for people.

    start: time.monotonic() at the start of the command.
    """
    write_documents(texts, out / "text.txt")
    if task:
        (out / "task").mkdir()
        write_task(task, out / "task")
    say(f"[2/5] vocabulary and corpus: {(out / 'text.txt').stat().st_size / 1e6:.1f} MB of text")
    _build(out)
    pretraining_minutes = minutes * PRETRAINING_FRACTION
    say(f"[3/5] pre-training a small BERT for {pretraining_minutes:.1f} minutes: masked LM and next sentence")
    settings, numerics = _pretraining(pretraining_minutes, out)
    pretrained = pretrain(settings, corpus=out / "corpus", out=out / "pretraining", numerics=numerics)
    pretrained, signalled = with_pages(pretrained, out / "pretraining"), pretrained["signalled"]
    if pretrained["stopped"] or signalled:
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
    """Raise InputError for a file, and for a folder with files that is not an earlier quickstart's."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: expected a folder, and {out} is a file")
    if not out.exists() or not any(out.iterdir()):
        return
    marker = out / _MARKER
    if not (marker.is_file() and marker.read_bytes().startswith(_MADE_BY.encode())):
        raise InputError(f"{out}: holds files and is no folder of quickstart; choose another --out")
    if is_held(out / _LOCK) or any(is_locked(path) for path in out.iterdir()):
        raise InputError(f"{out}: another process works in this folder; wait for it, or choose another --out")
    if samefile(out, os.curdir) or os.path.ismount(out):
        raise InputError(f"{out}: holds an earlier quickstart and cannot be renamed; choose another --out")


def _make_folder(out: Path) -> None:
    """Make the folder; one of an earlier quickstart gets another name, with everything that a person put there."""
    _refuse_used(out)  # the reading of the text took a while
    if out.exists() and any(out.iterdir()):
        real = out.resolve()
        numbered = (real.with_name(f"{real.name}-{number}") for number in itertools.count(1))
        kept = next(path for path in numbered if not os.path.lexists(path))
        replace_path(real, kept)
        real.mkdir()
        say(f"{out}: the earlier quickstart is kept as {kept}")
    out.mkdir(parents=True, exist_ok=True)


def _gather(corpus: Path | None) -> tuple[Iterable[str], LibraryTask | None]:
    """Read the text; return its documents, and a task, or None where the text is too small for one."""
    if corpus is None:
        say("[1/5] reading the documentation on this machine (nothing is imported or run)")
        documentation = collect()
        task = make_task(documentation, train_sentences=TRAIN_SENTENCES, test_sentences=50, seed=0)
        return corpus_text(documentation, exclude_modules=task.held_out), task
    say(f"[1/5] reading {corpus}")
    own_text = read_own_text(corpus, train_sentences=TRAIN_SENTENCES, seed=0)
    return ("\n".join(sentences) for sentences in own_text.documents), own_text.task


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
    if "bag_of_words" in accuracy and accuracy["pretrained"] - accuracy["bag_of_words"] <= deviation["pretrained"]:
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
