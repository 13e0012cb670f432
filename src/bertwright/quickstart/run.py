"""The whole line in a few minutes, offline: text → vocabulary → shards → encoder → task, and what it was worth."""

import math
import shutil
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.console import say, without_repeats
from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError, Stopped
from bertwright.model.folder import open_model, save_model
from bertwright.model.config import with_dropout
from bertwright.objectives.settings import ExampleSettings
from bertwright.objectives.dataset import held_out_split
from bertwright.objectives.settings import MaskingSettings
from bertwright.tasks.fill_mask import fill_masks
from bertwright.objectives.masked_lm import open_pretrained
from bertwright.quickstart.task import read_own_text, write_documents
from bertwright.finetuning.evaluate import evaluate_task
from bertwright.finetuning.run import finetune
from bertwright.quickstart.docstrings import collect, write_corpus
from bertwright.quickstart.task import LibraryTask, make_task, write_task
from bertwright.pretraining.setup import build_model, encoder_config
from bertwright.pretraining.run import pretrain
from bertwright.reports.report import with_pages
from bertwright.pretraining.settings import TUNED_DROPOUT, Phase, PretrainSettings
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.baselines import bag_of_words_baseline, majority_baseline
from bertwright.tasks.classification.spec import CLASSIFY, ClassificationTask, get_task, with_columns
from bertwright.tasks.classification.encoding import score_values
from bertwright.tasks.classification.examples import learn, read_examples
from bertwright.text.documents import TextSettings, read_all
from bertwright.text.wordpiece import Tokenizer, train_tokenizer
from bertwright.training.optimizer import OptimizerSettings

