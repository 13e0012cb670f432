"""tags ↔ entities in the schemes IOB1, IOB2 and IOBES; counts as conlleval makes them (paper §5.3).

Tags of other files are brought to these schemes first: `usual_spelling`.

IOB1    I-TYPE within an entity; B-TYPE only where an entity directly follows another one of its type
IOB2    B-TYPE begins every entity, I-TYPE continues it
IOBES   as IOB2, E-TYPE is the last word of an entity, S-TYPE an entity of one word
plain   tags are names, such as parts of speech: every word is an entity
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Scheme = Literal["iob1", "iob2", "iobes", "plain"]
OUTSIDE: Final = "O"
PREFIXES: Final[dict[Scheme, tuple[str, ...]]] = {
    "iob1": ("B", "I"),
    "iob2": ("B", "I"),
    "iobes": ("B", "I", "E", "S"),
    "plain": (),
}


UNNAMED_TYPE: Final = "ENTITY"
"""Type of entities whose tags have no type."""
_LETTERS: Final = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
"""Letters of BMES, BMEWO and BILOU with those of IOBES that mean the same."""
_ALPHABETS: Final = tuple(map(frozenset, ("BIES", "BMES", "BMEW", "BILU")))
_SPELLINGS: Final = (
    re.compile(r"(?P<letter>[A-Za-z])[-_:](?P<type>.+)"),
    re.compile(r"(?P<type>.+)[-_:](?P<letter>[A-Za-z])"),
    re.compile(r"(?P<letter>[A-Za-z])(?P<type>)"),
)


class Entity(NamedTuple):
    """Words `start` to `end` - 1 of a sentence."""

    type: str
    start: int
    end: int


@dataclass(frozen=True)
class Counts:
    """Numbers of correct, predicted and true entities. Metrics are 0 where a denominator is 0."""

    correct: int
    predicted: int
    true: int

    @property
    def precision(self) -> float:
        """Return the fraction of predicted entities that are correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Return the fraction of true entities that were predicted."""
        return self.correct / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """Return the harmonic mean of precision and recall."""
        return 2 * self.correct / (self.predicted + self.true) if self.correct else 0.0

    @property
    def metrics(self) -> dict[str, float]:
        """Return F1, precision and recall by name."""
        return {"f1": self.f1, "precision": self.precision, "recall": self.recall}


def parts(tag: str) -> tuple[str, str]:
    """Return prefix and type: "B-creative-work" → ("B", "creative-work"); ("O", "") outside."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def usual_spelling(tags: Iterable[str], *, most: bool = False) -> dict[str, str]:
    """Return each tag with its spelling as O, B-TYPE, I-TYPE, E-TYPE or S-TYPE; nothing where the scheme is unknown.

    Known are these, BMES, BMEWO and BILOU, in small letters too, with the type first (PER-B) or without a type (B).

    most   True: the spelling and the letters of most words are known ones, and tags that are none of them are left out
    """
    counts = Counter(tags)
    outside = {tag: OUTSIDE for tag in counts if tag.upper() == OUTSIDE}
    best: dict[str, str] = {}
    for spelling in _SPELLINGS:
        matches = {tag: match for tag in counts.keys() - outside.keys() if (match := spelling.fullmatch(tag))}
        for alphabet in _ALPHABETS:
            usual = outside | {
                tag: f"{_LETTERS[match['letter'].upper()]}-{match['type'] or UNNAMED_TYPE}"
                for tag, match in matches.items()
                if match["letter"].upper() in alphabet
            }
            if len(usual) == len(counts):
                return usual
            if most and sum(map(counts.__getitem__, usual)) > sum(map(counts.__getitem__, best)):
                best = usual
    return best


def entities_of(tags: Sequence[str], scheme: Scheme) -> list[Entity]:
    """Return the entities of a sentence, left to right, as conlleval reads them, also from tags that no scheme allows.

    A word continues the entity before it if its prefix is I or E, its type is the same, and the previous prefix is B or
    I. Any other word that is not O begins an entity.
    """
    if scheme == "plain":
        return [Entity(tag, index, index + 1) for index, tag in enumerate(tags)]
    entities: list[Entity] = []
    before = (OUTSIDE, "")
    for index, tag in enumerate(tags):
        prefix, kind = parts(tag)
        if prefix in ("I", "E") and before[0] in ("B", "I") and before[1] == kind:
            entities[-1] = entities[-1]._replace(end=index + 1)
        elif tag != OUTSIDE:
            entities.append(Entity(kind, index, index + 1))
        before = (prefix, kind)
    return entities


