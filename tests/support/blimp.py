"""Small minimal pairs in BLiMP's layout: a file for each paradigm."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertwright.scoring.scorer import SentenceScorer
from bertwright.scoring.sentences import sentence_scores
from bertwright.scoring.settings import ScoreSettings

UIDS = {
    "anaphor_number_agreement": "anaphor_agreement",
    "regular_plural_subject_verb_agreement_1": "subject_verb_agreement",
    "regular_plural_subject_verb_agreement_2": "subject_verb_agreement",
    "transitive": "argument_structure",
    "animate_subject_trans": "s-selection",
}
"""Paradigm → linguistics_term, as in BLiMP's own files."""


def log_likelihoods(
    scorer: SentenceScorer, texts: Sequence[str], settings: ScoreSettings, **options: Any
) -> NDArray[np.float64]:
    """Return the score of each sentence [N]."""
    return np.array([each.score for each in sentence_scores(scorer, texts, settings, **options)])


def pair_line(uid: str, number: int, good: str, bad: str, **changes: Any) -> dict[str, Any]:
    """Return a line of BLiMP, with `changes`."""
    fields = {"sentence_good": good, "sentence_bad": bad, "UID": uid, "linguistics_term": UIDS.get(uid, uid)}
    return {**fields, "field": "syntax", "pairID": str(number), **changes}


def made_up_pairs(uid: str, count: int = 4) -> list[dict[str, Any]]:
    """Return pairs of sentences that differ between the paradigms."""
    animals, lines = ("cat", "dog", "horse", "owl"), []
    for number in range(count):
        animal, day = animals[number % 4], f"{uid.replace('_', ' ')} {number}"
        lines.append(pair_line(uid, number, f"On {day} the {animal} walks home.", f"On {day} the {animal} walk home."))
    return lines


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """Write objects as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def write_blimp(folder: Path) -> Path:
    """Write five of the 67 paradigms."""
    for uid in UIDS:
        write_lines(folder / f"{uid}.jsonl", made_up_pairs(uid))
    return folder