VOCABULARY = 8000
SEEDS = 5
TRAIN_SENTENCES = 50
"""Labelled sentences per class."""
EPOCHS = 15
"""Of fine-tuning."""
_MADE = (
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
PRETRAINING_SHARE = 0.55
"""Of the minutes; the rest is reading, the corpus and ten fine-tunings."""


def run_quickstart(*, corpus: Path | None, minutes: float, out: Path) -> dict[str, Any]:
    """Run all stages in about `minutes`, everything under `out`; returns the figures and a text for people."""
    if not 0.5 <= minutes < math.inf:
        raise InputError(f"--minutes {minutes}: at least 0.5")
    _refuse_used(out)
    if corpus is not None and corpus.resolve().is_relative_to(out.resolve()):
        raise InputError(f"--corpus {corpus}: lies in --out {out}, which is made anew; choose another --out")
    start = time.monotonic()
    task = _gather(corpus, out)
    say(f"[2/5] vocabulary and corpus: {(out / 'text.txt').stat().st_size / 1e6:.1f} MB of text")
    _build(out)
    say(f"[3/5] pre-training a tiny BERT for {minutes * PRETRAINING_SHARE:.1f} minutes: masked LM and next sentence")
    settings = _pretraining(minutes * PRETRAINING_SHARE, held_out_share=_held_out_share(out / "corpus"))
    pretrained = pretrain(settings, corpus=out / "corpus", out=out / "pretraining")
    pretrained = with_pages(pretrained, out / "pretraining")
    if pretrained["stopped"]:
        raise Stopped(f"stopped during pre-training; {_begins_again(out)}")
    found: dict[str, Any] = {"out": str(out), "held_out": pretrained["held_out"], "curve": pretrained["curve"]}
    if task:
        say(f"[4/5] fine-tuning {SEEDS} seeds from the pre-trained encoder and {SEEDS} from scratch")
        _save_untrained(settings, out)
        found |= _compare(task, out)
    say("[5/5] filling masks")
    found["filled"] = _filled(out)
    found["minutes"] = (time.monotonic() - start) / 60
    return {**found, "text": _text(found, task, settings, out, own=corpus)}


def _begins_again(out: Path) -> str:
    return f"`bertwright quickstart --out {out}` begins again"


def _refuse_used(out: Path) -> None:
    """InputError for a folder that holds anything else than what an earlier quickstart made."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; --out names a folder")
    found = {path.name for path in out.iterdir()} if out.exists() else set()
    if found - set(_MADE) or (found and _MADE[0] not in found):
        raise InputError(f"{out}: holds other files than quickstart's own; choose another --out")


def _begin_anew(out: Path) -> None:
    """An empty folder, in place of what an earlier quickstart made there."""
    out.mkdir(parents=True, exist_ok=True)
    found = [name for name in reversed(_MADE) if (out / name).exists()]
    for name in found:
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if found:
        say(f"{out}: what an earlier quickstart made there is made anew")
    (out / _MADE[0]).write_text("made by: bertwright quickstart\n", "utf-8")


def _gather(corpus: Path | None, out: Path) -> LibraryTask | None:
    """Write text.txt and task/ once all is read; returns the task, or None where the text gives none."""
    documentation, own = None, None
    if corpus is None:
        say("[1/5] reading the documentation on this machine (nothing is imported or run)")
        documentation = collect()
        task: LibraryTask | None = make_task(documentation, train_sentences=TRAIN_SENTENCES, test_sentences=50, seed=0)
    else:
        say(f"[1/5] reading {corpus}")
        own = read_own_text(corpus, train_sentences=TRAIN_SENTENCES, seed=0)
        task = own.task
    if task:
        score_values(CLASSIFY, np.zeros(1), np.zeros(1))  # asks for the metrics' libraries
    _begin_anew(out)
    if own:
        write_documents(own.documents, out / "text.txt")
    elif documentation and task:
        write_corpus(documentation, out / "text.txt", exclude_modules=task.held_out)
    if task:
        (out / "task").mkdir()
        write_task(task, out / "task")
    return task


def _build(out: Path) -> None:
    settings = TextSettings(lines="sentences")
    texts = (text for document in read_all([out / "text.txt"], settings) for text in document.paragraphs)
    train_tokenizer(texts, vocab_size=VOCABULARY).save(out / "tokenizer")
    build_corpus([out / "text.txt"], tokenizer=out / "tokenizer", out=out / "corpus", settings=settings)


def _held_out_share(corpus: Path) -> float:
    """The smallest of a few shares that keeps at least two documents for measuring and two for training."""
    first = Corpus.open(corpus).document_first()
    for share in (0.02, 0.1, 0.2, 0.35, 0.5):
        held_out = held_out_split(first, part="held_out", held_out_share=share).size
        if held_out >= 2 and first.size - 1 - held_out >= 2:
            return share
    raise InputError(f"{corpus}: {first.size - 1} documents are too few; blank lines part the documents of a text")


def _pretraining(minutes: float, *, held_out_share: float) -> PretrainSettings:
    """What a few minutes can carry: small steps, more masks, no dropout, Muon, a start at the neighbours."""
    return PretrainSettings(
        size="tiny",
        phases=(Phase(length=64, share=1.0),),
        batch_size=32,
        minutes=minutes,
        examples=ExampleSettings(masking=MaskingSettings(share=0.3)),
        optimizer=OptimizerSettings(method="muon", learning_rate=2e-3, warmup=0.1, bias_correction=True),
        dropout=0.0,
        initializer_range=0.05,
        start="local",
        held_out_share=held_out_share,
        held_out_rows=512,
        evaluations=6,
    )


def _save_untrained(settings: PretrainSettings, out: Path) -> None:
    """The model as pre-training began it: "from scratch" differs in nothing but the pre-training."""
    data = Corpus.open(out / "corpus")
    config = encoder_config(settings, data.tokenizer.vocab_size)
    model = build_model(settings, config, None, data)
    tokenizer = out / "tokenizer"
    tuned = with_dropout(config, TUNED_DROPOUT)
    save_model(out / "untrained", model, config=tuned, tokenizer=tokenizer, architecture="BertForPreTraining")


def _task_spec() -> ClassificationTask:
    return with_columns(get_task("classify"), text=("sentence",), label="label")


def _compare(task: LibraryTask, out: Path) -> dict[str, Any]:
    """Test accuracies of majority, bag of words, from scratch and pre-trained; mean and deviation over the seeds."""
    spec = _task_spec()
    folder = out / "task"
    learned = learn(spec, folder / "train.tsv")
    train, test = (read_examples(learned, folder / name) for name in ("train.tsv", "test.tsv"))
    accuracy = {
        "majority": majority_baseline(learned, train, test)["accuracy"],
        "bag_of_words": bag_of_words_baseline(learned, train, test)["accuracy"],
    }
    deviation: dict[str, float] = {}
    said: set[str] = set()  # of the same files, for each seed
    settings = FinetuneSettings(epochs=EPOCHS, batch_size=16, learning_rate=5e-4, seeds=SEEDS, max_length=64)
    for name, source in (("scratch", str(out / "untrained")), ("pretrained", str(out / "pretraining"))):
        try:
            result = finetune(settings, spec, model=source, data=folder, out=out / f"finetuned-{name}")
        except Stopped:
            raise Stopped(f"stopped during fine-tuning; {_begins_again(out)}") from None
        with without_repeats(said):
            values = [
                evaluate_task(learned, model=seed["model"], data=folder / "test.tsv")["accuracy"]
                for seed in result["seeds"]
            ]
        accuracy[name], deviation[name] = statistics.fmean(values), statistics.stdev(values)
    return {"accuracy": accuracy, "sd": deviation, "classes": len(task.labels), "test_sentences": len(test)}


def _filled(out: Path) -> list[dict[str, Any]]:
    """Masks filled by the pre-trained model, in sentences of its own text's end."""
    saved = open_model(str(out / "pretraining"))
    model, tokenizer = open_pretrained(saved), Tokenizer.load(saved.tokenizer)
    sentences = [
        line
        for line in (out / "text.txt").read_text("utf-8").splitlines()
        if 8 <= len(line.split()) <= 16 and "[" not in line
    ]
    shown = []
    for sentence in sentences[:: max(1, len(sentences) // 3)][:3]:
        words = sentence.split()
        place = len(words) // 2
        masked = " ".join([*words[:place], "[MASK]", *words[place + 1 :]])
        one = fill_masks(model, tokenizer, masked, top_k=4)[0]
        shown.append({"text": masked, "was": words[place], "pieces": one.pieces, "probabilities": one.probabilities})
    return shown


def _text(
    found: Mapping[str, Any], task: LibraryTask | None, settings: PretrainSettings, out: Path, *, own: Path | None
) -> str:
    held = found["held_out"]
    lines = [
        "",
        f"Held-out masked LM: loss {held['mlm_loss']:.2f} nats, accuracy {held['mlm_accuracy']:.1%}; "
        f"next sentence: accuracy {held['nsp_accuracy']:.1%}",
        "",
    ]
    if task:
        lines += _table(found, task, own=own)
    lines += [
        "Filled masks",
        *(f"  {one['text']}   (was: {one['was']})\n    {_candidates(one)}" for one in found["filled"]),
        "",
    ]
    lines += [*_places(out, task, settings), "", f"{found['minutes']:.1f} minutes in all"]
    return "\n".join(lines)


def _candidates(one: Mapping[str, Any]) -> str:
    return "  ".join(f"{piece} {share:.2f}" for piece, share in zip(one["pieces"], one["probabilities"], strict=True))


def _table(found: Mapping[str, Any], task: LibraryTask, *, own: Path | None) -> list[str]:
    accuracy, deviation = found["accuracy"], found["sd"]
    names = {
        "majority": "always the commonest",
        "bag_of_words": "bag of words + logistic regression",
        "scratch": "tiny BERT from scratch",
        "pretrained": "tiny BERT, pre-trained",
    }
    question = "Which document does this sentence come from?" if own else "Which library does this sentence describe?"
    lines = [
        f"{question} {len(task.labels)} classes, {len(task.train)} labelled sentences, "
        f"{found['test_sentences']} to test, {SEEDS} seeds",
    ]
    for key, name in names.items():
        spread = f" ± {deviation[key]:.1%}" if key in deviation else ""
        lines.append(f"  {name:36}{accuracy[key]:6.1%}{spread}")
    gain = accuracy["pretrained"] - accuracy["scratch"]
    noise = max(deviation["pretrained"], deviation["scratch"])
    verdict = f"Pre-training was worth {100 * gain:+.1f} points over the same model from scratch."
    if gain <= noise:
        verdict = f"Pre-training did not help here: {100 * gain:+.1f} points, within the seeds' deviation or below it."
    if accuracy["pretrained"] < accuracy["bag_of_words"]:
        verdict += " The bag of words is still ahead: more text and more minutes are what it takes."
    return [*lines, verdict, ""]


def _places(out: Path, task: LibraryTask | None, settings: PretrainSettings) -> list[str]:
    lines = [
        f"Everything lies in {out}/: text.txt, tokenizer/, corpus/, pretraining/ (with loss.png), task/, finetuned-*/",
        "The same by hand:",
        f"  bertwright tokenizer train {out}/text.txt --vocab-size {VOCABULARY} --out tok",
        f"  bertwright corpus build {out}/text.txt --lines sentences --tokenizer tok --out corpus",
        f"  bertwright pretrain --corpus corpus --out run --minutes {settings.minutes:.4g} "
        f"--held-out {settings.held_out_share:g} --lengths 64 --batch-size 32 \\",
        "    --optimizer muon --learning-rate 2e-3 --warmup 0.1 --bias-correction --mask-share 0.3 --dropout 0 \\",
        "    --initializer-range 0.05 --start local",
    ]
    if task:
        lines += [
            f"  bertwright finetune classify --model run --data {out}/task --text-column sentence --out tuned \\",
            f"    --epochs {EPOCHS} --batch-size 16 --learning-rate 5e-4 --max-length 64 --seeds {SEEDS}",
            f"  bertwright predict --model tuned --input {out}/task/test.tsv --output answers.tsv",
        ]
    return [*lines, '  bertwright fill --model run "The function returns a [MASK] of values."']
