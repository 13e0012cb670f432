"""The commands quickstart, pretrain, fill and next-sentence: shards → encoder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tyro.conf import Positional, UseAppendAction, arg

from bertwright.console import say
from bertwright.errors import InputError

Result = Mapping[str, Any]
Name = TypeVar("Name", bound=str)
System = Literal["bert", "bert-left", "bert-right", "gpt", "lstm-left", "lstm-right"]

_GIVEN = arg(help_behavior_hint="")
"""An option that is None unless a person gives it; its default, or a recipe's figure, stands in the settings."""
Several = Annotated[tuple[str, ...], UseAppendAction]
Text = Annotated[str | None, _GIVEN]
Int = Annotated[int | None, _GIVEN]
Float = Annotated[float | None, _GIVEN]


def quickstart(*, corpus: Path | None = None, minutes: float = 4.0, out: Path = Path("quickstart")) -> Result:
    """Learn a vocabulary, pre-train a small BERT, fine-tune it, and see what pre-training was worth.

    Args:
        corpus: your own text (a file or folder) in place of the documentation on this machine.
        minutes: about how long it may take.
        out: where everything is written: absent, empty, or an earlier quickstart's, which is made anew.
    """
    from bertwright.quickstart.run import run_quickstart

    return run_quickstart(corpus=corpus, minutes=minutes, out=out)


