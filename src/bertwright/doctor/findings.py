"""check → finding → text: the result of a check, the count of results by level, and the page for a person."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

Level = Literal["ok", "note", "warning", "error"]
_MARKS: dict[Level, str] = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    part: the thing that was checked (machine, model, …). value: the measured number, or numbers by name.
    text: the result in words. advice: what to do; empty exactly where the level is ok.
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
    """Return an error finding from the exception that an input raised when it was opened."""
    return Finding(part, name, "error", None, str(error), advice)


def name_list(names: Sequence[str], shown: int = 3) -> str:
    """Return the first few names, and the number of further ones."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def command_result(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return {"findings", "errors", "warnings", "text", "exit_code"}; exit_code is 1 where there is an error.

    Findings of one part stand together, in the order in which the parts first came up.
    """
    parts = list(dict.fromkeys(finding.part for finding in findings))
    findings = sorted(findings, key=lambda finding: parts.index(finding.part))
    errors, warnings, notes = (sum(each.level == level for each in findings) for level in ("error", "warning", "note"))
    return {
        "findings": [asdict(finding) for finding in findings],
        "errors": errors,
        "warnings": warnings,
        "text": "\n".join([*_lines(findings), "", _totals(errors, warnings, notes)]),
        "exit_code": 1 if errors else 0,
    }


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a heading for each part, a line for each finding, and a second line for its advice."""
    width = max((len(finding.name) for finding in findings), default=0)
    for part, group in groupby(findings, key=lambda finding: finding.part):
        yield part
        for finding in group:
            yield f"  {_MARKS[finding.level]:8} {finding.name:{width}}  {finding.text}"
            if finding.advice:
                yield f"  {'':8} {'':{width}}  → {finding.advice}"


def _totals(errors: int, warnings: int, notes: int) -> str:
    counted = ((errors, "error"), (warnings, "warning"), (notes, "note"))
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counted)
