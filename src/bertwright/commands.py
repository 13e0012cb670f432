"""One function per command: its options, then one call into the package. Heavy imports stay inside the functions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from bertwright.errors import InputError

Result = Mapping[str, Any]
Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


def quickstart(*, corpus: Path | None = None, minutes: float = 4.0, out: Path = Path("quickstart")) -> Result:
    """Learn a vocabulary, pre-train a small BERT, fine-tune it, and see what pre-training was worth.

    Args:
        corpus: your own text (a file or folder) in place of the documentation on this machine.
        minutes: about how long it may take.
        out: where everything is written; must be empty or absent.
    """
    from bertwright.recipes.quickstart import run_quickstart

    return run_quickstart(corpus=corpus, minutes=minutes, out=out)


def tokenizer_train(
    inputs: Positional[tuple[str, ...]],
    /,
    *,
    vocab_size: int,
    out: Path,
    cased: bool = False,
    strip_accents: bool = False,
    documents: Literal["blank-lines", "file"] = "blank-lines",
    field: str = "text",
) -> Result:
    """Learn a WordPiece vocabulary; the same text gives the same bytes.

    Args:
        inputs: files, folders or globs: plain text, JSON lines, WikiExtractor output; .gz, .bz2, .xz.
        vocab_size: pieces in all, special tokens included (the paper: 30,000).
        out: the tokenizer folder to write.
        cased: keep capitals and accents.
        strip_accents: take accents off as the released uncased vocabularies do (this decomposes Hangul too).
        documents: what parts documents of plain text.
        field: the field of JSON lines that holds the text.
    """
    from bertwright.text.documents import TextSettings, find_inputs, read_all
    from bertwright.text.tokenizer import train_tokenizer

    _refuse_existing(out)
    settings = TextSettings(documents=documents, field=field)
    texts = (text for document in read_all(find_inputs(inputs), settings) for text in document.paragraphs)
    made = train_tokenizer(texts, vocab_size=vocab_size, cased=cased, strip_accents=strip_accents)
    made.save(out)
    return {"tokenizer": str(out), "vocab_size": made.vocab_size, "hash": made.hash}


def tokenizer_import(vocabulary: Positional[Path], /, *, out: Path, cased: bool = False) -> Result:
    """Take a released vocab.txt with Google's rules.

    Args:
        vocabulary: the vocab.txt file.
        out: the tokenizer folder to write.
        cased: for a cased vocabulary; without it text is lower-cased and accents are taken off.
    """
    from bertwright.text.tokenizer import import_vocabulary

    _refuse_existing(out)
    made = import_vocabulary(vocabulary, cased=cased)
    made.save(out)
    return {"tokenizer": str(out), "vocab_size": made.vocab_size, "hash": made.hash}


def corpus_build(
    inputs: Positional[tuple[str, ...]],
    /,
    *,
    tokenizer: Path,
    out: Path,
    workers: int | None = None,
    documents: Literal["blank-lines", "file"] = "blank-lines",
    lines: Literal["text", "wrapped", "sentences"] = "text",
    field: str = "text",
    language: str = "en",
) -> Result:
    """Turn text into tokenised shards; the number of workers changes no byte.

    Args:
        inputs: files, folders or globs: plain text, JSON lines, WikiExtractor output; .gz, .bz2, .xz.
        tokenizer: a tokenizer folder.
        out: the corpus folder to write; must be empty or absent.
        workers: processes that tokenise (default: one per core).
        documents: what parts documents of plain text.
        lines: what a line of plain text is: a paragraph, a piece of a wrapped block, or one sentence.
        field: the field of JSON lines that holds the text.
        language: of the text, for the sentence rules.
    """
    from bertwright.corpus.build import build_corpus
    from bertwright.text.documents import TextSettings

    settings = TextSettings(documents=documents, lines=lines, field=field, language=language)
    manifest = build_corpus(inputs, tokenizer=tokenizer, out=out, settings=settings, workers=workers)
    names = ("documents", "sentences", "tokens", "dropped_documents", "fingerprint")
    return {"corpus": str(out), **{name: getattr(manifest, name) for name in names}, "shards": len(manifest.shards)}


def corpus_inspect(corpus: Positional[Path], /) -> Result:
    """What a corpus holds: sizes, lengths, [UNK] share, a sample, and warnings where it will hurt."""
    from bertwright.corpus.report import inspect_corpus

    report = inspect_corpus(corpus)
    return {**report.model_dump(mode="json"), "text": report.render()}


def corpus_verify(corpus: Positional[Path], /) -> Result:
    """Check every byte of a corpus against its manifest."""
    from bertwright.corpus.shards import verify

    checked = verify(corpus)
    return {"corpus": str(corpus), "good": True, "documents": checked.num_documents, "tokens": checked.num_tokens}


def pretrain(
    *,
    corpus: Path,
    out: Path,
    size: str = "tiny",
    steps: int | None = None,
    minutes: float | None = None,
    held_out: str | None = None,
    resume: bool = False,
    init_from: str | None = None,
    lengths: str = "128:0.9,512:0.1",
    batch_size: int = 256,
    learning_rate: float = 1e-4,
    warmup: float = 0.01,
    weight_decay: float = 0.01,
    beta2: float = 0.999,
    clip: float = 1.0,
    bias_correction: bool = False,
    initializer_range: float = 0.02,
    start: Literal["random", "local"] = "random",
    activation: Literal["gelu", "gelu_tanh"] = "gelu",
    dropout: float = 0.1,
    no_next_sentence: bool = False,
    whole_word_mask: bool = False,
    mask_share: float = 0.15,
    mask_same_random: tuple[float, float, float] = (0.8, 0.1, 0.1),
    short_share: float = 0.1,
    seed: int = 0,
    evaluations: int = 20,
    save_minutes: float = 5.0,
    micro_tokens: int = 8192,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    compile: bool = False,
    threads: int | None = None,
) -> Result:
    """Pre-train an encoder with masked LM and next-sentence prediction; the defaults are the paper's figures.

    Args:
        corpus: a corpus folder.
        out: the run folder.
        size: tiny, mini, small, medium, base, large, or LAYERSxHIDDEN such as 4x256.
        steps: optimiser steps (give this or --minutes).
        minutes: training time; the steps that fit are measured before the first one.
        held_out: a corpus folder to measure on, or a share of the documents such as 0.01.
        resume: continue the run in --out, or start it where there is none.
        init_from: a model to start from.
        lengths: tokens per row and share of the steps, in order.
        batch_size: rows per step (the paper: 256).
        learning_rate: its peak.
        warmup: share of the steps over which it rises.
        weight_decay: decoupled; not on LayerNorm and biases.
        beta2: of Adam.
        clip: global gradient norm.
        bias_correction: Adam's correction of its early averages (the original has none).
        initializer_range: deviation of the initial weights; 0.02 suits 768 wide, about 0.05 suits 128.
        start: what the first layer attends to at first: anything, or its neighbours (leaves the plateau sooner).
        activation: exact GELU, or its tanh approximation.
        dropout: of hidden states and attention.
        no_next_sentence: masked LM alone, on full-length segments.
        whole_word_mask: mask whole words.
        mask_share: share of the pieces that are predicted.
        mask_same_random: shares of [MASK], of the same and of a random piece among them.
        short_share: share of documents that aim at shorter rows.
        seed: of everything random.
        evaluations: held-out measurements over the run.
        save_minutes: between checkpoints.
        micro_tokens: tokens computed at a time.
        precision: of the matrix products; auto measures the machine.
        compile: compile the step with torch.compile.
        threads: default: one per core.
    """
    from bertwright.objectives.examples import ExampleSettings
    from bertwright.objectives.mlm import MaskingSettings
    from bertwright.recipes.pretrain import Phase, PretrainSettings
    from bertwright.recipes.pretrain import pretrain as run_pretraining
    from bertwright.training.optimizer import OptimizerSettings

    share = _share(held_out)
    mask, same, random = mask_same_random
    settings = PretrainSettings(
        size=size,
        phases=tuple(Phase(length=length, share=part) for length, part in _lengths(lengths)),
        batch_size=batch_size,
        micro_tokens=micro_tokens,
        steps=steps,
        minutes=minutes,
        seed=seed,
        examples=ExampleSettings(
            next_sentence=not no_next_sentence,
            short_share=short_share,
            masking=MaskingSettings(share=mask_share, mask=mask, same=same, random=random, whole_word=whole_word_mask),
        ),
        optimizer=OptimizerSettings(
            learning_rate=learning_rate,
            warmup=warmup,
            weight_decay=weight_decay,
            beta2=beta2,
            clip=clip,
            bias_correction=bias_correction,
        ),
        activation=activation,
        dropout=dropout,
        initializer_range=initializer_range,
        start=start,
        held_out_share=share or 0.0,
        evaluations=evaluations,
        save_minutes=save_minutes,
        precision=precision,
        compile=compile,
        threads=threads,
    )
    folder = Path(held_out) if held_out and share is None else None
    return run_pretraining(settings, corpus=corpus, out=out, held_out=folder, init_from=init_from, resume=resume)


def finetune(
    task: Positional[str],
    /,
    *,
    model: str,
    data: Path,
    out: Path,
    epochs: int = 3,
    batch_size: int = 32,
    learning_rate: float | None = None,
    seeds: int = 1,
    head_learning_rate: float | None = None,
    layer_decay: float = 1.0,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    no_bias_correction: bool = False,
    max_length: int = 128,
    text_column: Several = (),
    label_column: str | None = None,
    tokenizer: Path | None = None,
    first_seed: int = 0,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    threads: int | None = None,
    resume: bool = False,
) -> Result:
    """Fine-tune a model on a labelled table; the best epoch on dev is kept.

    Args:
        task: sst2, cola, mrpc, qqp, stsb, mnli, qnli, rte, wnli; or classify, regress for any table.
        model: MODEL: a model folder, a run folder, or random:SIZE (with --tokenizer).
        data: a folder with train and dev files, or one file (a tenth of it is then kept for measuring).
        out: the run folder.
        epochs: over the training data.
        batch_size: examples per step.
        learning_rate: its peak (default: 3e-5 from 768 wide on, 3e-4 below).
        seeds: how many runs, each with its own head and order; their mean and deviation are reported.
        head_learning_rate: another rate for the new layer.
        layer_decay: each layer's rate as a share of the one above it.
        warmup: share of the steps over which the rate rises.
        weight_decay: decoupled; not on LayerNorm and biases.
        no_bias_correction: Adam as the original code has it.
        max_length: tokens per example.
        text_column: the column of the text; twice for pairs.
        label_column: the column of the label or number.
        tokenizer: the tokenizer or model folder whose vocabulary random:SIZE takes.
        first_seed: the first seed.
        precision: of the matrix products; auto measures the machine.
        threads: default: one per core.
        resume: continue the run in --out.
    """
    from bertwright.recipes.finetune import FinetuneSettings
    from bertwright.recipes.finetune import finetune as run_finetuning
    from bertwright.tasks.classify import get_task, with_columns

    settings = FinetuneSettings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        head_learning_rate=head_learning_rate,
        layer_decay=layer_decay,
        warmup=warmup,
        weight_decay=weight_decay,
        bias_correction=not no_bias_correction,
        max_length=max_length,
        seeds=seeds,
        first_seed=first_seed,
        precision=precision,
        threads=threads,
    )
    chosen = with_columns(get_task(task), text=text_column, label=label_column)
    return run_finetuning(settings, chosen, model=model, data=data, out=out, tokenizer=tokenizer, resume=resume)


def evaluate(
    task: Positional[str],
    /,
    *,
    model: str,
    data: Path | None = None,
    corpus: Path | None = None,
    rows: int = 2048,
    length: int = 128,
    text_column: Several = (),
    label_column: str | None = None,
) -> Result:
    """A fine-tuned model's metrics on a task, or the held-out figures of a pre-trained one (TASK = pretraining).

    Args:
        task: a task's name, or pretraining.
        model: MODEL: a model folder or a run folder.
        data: for a task: a folder with dev files, or one file.
        corpus: for pretraining: the held-out corpus.
        rows: for pretraining: how many rows, from the first on.
        length: for pretraining: tokens per row.
        text_column: the column of the text; twice for pairs.
        label_column: the column of the label or number.
    """
    from bertwright.recipes.evaluate import evaluate_pretraining, evaluate_task

    if task == "pretraining":
        if corpus is None:
            raise InputError("evaluate pretraining needs --corpus DIR, the held-out corpus")
        return evaluate_pretraining(model, corpus, rows=rows, length=length)
    from bertwright.tasks.classify import get_task, with_columns

    chosen = with_columns(get_task(task), text=text_column, label=label_column)
    if data is None:
        raise InputError(f"evaluate {task} needs --data PATH, a folder with dev files or one file")
    return evaluate_task(chosen, model=model, data=data)


def predict(*, model: str, input: str = "-", output: str = "-", text_column: Several = ()) -> Result | None:
    """Answer every row of a table: order and fields are kept, label and probabilities (or score) are added.

    Args:
        model: MODEL: a fine-tuned model folder or run folder.
        input: a tsv, csv or JSON-lines file, or - for standard input.
        output: the file to write, or - for standard output.
        text_column: the column of the text where it is called otherwise than in training; twice for pairs.
    """
    from bertwright.recipes.evaluate import predict as answer

    found = answer(model, input, output, text=text_column)
    return None if output == "-" else found


def fill(text: Positional[str], /, *, model: str, top_k: int = 5) -> Result:
    """What stands behind each [MASK].

    Args:
        text: a text with [MASK] in it.
        model: MODEL: a pre-trained model folder or run folder.
        top_k: how many candidates.
    """
    from bertwright.model.folder import open_model
    from bertwright.prediction.fill import fill as fill_masks
    from bertwright.prediction.fill import open_pretrained
    from bertwright.text.tokenizer import Tokenizer

    saved = open_model(model)
    found = fill_masks(open_pretrained(saved), Tokenizer.load(saved.tokenizer), text, top_k=top_k)
    masks = [
        [{"piece": piece, "probability": share} for piece, share in zip(one.pieces, one.probabilities, strict=True)]
        for one in found
    ]
    shown = "\n".join("  ".join(f"{entry['piece']} {entry['probability']:.3f}" for entry in mask) for mask in masks)
    return {"masks": masks, "text": shown}


def next_sentence(first: Positional[str], second: Positional[str], /, *, model: str) -> Result:
    """The probability that the second sentence follows the first.

    Args:
        first: sentence A.
        second: sentence B.
        model: MODEL: a model folder or run folder, pre-trained with next-sentence prediction.
    """
    from bertwright.model.folder import open_model
    from bertwright.prediction.fill import open_pretrained
    from bertwright.prediction.next_sentence import next_sentence_probability
    from bertwright.text.tokenizer import Tokenizer

    saved = open_model(model)
    loaded = open_pretrained(saved, next_sentence=True)
    return {"is_next": next_sentence_probability(loaded, Tokenizer.load(saved.tokenizer), first, second)}


def _refuse_existing(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already and is not empty; choose another --out")


def _share(held_out: str | None) -> float | None:
    """A share such as 0.01; None where `held_out` is a folder or absent."""
    try:
        share = float(held_out or "folder")
    except ValueError:
        return None
    if not 0 < share < 1:
        raise InputError(f"--held-out {held_out}: a share lies between 0 and 1; else give a corpus folder")
    return share


def _lengths(text: str) -> list[tuple[int, float]]:
    """'128:0.9,512:0.1' → [(128, 0.9), (512, 0.1)]; a lone '128' is all the steps."""
    try:
        parts = [part.split(":") for part in text.split(",")]
        return [(int(part[0]), float(part[1]) if len(part) > 1 else 1.0) for part in parts]
    except ValueError:
        raise InputError(f"--lengths {text!r}: write LENGTH:SHARE, parted by commas, as in 128:0.9,512:0.1") from None
