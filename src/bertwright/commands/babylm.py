"""The command babylm: a whole entry of the BabyLM challenge."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from bertwright.babylm.settings import FIXED, PLAIN_ENTRY, EntrySettings
from bertwright.commands import CommandResult
from bertwright.commands.arguments import DocumentBreaks, Repeatable, TextField, TrackOption
from bertwright.commands.options import SettingsOptions
from bertwright.pretraining.settings import ADAPTED, PretrainSettings


def babylm_command(
    *,
    corpus: Repeatable = (),
    out: Path,
    mix: Repeatable = (),
    blimp: Path | None = None,
    blimp_pairs: Path | None = None,
    supplement: Path | None = None,
    glue: Path | None = None,
    plan: bool = False,
    documents: DocumentBreaks = "blank-lines",
    lines: Literal["text", "wrapped", "sentences"] = "text",
    field: TextField = "text",
    entry: Annotated[Mapping[str, Any], SettingsOptions(EntrySettings)],
    settings: Annotated[Mapping[str, Any], SettingsOptions(PretrainSettings, {}, PLAIN_ENTRY, ADAPTED, left_out=FIXED)],
    allow_other_numerics: bool = False,
    track: TrackOption = (),
) -> CommandResult:
    """Make an entry of the BabyLM challenge: vocabulary, corpus, pre-training, BLiMP, GLUE, curve and model card.

    The same command continues a stopped entry. Measurements may be added to a finished one.

    Args:
        corpus: A text, as corpus build takes them; repeat it for more. Or one corpus folder.
        out: Folder of the entry: an absent or empty one, or one of the same command.
        mix: In place of --corpus: a source and its fraction of the words, as SOURCE=FRACTION; repeat it for each.
        blimp: Minimal pairs in the layout of BLiMP: a folder with files .jsonl, or one file.
        blimp_pairs: JSON file with the pairIDs of BLiMP to keep for each UID.
        supplement: Further minimal pairs in that layout, such as the supplement of BabyLM.
        glue: Folder with the files of GLUE's tasks, such as glue/RTE/train.tsv; those that are there are fine-tuned.
        plan: Print the steps and about how long they take. Nothing is trained or written.
        lines: A line of plain text is a paragraph (text), part of a wrapped paragraph (wrapped), or a sentence.
        allow_other_numerics: Continue on another kind of processor or torch, or with another --device, --micro-tokens
            or --activation-checkpointing.
    """
    from bertwright.babylm.request import EntryRequest
    from bertwright.text.document import TextSettings

    request = EntryRequest(
        out=out,
        entry=EntrySettings.model_validate(entry),
        text=TextSettings(documents=documents, lines=lines, field=field),
        pretraining=settings,
        corpus=corpus,
        mix=mix,
        blimp=blimp,
        blimp_pairs=blimp_pairs,
        supplement=supplement,
        glue=glue,
        allow_other_numerics=allow_other_numerics,
    )
    if plan:
        from bertwright.babylm.plan import plan_entry

        return plan_entry(request)
    from bertwright.babylm.run import run_entry
    from bertwright.training.tracked_run import track_with

    with track_with(track):
        return run_entry(request)
