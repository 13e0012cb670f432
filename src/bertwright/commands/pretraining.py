"""The commands quickstart, pretrain, fill and next-sentence: shards → encoder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from tyro.conf import Positional

from bertwright.errors import InputError

Result = Mapping[str, Any]
Name = TypeVar("Name", bound=str)


def quickstart(*, corpus: Path | None = None, minutes: float = 4.0, out: Path = Path("quickstart")) -> Result:
    """Learn a vocabulary, pre-train a small BERT, fine-tune it, and see what pre-training was worth.

    Args:
        corpus: your own text (a file or folder) in place of the documentation on this machine.
        minutes: about how long it may take.
        out: where everything is written; must be empty or absent.
    """
    from bertwright.recipes.quickstart import run_quickstart

    return run_quickstart(corpus=corpus, minutes=minutes, out=out)


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
    second_sentence: Literal["next", "order", "none"] = "next",
    no_next_sentence: bool = False,
    mask_units: Literal["piece", "word", "span"] = "piece",
    whole_word_mask: bool = False,
    static_masks: int = 0,
    mask_share: float = 0.15,
    mask_same_random: tuple[float, float, float] = (0.8, 0.1, 0.1),
    short_share: float = 0.1,
    seed: int = 0,
    evaluations: int = 20,
    save_minutes: float = 5.0,
    log_every: int = 50,
    micro_tokens: int = 8192,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    compile: bool = False,
    threads: int | None = None,
    allow_other_numerics: bool = False,
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
        second_sentence: does B follow A (next), were A and B swapped (order), or no B: masked LM alone (none).
        no_next_sentence: the same as --second-sentence none.
        mask_units: mask pieces, whole words, or spans of words.
        whole_word_mask: the same as --mask-units word.
        static_masks: repeat the pairs and masks of the first so many epochs; 0: new ones in each.
        mask_share: share of the pieces that are predicted.
        mask_same_random: shares of [MASK], of the same and of a random piece among them.
        short_share: share of documents that aim at shorter rows.
        seed: of everything random.
        evaluations: held-out measurements over the run.
        save_minutes: between checkpoints.
        log_every: steps between the lines of metrics.jsonl.
        micro_tokens: tokens computed at a time.
        precision: of the matrix products; auto measures the machine.
        compile: compile the step with torch.compile.
        threads: default: one per core.
        allow_other_numerics: resume on another kind of processor or torch, where the bits differ.
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
            second_sentence=_either("second-sentence", second_sentence, "next", no_next_sentence, "none"),
            short_share=short_share,
            static_masks=static_masks,
            masking=MaskingSettings(
                share=mask_share,
                mask=mask,
                same=same,
                random=random,
                units=_either("mask-units", mask_units, "piece", whole_word_mask, "word"),
            ),
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
        log_every=log_every,
        precision=precision,
        compile=compile,
        threads=threads,
    )
    folder = Path(held_out) if held_out and share is None else None
    return run_pretraining(
        settings,
        corpus=corpus,
        out=out,
        held_out=folder,
        init_from=init_from,
        resume=resume,
        allow_other_numerics=allow_other_numerics,
    )


def fill(text: Positional[str], /, *, model: str, top_k: int = 5) -> Result:
    """What stands behind each [MASK].

    Args:
        text: a text with [MASK] in it.
        model: MODEL: a pre-trained model folder or run folder.
        top_k: how many candidates.
    """
    from bertwright.model.folder import open_model
    from bertwright.prediction.classifier import open_tokenizer
    from bertwright.prediction.fill import fill as fill_masks
    from bertwright.prediction.fill import open_pretrained

    saved = open_model(model)
    found = fill_masks(open_pretrained(saved), open_tokenizer(saved), text, top_k=top_k)
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
    from bertwright.prediction.classifier import open_tokenizer
    from bertwright.prediction.next_sentence import next_sentence_probability, open_next_sentence

    saved = open_model(model)
    loaded = open_next_sentence(saved)
    return {"is_next": next_sentence_probability(loaded, open_tokenizer(saved), first, second)}


def _either(option: str, given: Name, default: Name, flagged: bool, flag: Name) -> Name:
    """What an option says, or the flag that was there before it; InputError where they say different things."""
    if flagged and given not in (default, flag):
        raise InputError(f"--{option} {given}: an older option given with it says {flag!r}; leave one of the two out")
    return flag if flagged else given


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