def pretrain(
    *,
    corpus: Several,
    out: Path,
    recipe: Text = None,
    plan: bool = False,
    system: Annotated[System | None, _GIVEN] = None,
    size: Text = None,
    steps: Int = None,
    minutes: Float = None,
    held_out: Text = None,
    resume: bool = False,
    init_from: Text = None,
    lengths: Text = None,
    batch_size: Int = None,
    optimizer: Annotated[Literal["adamw", "muon"] | None, _GIVEN] = None,
    learning_rate: Float = None,
    muon_rate: Float = None,
    warmup: Float = None,
    schedule: Annotated[Literal["linear", "cosine"] | None, _GIVEN] = None,
    weight_decay: Float = None,
    beta2: Float = None,
    clip: Float = None,
    bias_correction: bool = False,
    no_bias_correction: bool = False,
    initializer_range: Float = None,
    start: Annotated[Literal["random", "local", "matching"] | None, _GIVEN] = None,
    activation: Annotated[Literal["gelu", "gelu_tanh"] | None, _GIVEN] = None,
    dropout: Float = None,
    second_sentence: Annotated[Literal["next", "order", "none"] | None, _GIVEN] = None,
    no_next_sentence: bool = False,
    mask_units: Annotated[Literal["piece", "word", "span"] | None, _GIVEN] = None,
    whole_word_mask: bool = False,
    static_masks: Int = None,
    mask_share: Float = None,
    mask_same_random: Annotated[tuple[float, float, float] | None, _GIVEN] = None,
    short_share: Float = None,
    seed: Int = None,
    evaluations: Int = None,
    snapshots: Text = None,
    save_minutes: Float = None,
    keep: Int = None,
    log_every: Int = None,
    micro_tokens: Int = None,
    precision: Annotated[Literal["auto", "fp32", "bf16"] | None, _GIVEN] = None,
    compile: Annotated[Literal["auto", "on", "off"] | None, _GIVEN] = None,
    activation_checkpointing: bool = False,
    skip_loss_spikes: bool = False,
    threads: Int = None,
    device: Annotated[Literal["cpu", "cuda"] | None, _GIVEN] = None,
    allow_other_numerics: bool = False,
    sharding: Literal["ddp", "fsdp2"] = "ddp",
) -> Result:
    """Pre-train BERT with masked LM and next-sentence prediction, or a language model; the defaults are the paper's.

    Args:
        corpus: a corpus folder; several times, as FOLDER=WEIGHT, for rows of several in shares of the weights.
        out: the run folder.
        recipe: settings by name: paper-base, paper-large, paper-gpt, two-cores or two-hours; every other
            option beats them.
        plan: print steps, epochs, hours, disk and memory of the run, and do not begin it.
        system: what to train: bert; its blocks looking to one side alone; gpt; an LSTM to one side (default: bert).
        size: tiny to large, LAYERSxHIDDEN such as 4x256 with heads 64 wide, or LAYERSxHIDDENxHEADS; --init-from brings
            its own (default: tiny).
        steps: optimiser steps (give this or --minutes).
        minutes: training time; the steps that fit are measured before the first one.
        held_out: a corpus folder to measure on, or a share of the documents such as 0.01.
        resume: continue the run in --out, or start it where there is none.
        init_from: a model to start from: a model folder, a published one too, or a run folder.
        lengths: tokens per row and share of the steps, in order (default: 128:0.9,512:0.1).
        batch_size: rows per step (default: 256).
        optimizer: of the blocks' matrices: adamw, as the paper, or muon; all else learns by AdamW (default: adamw).
        learning_rate: its peak (default: 1e-4).
        muon_rate: the peak of Muon's rate (default: 0.006).
        warmup: share of the steps over which it rises (default: 0.01).
        schedule: how it falls then, as BERT's (linear) or as GPT-1's (cosine) (default: linear).
        weight_decay: decoupled; not on LayerNorm and biases (default: 0.01).
        beta2: of Adam (default: 0.999).
        clip: global gradient norm (default: 1.0).
        bias_correction: Adam's correction of its early averages (the original has none).
        no_bias_correction: without it, where a recipe has it.
        initializer_range: deviation of the initial weights; 0.02 suits 768 wide, about 0.05 suits 128; --init-from
            brings its own (default: 0.02).
        start: what attention begins at: neighbours (local), also equal pieces (matching), nothing (default: random).
        activation: exact GELU, or its tanh approximation; --init-from brings its own (default: gelu).
        dropout: of hidden states and attention in pre-training (default: 0.1); fine-tuning takes 0.1 all the same.
        second_sentence: does B follow A (next), were A and B swapped (order), or no B (none) (default: next).
        no_next_sentence: the same as --second-sentence none: masked LM alone, on full-length segments.
        mask_units: mask pieces, whole words, or spans of words (default: piece).
        whole_word_mask: the same as --mask-units word.
        static_masks: repeat the pairs and masks of the first so many epochs; 0: new ones in each (default: 0).
        mask_share: share of the pieces that are predicted (default: 0.15).
        mask_same_random: shares of [MASK], of the same and of a random piece among them (default: 0.8 0.1 0.1).
        short_share: share of documents that aim at shorter rows (default: 0.1).
        seed: of everything random (default: 0).
        evaluations: held-out measurements over the run (default: 20).
        snapshots: shares of the steps after which the model is kept as it is then, such as 0.1,0.5.
        save_minutes: between checkpoints (default: 5.0).
        keep: how many checkpoints stay, the newest ones (default: 2).
        log_every: steps between the lines of metrics.jsonl (default: 50).
        micro_tokens: tokens computed at a time (default: 8192).
        precision: of the matrix products; auto measures the machine (default: auto).
        compile: the step, with torch.compile; auto tries it in runs of an hour or more (default: auto).
        activation_checkpointing: compute layers anew in backward: less memory, more time, the same numbers.
        skip_loss_spikes: leave out up to ten updates whose loss is not finite or leapt up, instead of stopping.
        threads: one per core where not given.
        device: what computes: the processors (cpu), or a GPU for each process (cuda) (default: cpu).
        allow_other_numerics: resume on another kind of processor or torch, or with another --device,
            --micro-tokens or --activation-checkpointing, where the bits differ; the run goes on with those from then
            on.
        sharding: of the processes that torchrun starts, each holds the model (ddp) or a share of it (fsdp2).
    """
    from bertwright.pretraining.settings import resolve_settings

    share = _share(held_out)
    mask, same, random = mask_same_random or (None, None, None)
    units = _either("mask-units", mask_units, whole_word_mask, "word")
    masking = {"share": mask_share, "mask": mask, "same": same, "random": random, "units": units}
    given = {
        "system": system,
        "size": size,
        "phases": _lengths(lengths) if lengths is not None else None,
        "batch_size": batch_size,
        "micro_tokens": micro_tokens,
        "steps": steps,
        "minutes": minutes,
        "seed": seed,
        "examples": {
            "second_sentence": _either("second-sentence", second_sentence, no_next_sentence, "none"),
            "static_masks": static_masks,
            "short_share": short_share,
            "masking": masking,
        },
        "optimizer": {
            "method": optimizer,
            "learning_rate": learning_rate,
            "muon_rate": muon_rate,
            "warmup": warmup,
            "schedule": schedule,
            "weight_decay": weight_decay,
            "beta2": beta2,
            "clip": clip,
            "bias_correction": _switch("bias-correction", bias_correction, no_bias_correction),
        },
        "activation": activation,
        "dropout": dropout,
        "initializer_range": initializer_range,
        "start": start,
        "held_out_share": share,
        "evaluations": evaluations,
        "snapshots": _shares(snapshots) if snapshots is not None else None,
        "save_minutes": save_minutes,
        "keep": keep,
        "log_every": log_every,
        "precision": precision,
        "compile": compile,
        "activation_checkpointing": activation_checkpointing or None,
        "skip_loss_spikes": skip_loss_spikes or None,
        "threads": threads,
        "device": device,
    }
    settings = resolve_settings(recipe, given, begins_anew=init_from is None)
    folder = Path(held_out) if held_out and share is None else None
    if evaluations and not (folder or settings.held_out_share):
        say(f"--evaluations {evaluations}: without --held-out (a corpus folder or a share of it) nothing is measured")
    if plan:
        from bertwright.pretraining.dry_run import plan_pretraining
        from bertwright.training.distributed import refuse_several

        refuse_several("--plan")
        return plan_pretraining(settings, corpus=_corpora(corpus), out=out, held_out=folder, init_from=init_from)
    from bertwright.pretraining.run import pretrain as run_pretraining
    from bertwright.reports.report import with_pages
    from bertwright.training.distributed import init_distributed, is_restart

    with init_distributed(settings.device, sharding=sharding) as ranks:
        result = run_pretraining(
            settings,
            corpus=_corpora(corpus),
            out=out,
            held_out=folder,
            init_from=init_from,
            resume=resume or is_restart(),
            allow_other_numerics=allow_other_numerics,
            ranks=ranks,
            sharding=sharding,
        )
    return with_pages(result, out)


