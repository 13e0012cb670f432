"""Types of the options that several commands have, with their help."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from bertwright.scoring.settings import Direction, FirstToken, Masking
from bertwright.serving.settings import AnswerPrecision, ExplainBaseline, ExplainMethod
from bertwright.tracking.tracker import TrackerName
from bertwright.training.settings import Device

Repeatable = Annotated[tuple[str, ...], UseAppendAction]
"""Option that may be repeated: one text for each use."""
TextInputs = Annotated[
    Positional[tuple[str, ...]],
    arg(
        help="Files, folders or globs: plain text, JSON lines, Parquet, CSV or TSV with a column of text, Wikipedia "
        "dumps, WikiExtractor output; packed as .gz, .bz2, .xz, .zst; also by URL, such as s3://bucket/*.txt; or "
        "hub:NAME:CONFIG:SPLIT, a dataset of the Hugging Face Hub."
    ),
]
DocumentBreaks = Annotated[
    Literal["blank-lines", "lines", "file"],
    arg(help="Documents of plain text are separated by blank lines, or each line or file is one."),
]
TextField = Annotated[str, arg(help="Field of JSON lines, or column of a table, that holds the text.")]
KeepDuplicates = Annotated[bool, arg(help="Keep documents that equal an earlier one.")]
AsWordPiece = Annotated[
    bool,
    arg(help="Read the vocabulary as WordPiece although its marks or its settings are those of another tokenizer."),
]
TextColumns = Annotated[Repeatable, arg(help="Column of the text; twice for pairs.")]
LabelColumn = Annotated[str | None, arg(help="Column of the label or number.")]
LabelledFormat = Annotated[
    Literal["auto", "csv", "tsv", "jsonl", "parquet"],
    arg(help="Format of the files of --data, where the endings of their names do not say it."),
]
BadRowsOption = Annotated[
    Literal["stop", "skip"],
    arg(
        help="At a row, sentence or question that cannot be used (without text or label, not UTF-8, of other width …) "
        "stop, or leave it out; what is left out is counted by reason."
    ),
]
VocabularyFolder = Annotated[Path | None, arg(help="Tokenizer or model folder with the vocabulary for random:SIZE.")]
PrecisionOption = Annotated[
    AnswerPrecision,
    arg(help="Number format: auto is bf16 where it is faster here, else fp32; int8 is faster and less exact."),
]
ExplainOption = Annotated[
    ExplainMethod | None,
    arg(
        help="Add the words that spoke for each answer: by integrated gradients, or by the drop of the score without "
        "them (occlusion).",
        help_behavior_hint="",
    ),
]
ExplainBaselineOption = Annotated[
    ExplainBaseline,
    arg(
        help="For --explain: replacement of the pieces: [MASK], [PAD] or zeros; auto is mask if the vocabulary has it."
    ),
]
DeviceOption = Annotated[
    Device, arg(help="Device that computes: the processors (cpu), a GPU (cuda), an Apple GPU (mps).")
]
TrackOption = Annotated[
    tuple[TrackerName, ...],
    UseAppendAction,
    arg(help="Send the metrics to a tracker too, while the run trains; repeat it for several."),
]
ShardingOption = Annotated[
    Literal["ddp", "fsdp2"],
    arg(help="With torchrun, each process holds the whole model (ddp) or a part of it (fsdp2)."),
]
MaskingOption = Annotated[
    Masking | None,
    arg(
        help="For masked LM: pieces that are masked with the predicted one: the later ones of its word (within-word, "
        "the default), or none (piece, as in published figures of BLiMP).",
        help_behavior_hint="",
    ),
]
FirstTokenOption = Annotated[
    FirstToken | None,
    arg(
        help="For a language model: the piece that is predicted from no other one: count (the default with [CLS] "
        "before it) or leave-out (GPT-1, which has no such token).",
        help_behavior_hint="",
    ),
]
DirectionOption = Annotated[
    Direction | None,
    arg(
        help="For a GPT-BERT: predict pieces from both sides as a masked LM (both, the default), or from the left as a "
        "language model (left).",
        help_behavior_hint="",
    ),
]
