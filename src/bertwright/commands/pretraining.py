"""The commands quickstart, pretrain, join, fill and next-sentence: shards → encoder."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional

from bertwright.commands import CommandResult
from bertwright.commands.arguments import Repeatable, ShardingOption, TrackOption
from bertwright.commands.options import SettingsOptions
from bertwright.console import say
from bertwright.errors import InputError
from bertwright.pretraining.settings import (
    ADAPTED,
    PLAIN,
    RECIPES,
    PretrainSettings,
    merged,
    requested_values,
    resolve_settings,
)

if TYPE_CHECKING:
    from bertwright.training.hardware import Numerics


def quickstart_command(
    *,
    corpus: Path | None = None,
    minutes: float = 4.0,
    out: Path = Path("quickstart"),
    track: TrackOption = (),
) -> CommandResult:
    """Learn a vocabulary, pre-train a small BERT, fine-tune it, and compare it with one that was not pre-trained.

    Args:
        corpus: A file or folder of your own text, instead of the documentation on this machine.
        minutes: Approximate run time in minutes.
        out: Folder for all results: absent, empty, or an earlier quickstart's, which is renamed to OUT-1.
    """
    from bertwright.quickstart.run import run_quickstart
    from bertwright.training.tracked_run import track_with

    with track_with(track):
        return run_quickstart(corpus=corpus, minutes=minutes, out=out)


def pretrain_command(
    *,
    corpus: Repeatable,
    out: Path,
    recipe: str | None = None,
    held_out: str | None = None,
    init_from: str | None = None,
    extend: Path | None = None,
    resume: bool = False,
    plan: bool = False,
    settings: Annotated[Mapping[str, Any], SettingsOptions(PretrainSettings, RECIPES, PLAIN, ADAPTED)],
    no_next_sentence: bool = False,
    whole_word_mask: bool = False,
    allow_other_numerics: bool = False,
    sharding: ShardingOption = "ddp",
    track: TrackOption = (),
) -> CommandResult:
    """Pre-train BERT with masked LM and next-sentence prediction, or a language model.

    Settings that are not given are chosen from the corpus, the machine and the time, and printed in one line.

    Args:
        corpus: Corpus folder, or its URL. Several as FOLDER=WEIGHT: rows are drawn from each in proportion to its
            weight.
        out: Run folder, or a URL such as s3://bucket/run: checkpoints are then uploaded while the run goes on.
        recipe: Settings in place of the chosen ones: those of the papers (paper-base, paper-large, paper-gpt), or of
            small-wiki (two-hours). Every other option overrides them; --recipe NAME --help shows them as defaults.
        held_out: Validation data: a corpus folder, or a fraction of the documents such as 0.01.
        init_from: Model to start from: a model folder, also a published one, or a run folder.
        extend: Run folder of a run with --schedule wsd. The new run has its settings, continues from its last step at
            the peak learning rate, and ends at --steps, --words or --epochs.
        resume: Continue the run in --out, or start it where there is none.
        plan: Print steps, epochs, hours, disk and memory of the run without starting it.
        no_next_sentence: The same as --second-sentence none: masked LM alone, on full-length segments.
        whole_word_mask: The same as --mask-units word.
        allow_other_numerics: Resume on another kind of processor or torch, or with another --device,
            --micro-tokens or --activation-checkpointing. Results then differ in their last bits.
    """
    settings = _with_short_forms(settings, no_next_sentence=no_next_sentence, whole_word_mask=whole_word_mask)
    corpora = corpora_of(corpus)
    settings, folder = with_held_out(settings, held_out, corpora)
    if init_from:
        from bertwright.pretraining.init_from import with_system_of

        settings = with_system_of(init_from, settings)
    unadapted = resolve_settings(recipe, settings, from_model=init_from is not None)
    source: Any = {"corpus": corpora, "out": out, "init_from": init_from}
    data = {**source, "held_out": folder}
    chosen = partial(_chosen_settings, recipe, settings, extend=extend, **source)
    if plan:
        from bertwright.pretraining.dry_run import plan_pretraining
        from bertwright.training.distributed import refuse_several

        refuse_several("--plan")
        run_settings, numerics = chosen(resume=resume)
        _say_unused_evaluations(settings, run_settings, folder)
        return plan_pretraining(run_settings, **data, extend=extend, numerics=numerics)
    from bertwright.pretraining.run import pretrain
    from bertwright.reports.report import with_pages
    from bertwright.training.distributed import init_distributed, is_restart
    from bertwright.training.run_folder import refuse_used
    from bertwright.training.tracked_run import track_with

    with track_with(track), init_distributed(unadapted.device, sharding=sharding) as ranks:
        resume = resume or is_restart()
        refuse_used(out, resume=resume, ranks=ranks)
        run_settings, numerics = chosen(resume=resume, ranks=ranks)
        _say_unused_evaluations(settings, run_settings, folder)
        start: Any = {"resume": resume, "allow_other_numerics": allow_other_numerics, "numerics": numerics}
        result = pretrain(run_settings, **data, **start, extend=extend, ranks=ranks, sharding=sharding)
    return with_pages(result, out)


def _say_unused_evaluations(typed: Mapping[str, Any], settings: PretrainSettings, folder: Path | None) -> None:
    """Print a line where evaluations are asked for, and the run has no data for validation."""
    if typed.get("evaluations") and not (folder or settings.held_out_share):
        say(f"--evaluations {settings.evaluations}: there is no validation data; add --held-out FOLDER or FRACTION")


def _chosen_settings(
    recipe: str | None,
    typed: Mapping[str, Any],
    *,
    out: Path,
    init_from: str | None,
    extend: Path | None,
    resume: bool,
    **more: Any,
) -> tuple[PretrainSettings, "Numerics | None"]:
    """Return the settings of a run, and the numerics by which they were chosen, if they were.

    more: further arguments of `plain_settings`.
    """
    from bertwright.pretraining.choose import plain_settings, with_noted_rows
    from bertwright.pretraining.extend import extended_settings
    from bertwright.pretraining.init_from import refuse_other_model

    if resume:
        refuse_other_model(out, init_from)
    if extend and recipe:
        raise InputError(f"--recipe {recipe}: with --extend the settings are those of the run {extend}; leave it out")
    if extend:
        return extended_settings(extend, typed, begun=out if resume else None), None
    if recipe is None:
        return plain_settings(typed, out=out, init_from=init_from, resume=resume, **more)
    requested = requested_values(recipe, typed, from_model=init_from is not None)
    settings = PretrainSettings.model_validate(requested)
    return with_noted_rows(settings, out, requested) if resume else settings, None


def join_command(left: Positional[str], right: Positional[str], /, *, out: Path) -> CommandResult:
    """Join two language models as ELMo does: one model that returns the hidden states of both.

    Args:
        left: Left-to-right model: a model folder or run folder of bert-left or lstm-left.
        right: Right-to-left model: bert-right or lstm-right, with the same tokenizer.
        out: Model folder to write.
    """
    from bertwright.pretraining.elmo import join

    return join(left, right, out)


def fill_command(text: Positional[str], /, *, model: str, top_k: int = 5) -> CommandResult:
    """Predict the pieces behind each [MASK].

    Args:
        text: Text with [MASK] in it.
        model: MODEL: a pre-trained model folder or run folder, or small-wiki, which comes with the program.
        top_k: Number of candidates for each [MASK].
    """
    from bertwright.model.folder import open_model
    from bertwright.objectives.masked_lm import open_pretrained
    from bertwright.tasks.binding import open_tokenizer
    from bertwright.tasks.fill_mask import fill_masks
    from bertwright.text.open_tokenizer import mask_tokenizer

    saved = open_model(model)
    loaded = open_pretrained(saved)
    tokenizer = mask_tokenizer(open_tokenizer(saved), place=saved.source, advice="only a BERT fills gaps")
    masks = [
        [
            {"piece": piece, "probability": probability}
            for piece, probability in zip(mask.pieces, mask.probabilities, strict=True)
        ]
        for mask in fill_masks(loaded, tokenizer, text, top_k=top_k)
    ]
    lines = ["  ".join(f"{entry['piece']} {entry['probability']:.3f}" for entry in mask) for mask in masks]
    return {"masks": masks, "text": "\n".join(lines)}


def next_sentence_command(first: Positional[str], second: Positional[str], /, *, model: str) -> CommandResult:
    """Return the probability that the second sentence follows the first.

    Args:
        first: Sentence A.
        second: Sentence B.
        model: MODEL: a model folder or run folder, pre-trained with next-sentence prediction.
    """
    from bertwright.model.folder import open_model
    from bertwright.tasks.binding import open_tokenizer
    from bertwright.tasks.fill_mask import next_sentence_probability, open_next_sentence

    saved = open_model(model)
    loaded = open_next_sentence(saved)
    return {"is_next": next_sentence_probability(loaded, open_tokenizer(saved), first, second)}


def _with_short_forms(
    settings: Mapping[str, Any], *, no_next_sentence: bool, whole_word_mask: bool
) -> Mapping[str, Any]:
    """Return the typed settings with those that the short forms stand for. InputError where they contradict."""
    short_forms: list[tuple[str, str, Mapping[str, Any]]] = []
    if no_next_sentence:
        short_forms.append(("--no-next-sentence", "--second-sentence none", {"examples": {"second_sentence": "none"}}))
    if whole_word_mask:
        short_forms.append(("--whole-word-mask", "--mask-units word", {"examples": {"masking": {"units": "word"}}}))
    for name, meaning, change in short_forms:
        changed = merged(settings, change)
        if changed != merged(change, settings):
            raise InputError(f"{name} stands for {meaning}, and another value was typed too; leave one of the two out")
        settings = changed
    if settings.get("mask_schedule") and "share" in settings.get("examples", {}).get("masking", {}):
        raise InputError(
            "--mask-schedule has the fraction of tokens of each part of the run, and --mask-share was typed too; leave "
            "one of the two out"
        )
    return settings


def with_held_out(
    settings: Mapping[str, Any], held_out: str | None, corpora: Mapping[Path, float]
) -> tuple[Mapping[str, Any], Path | None]:
    """Return the settings with the fraction of --held-out, and the folder that it names, where it names one."""
    fraction = fraction_of(held_out)
    if fraction is None:
        return settings, Path(held_out) if held_out else None
    from bertwright.pretraining.held_out import held_out_fraction

    return {**settings, "held_out_share": held_out_fraction(list(corpora), fraction)}, None


def corpora_of(typed: tuple[str, ...]) -> dict[Path, float]:
    """Return the corpus folders with their weights; InputError where there is none, or one twice."""
    from bertwright.objectives.batches import parse_weights

    try:
        weights = parse_weights(typed)
    except ValueError as error:
        raise InputError(f"--corpus {' '.join(typed)}: {error}; write FOLDER=WEIGHT, such as wiki=0.7") from None
    corpora = {Path(folder): weight for folder, weight in weights}
    if not typed or len(corpora) < len(typed):
        raise InputError(f"--corpus {' '.join(typed) or '(none)'}: name one corpus folder, or several different ones")
    return corpora


def fraction_of(held_out: str | None) -> float | None:
    """Return the fraction of --held-out, such as 0.01; None where it is a folder or absent."""
    if held_out == "":
        raise InputError("--held-out '': expected a corpus folder, or a fraction of the documents such as 0.01")
    if held_out and held_out.endswith("%") and not Path(held_out).exists():
        raise InputError(f"--held-out {held_out}: expected a fraction of the documents, such as 0.05 for 5%")
    try:
        fraction = float(held_out or "folder")
    except ValueError:
        return None
    if not 0 < fraction < 1:
        if Path(str(held_out)).exists():
            return None
        raise InputError(f"--held-out {held_out}: expected a fraction between 0 and 1, or a corpus folder")
    return fraction
