"""check → finding: what a check says, how findings are counted, and how a person reads them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

Level = Literal["ok", "note", "warning", "error"]
_MARKS: dict[Level, str] = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}


@dataclass(frozen=True)
class Finding:
    """What a check found.

    `part` is what was looked at (machine, model, …), `value` the measured figure or figures, `text` says it in words,
    `advice` says what to do; it is empty where all is well, and only there.
    """

    part: str
    name: str
    level: Level
    value: Any
    text: str
    advice: str = ""

    def __post_init__(self) -> None:
        if (self.level == "ok") == bool(self.advice):
            raise ValueError(f"{self.part} {self.name}: a finding has advice where it is not ok, and only there")


def refused(part: str, name: str, *, error: Exception, advice: str) -> Finding:
    """An error-level finding of what an input said when it was opened."""
    return Finding(part, name, "error", None, str(error), advice)


def place_list(names: Sequence[str], shown: int = 3) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def summary(findings: Sequence[Finding]) -> dict[str, Any]:
    """{"findings", "errors", "warnings"}, a text for people, and the exit code: 1 where there is an error.

    Findings of one part stand together, in the order in which the parts first came up.
    """
    parts = list(dict.fromkeys(one.part for one in findings))
    findings = sorted(findings, key=lambda one: parts.index(one.part))
    errors, warnings, notes = (sum(one.level == level for one in findings) for level in ("error", "warning", "note"))
    return {
        "findings": [asdict(one) for one in findings],
        "errors": errors,
        "warnings": warnings,
        "text": "\n".join([*_lines(findings), "", _totals(errors, warnings, notes)]),
        "exit_code": 1 if errors else 0,
    }


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Part by part, a line for each finding and one below it for what to do."""
    width = max((len(one.name) for one in findings), default=0)
    for part, group in groupby(findings, key=lambda one: one.part):
        yield part
        for one in group:
            yield f"  {_MARKS[one.level]:8} {one.name:{width}}  {one.text}"
            if one.advice:
                yield f"  {'':8} {'':{width}}  → {one.advice}"


def _totals(errors: int, warnings: int, notes: int) -> str:
    counted = ((errors, "error"), (warnings, "warning"), (notes, "note"))
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counted)
