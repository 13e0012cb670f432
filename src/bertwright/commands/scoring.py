"""The commands score sentences and evaluate blimp: sentences → log-likelihoods, minimal pairs → accuracies."""

from pathlib import Path
from typing import Any, Literal

from bertwright.commands import CommandResult
from bertwright.commands.arguments import DeviceOption, FirstTokenOption, MaskingOption, PrecisionOption
from bertwright.errors import InputError
from bertwright.scoring.settings import FirstToken, Masking, ScoreSettings


def score_sentences_command(
    *,
    model: str,
    input: str = "-",
    output: str = "-",
    text_column: str | None = None,
    masking: MaskingOption = None,
    first_token: FirstTokenOption = None,
    input_format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "lines"] = "auto",
    output_format: Literal["auto", "csv", "tsv", "jsonl", "parquet"] = "auto",
    precision: PrecisionOption = "auto",
    device: DeviceOption = "cpu",
) -> CommandResult:
    """Score every sentence of a file: log-likelihood, number of pieces, bits per character and per word are added.

    For masked LM this is the pseudo-log-likelihood: each piece is masked in turn. The result of the command has the
    sums over the whole file.

    Args:
        model: MODEL: a model folder or run folder with the head of masked LM, or of a language model.
        input: Table as tsv, csv, JSON lines or Parquet, or .txt with a sentence on each line; - for standard input.
        output: File to write, whose ending names the format; - for standard output in the format of the input.
        text_column: Column of the sentence (default: sentence, text or the only one).
        input_format: Format of standard input, or of a file without a known ending. With lines, each line is a
            sentence.
        output_format: Format of standard output, or of a file without a known ending.
    """
    from bertwright.scoring.run import score_file

    return score_file(
        model,
        input,
        output,
        settings=ScoreSettings(masking, first_token),
        text=text_column,
        precision=precision,
        input_format=input_format,
        output_format=output_format,
        device=device,
    )


def evaluate_blimp_command(
    model: str,
    data: Path | None,
    *,
    pairs: Path | None,
    masking: Masking | None,
    first_token: FirstToken | None,
    out: Path | None,
    **computing: Any,
) -> CommandResult:
    """Return the accuracies of a model on minimal pairs; `evaluate` with TASK = blimp has the options."""
    from bertwright.scoring.evaluate import evaluate_blimp

    if data is None:
        raise InputError("evaluate blimp: expected --data PATH, a folder with files .jsonl, or one file")
    settings = ScoreSettings(masking, first_token)
    return evaluate_blimp(model, data, pair_ids=pairs, settings=settings, out=out, **computing)