def tags_of(entities: Iterable[Entity], length: int, scheme: Scheme) -> tuple[str, ...]:
    """Return the tags of a sentence of `length` words; its entities are in order and do not overlap."""
    tags = [OUTSIDE] * length
    before = Entity("", 0, 0)
    for entity in entities:
        if scheme == "plain":
            tags[entity.start] = entity.type
            continue
        touches = before.end == entity.start and before.type == entity.type
        letters = ["I"] * (entity.end - entity.start)
        if scheme != "iob1" or touches:
            letters[0] = "B"
        if scheme == "iobes":
            letters[-1] = "E" if len(letters) > 1 else "S"
        tags[entity.start : entity.end] = [f"{letter}-{entity.type}" for letter in letters]
        before = entity
    return tuple(tags)


def in_scheme(tags: Sequence[str], scheme: Scheme, target: Scheme) -> tuple[str, ...]:
    """Return the tags in another scheme, without loss; tags in the scheme `target` stay as they are."""
    return tuple(tags) if scheme == target else tags_of(entities_of(tags, scheme), len(tags), target)


def first_impossible(tags: Sequence[str], scheme: Scheme) -> tuple[int, str] | None:
    """Return the first position with a tag that the scheme forbids, and the reason; None for a valid sentence."""
    if scheme == "plain":
        return None
    before = OUTSIDE
    for index, tag in enumerate(tags):
        prefix, kind = parts(tag)
        if tag != OUTSIDE and (prefix not in PREFIXES[scheme] or not kind):
            allowed = ", ".join([OUTSIDE, *(f"{letter}-TYPE" for letter in PREFIXES[scheme])])
            return index, f"'{tag}' is not a tag of {scheme.upper()} ({allowed})"
        if not _may_follow(tag, before, scheme):
            after = f"after '{before}'" if index else "at the beginning of a sentence"
            return index, f"'{tag}' {after} is impossible in {scheme.upper()}"
        before = tag
    if scheme == "iobes" and _is_open(before):
        return len(tags) - 1, f"'{before}' at the end of a sentence is impossible in IOBES"
    return None


def detect(sentences: Iterable[Sequence[str]]) -> tuple[Scheme, tuple[int, int] | None]:
    """Return the scheme of a file's tags, and the sentence and word that decide it; (IOB2, None) without entities.

    Only IOBES has E and S. Otherwise the first entity decides: it begins with B in IOB2, and never in IOB1.
    """
    first: tuple[Scheme, tuple[int, int]] | None = None
    for row, tags in enumerate(sentences):
        for word, tag in enumerate(tags):
            if tag.startswith(("E-", "S-")):
                return "iobes", (row, word)
            if not first and tag.startswith(("B-", "I-")):
                first = ("iob2" if tag[0] == "B" else "iob1", (row, word))
    return first or ("iob2", None)


def scheme_of_labels(labels: Sequence[str]) -> Scheme:
    """Return the scheme of a model's labels; plain where they are not prefixes with types and O."""
    schemes: tuple[Scheme, ...] = ("iob1", "iob2", "iobes")
    for scheme in schemes:
        # IOB1 has no B where no two entities of a type touch.
        allowed = ("I",) if scheme == "iob1" else PREFIXES[scheme]
        split = [parts(label) for label in labels if label != OUTSIDE]
        if split and OUTSIDE in labels and all(prefix in allowed and kind for prefix, kind in split):
            return scheme
    return "plain"


def count_entities(
    predicted: Iterable[Sequence[Entity]], true: Iterable[Sequence[Entity]]
) -> tuple[Counts, dict[str, Counts]]:
    """Count the entities of N sentences: overall, and by type in alphabetical order."""
    tallies: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
    for of_model, of_file in zip(predicted, true, strict=True):
        for tally, entities in zip(tallies, (set(of_model) & set(of_file), of_model, of_file), strict=True):
            tally.update(entity.type for entity in entities)
    kinds = sorted(tallies[1] | tallies[2])
    by_type = {kind: Counts(*(tally[kind] for tally in tallies)) for kind in kinds}
    return Counts(*(tally.total() for tally in tallies)), by_type


def _is_open(tag: str) -> bool:
    """Return whether an IOBES entity must continue after this tag."""
    return tag.startswith(("B-", "I-"))


def _may_follow(tag: str, before: str, scheme: Scheme) -> bool:
    """Return whether the scheme allows a tag after another one; "O" is the tag before the first word."""
    prefix, kind = parts(tag)
    continues = _is_open(before) and parts(before)[1] == kind
    if scheme == "iob1":
        return prefix != "B" or continues
    if scheme == "iob2":
        return prefix != "I" or continues
    return continues if prefix in ("I", "E") else not _is_open(before)