def join(left: Positional[str], right: Positional[str], /, *, out: Path) -> Result:
    """Two language models side by side, as ELMo: one model, whose states are those of both.

    Args:
        left: the left-to-right one: a model folder or run folder of bert-left or lstm-left.
        right: the right-to-left one, bert-right or lstm-right, with the same tokenizer.
        out: the model folder to write.
    """
    from bertwright.pretraining.elmo import join as join_models

    return join_models(left, right, out)


def fill(text: Positional[str], /, *, model: str, top_k: int = 5) -> Result:
    """What stands behind each [MASK].

    Args:
        text: a text with [MASK] in it.
        model: MODEL: a pre-trained model folder or run folder, or small-wiki, which comes with the program.
        top_k: how many candidates.
    """
    from bertwright.model.folder import open_model
    from bertwright.objectives.masked_lm import open_pretrained
    from bertwright.tasks.binding import open_tokenizer
    from bertwright.tasks.fill_mask import fill_masks
    from bertwright.text.open_tokenizer import wordpiece

    saved = open_model(model)
    loaded = open_pretrained(saved)
    words = wordpiece(open_tokenizer(saved), place=saved.place, advice="only a BERT fills gaps")
    found = fill_masks(loaded, words, text, top_k=top_k)
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
    from bertwright.tasks.binding import open_tokenizer
    from bertwright.tasks.fill_mask import next_sentence_probability, open_next_sentence

    saved = open_model(model)
    loaded = open_next_sentence(saved)
    return {"is_next": next_sentence_probability(loaded, open_tokenizer(saved), first, second)}


def _either(option: str, given: Name | None, flagged: bool, flag: Name) -> Name | None:
    """What an option says, or the flag that was there before it; InputError where they say different things."""
    if flagged and given not in (None, flag):
        raise InputError(f"--{option} {given}: an older option given with it says {flag!r}; leave one of the two out")
    return flag if flagged else given


def _corpora(given: tuple[str, ...]) -> dict[Path, float]:
    from bertwright.objectives.batches import parse_weights

    try:
        weights = parse_weights(given)
    except ValueError as error:
        raise InputError(f"--corpus {' '.join(given)}: {error}; write FOLDER=WEIGHT, such as wiki=0.7") from None
    corpora = {Path(folder): weight for folder, weight in weights}
    if not given or len(corpora) < len(given):
        raise InputError(f"--corpus {' '.join(given) or '(none)'}: name one corpus folder, or several different ones")
    return corpora


def _share(held_out: str | None) -> float | None:
    """A share such as 0.01; None where `held_out` is a folder or absent."""
    if held_out == "":
        raise InputError("--held-out '': a corpus folder or a share of the documents such as 0.01")
    try:
        share = float(held_out or "folder")
    except ValueError:
        return None
    if not 0 < share < 1:
        raise InputError(f"--held-out {held_out}: a share lies between 0 and 1; else give a corpus folder")
    return share


def _shares(text: str) -> list[float]:
    """'0.1,0.5' → two shares of the steps."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share < 1 for share in shares):
        raise InputError(f"--snapshots {text!r}: write shares of the steps between 0 and 1, such as 0.1,0.5")
    return shares


def _switch(name: str, on: bool, off: bool) -> bool | None:
    """What a pair of flags says; None where neither was given."""
    if on and off:
        raise InputError(f"give either --{name} or --no-{name}")
    return on if on or off else None


def _lengths(text: str) -> list[dict[str, float]]:
    """'128:0.9,512:0.1' → two phases; a lone '128' is all the steps."""
    try:
        parts = [part.split(":") for part in text.split(",")]
        if any(len(part) > 2 for part in parts):
            raise ValueError
        return [{"length": int(part[0]), "share": float(part[1]) if len(part) > 1 else 1.0} for part in parts]
    except ValueError:
        raise InputError(f"--lengths {text!r}: write LENGTH:SHARE, parted by commas, as in 128:0.9,512:0.1") from None
