"""The commands score sentences, evaluate blimp and generate: log-likelihoods, minimal pairs, continuations."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from bertwright.commands import CommandResult
from bertwright.commands.arguments import (
    DeviceOption,
    DirectionOption,
    FirstTokenOption,
    MaskingOption,
    PrecisionOption,
)
from bertwright.errors import InputError
from bertwright.scoring.settings import Direction, FirstToken, GenerateSettings, Masking, ScoreSettings


def score_sentences_command(
    *,
    model: str,
    input: str = "-",
    output: str = "-",
    text_column: str | None = None,
    masking: MaskingOption = None,
    first_token: FirstTokenOption = None,
    direction: DirectionOption = None,
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
        settings=ScoreSettings(masking, first_token, direction),
        text=text_column,
        precision=precision,
        input_format=input_format,
        output_format=output_format,
        device=device,
    )


def generate_command(
    model: Positional[str],
    /,
    *,
    prompt: Annotated[tuple[str, ...], UseAppendAction, arg(help="Text to continue; repeat it for several.")] = (),
    input: str | None = None,
    tokens: int = 50,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    precision: PrecisionOption = "auto",
    device: DeviceOption = "cpu",
) -> CommandResult:
    """Continue texts with a GPT-1, GPT-2 or GPT-BERT, one line for each; --json adds prompts and why each text ends.

    Without --temperature, --top-k and --top-p the most probable token is taken each time. A text ends at the token for
    its end, after --tokens, or where the model has no further position.

    Args:
        model: MODEL: a model folder or run folder of a GPT-1, GPT-2 or GPT-BERT.
        input: File with a prompt on each line, or - for standard input, in place of --prompt.
        tokens: Largest number of tokens of a continuation.
        temperature: Draw tokens; below 1 the probable ones more often, above 1 less often.
        top_k: Draw from this number of most probable tokens.
        top_p: Draw from the fewest most probable tokens whose probabilities reach this number.
        seed: Seed of what is drawn. The same seed gives the same text.
    """
    from bertwright.scoring.generation import open_generator
    from bertwright.serving.embeddings import lines

    settings = GenerateSettings(tokens, temperature, top_k, top_p, seed)
    if bool(prompt) == (input is not None):
        raise InputError("generate: expected prompts, either as --prompt TEXT or in a file: --input FILE")
    prompts = prompt if input is None else tuple(lines(input))
    if not prompts:
        raise InputError(f"--input {input}: expected a prompt on each line, got no line")
    continuations = open_generator(model, precision, device).generate(prompts, settings)
    text = "\n".join(" ".join(continuation.text.split()) for continuation in continuations)
    return {"continuations": [asdict(continuation) for continuation in continuations], "text": text}


def evaluate_blimp_command(
    model: str,
    data: Path | None,
    *,
    pairs: Path | None,
    masking: Masking | None,
    first_token: FirstToken | None,
    direction: Direction | None,
    out: Path | None,
    **computing: Any,
) -> CommandResult:
    """Return the accuracies of a model on minimal pairs; `evaluate` with TASK = blimp has the options."""
    from bertwright.scoring.evaluate import evaluate_blimp

    if data is None:
        raise InputError("evaluate blimp: expected --data PATH, a folder with files .jsonl, or one file")
    settings = ScoreSettings(masking, first_token, direction)
    return evaluate_blimp(model, data, pair_ids=pairs, settings=settings, out=out, **computing)
