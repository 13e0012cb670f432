"""tags ↔ entities: the schemes IOB1, IOB2 and IOBES, and the figures of conlleval (paper §5.3).

IOB1    I-TYPE within an entity; B-TYPE only where an entity follows another one of its type at once
IOB2    B-TYPE begins every entity, I-TYPE goes on with it
IOBES   as IOB2, E-TYPE is an entity's last word, S-TYPE an entity of one word
plain   tags are names, such as parts of speech: every word is an entity of its own
"""

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


class Entity(NamedTuple):
    """Words `start` to `end` - 1 of a sentence."""

    type: str
    start: int
    end: int


@dataclass(frozen=True)
class Counts:
    """What was found, what there is, and what is in both; figures are 0 where nothing was found or is."""

    correct: int
    found: int
    there: int

    @property
    def precision(self) -> float:
        """The share of those found that are right."""
        return self.correct / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """The share of those that are there that were found."""
        return self.correct / self.there if self.there else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.correct / (self.found + self.there) if self.correct else 0.0

    @property
    def figures(self) -> dict[str, float]:
        """All three by name."""
        return {"f1": self.f1, "precision": self.precision, "recall": self.recall}


def parts(tag: str) -> tuple[str, str]:
    """Prefix and type: "B-creative-work" → ("B", "creative-work"); ("O", "") outside."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def entities_of(tags: Sequence[str], scheme: Scheme) -> list[Entity]:
    """The entities of a sentence, left to right, as conlleval reads them: also where the sequence is impossible.

    A word goes on with the entity before it if it is I or E of the same type and that word was B or I; any other word
    that is not O begins one.
    """
    if scheme == "plain":
        return [Entity(tag, place, place + 1) for place, tag in enumerate(tags)]
    found: list[Entity] = []
    before = (OUTSIDE, "")
    for place, tag in enumerate(tags):
        prefix, kind = parts(tag)
        if prefix in ("I", "E") and before[0] in ("B", "I") and before[1] == kind:
            found[-1] = found[-1]._replace(end=place + 1)
        elif tag != OUTSIDE:
            found.append(Entity(kind, place, place + 1))
        before = (prefix, kind)
    return found


def tags_of(entities: Iterable[Entity], length: int, scheme: Scheme) -> tuple[str, ...]:
    """The tags of a sentence of `length` words whose entities, left to right, do not overlap."""
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


def in_scheme(tags: Sequence[str], scheme: Scheme, wanted: Scheme) -> tuple[str, ...]:
    """The same entities in another scheme; nothing is lost, and tags of the wanted scheme stay as they are."""
    return tuple(tags) if scheme == wanted else tags_of(entities_of(tags, scheme), len(tags), wanted)


def first_impossible(tags: Sequence[str], scheme: Scheme) -> tuple[int, str] | None:
    """The first place of a sentence whose tag the scheme forbids there, and what is wrong; None for a good sentence."""
    if scheme == "plain":
        return None
    before = OUTSIDE
    for place, tag in enumerate(tags):
        prefix, kind = parts(tag)
        if tag != OUTSIDE and (prefix not in PREFIXES[scheme] or not kind):
            allowed = ", ".join([OUTSIDE, *(f"{letter}-TYPE" for letter in PREFIXES[scheme])])
            return place, f"'{tag}' is no tag of {scheme.upper()} ({allowed})"
        if not _may_follow(tag, before, scheme):
            after = f"after '{before}'" if place else "at the beginning of a sentence"
            return place, f"'{tag}' {after} is impossible in {scheme.upper()}"
        before = tag
    if scheme == "iobes" and _is_open(before):
        return len(tags) - 1, f"'{before}' at the end of a sentence is impossible in IOBES"
    return None


def detect(sentences: Iterable[Sequence[str]]) -> tuple[Scheme, tuple[int, int] | None]:
    """The scheme of a file's tags, and the sentence and word that show it; no entity at all: (IOB2, None).

    E and S are of IOBES alone. Else the first entity decides: in IOB2 it begins with B, in IOB1 it cannot.
    """
    first: tuple[Scheme, tuple[int, int]] | None = None
    for row, tags in enumerate(sentences):
        for place, tag in enumerate(tags):
            if tag.startswith(("E-", "S-")):
                return "iobes", (row, place)
            if not first and tag.startswith(("B-", "I-")):
                first = ("iob2" if tag[0] == "B" else "iob1", (row, place))
    return first or ("iob2", None)


def scheme_of_labels(labels: Sequence[str]) -> Scheme:
    """The scheme that a model's labels are tags of; plain where they are no prefixes with types and O."""
    schemes: tuple[Scheme, ...] = ("iob1", "iob2", "iobes")
    for scheme in schemes:
        # Labels without any B are what IOB1 leaves where no two entities of a type touch.
        wanted = ("I",) if scheme == "iob1" else PREFIXES[scheme]
        split = [parts(label) for label in labels if label != OUTSIDE]
        if split and OUTSIDE in labels and all(prefix in wanted and kind for prefix, kind in split):
            return scheme
    return "plain"


def count_entities(
    found: Iterable[Sequence[Entity]], there: Iterable[Sequence[Entity]]
) -> tuple[Counts, dict[str, Counts]]:
    """All entities of N sentences against those there are: overall, and by type in alphabetical order."""
    tallies: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
    for ours, theirs in zip(found, there, strict=True):
        for tally, entities in zip(tallies, (set(ours) & set(theirs), ours, theirs), strict=True):
            tally.update(entity.type for entity in entities)
    kinds = sorted(tallies[1] | tallies[2])
    by_type = {kind: Counts(*(tally[kind] for tally in tallies)) for kind in kinds}
    return Counts(*(tally.total() for tally in tallies)), by_type


def _is_open(tag: str) -> bool:
    """Whether an entity of IOBES must go on after this tag."""
    return tag.startswith(("B-", "I-"))


def _may_follow(tag: str, before: str, scheme: Scheme) -> bool:
    """Whether a tag of the scheme may come after another one, "O" standing for the beginning."""
    prefix, kind = parts(tag)
    goes_on = _is_open(before) and parts(before)[1] == kind
    if scheme == "iob1":
        return prefix != "B" or goes_on
    if scheme == "iob2":
        return prefix != "I" or goes_on
    return goes_on if prefix in ("I", "E") else not _is_open(before)
