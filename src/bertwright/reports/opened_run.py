"""A run folder in use from Python: `bertwright.open_run(FOLDER)` → its state, its metrics and its report."""

from dataclasses import dataclass, fields
from pathlib import Path

from bertwright.errors import legible
from bertwright.markup import Html, framed, table
from bertwright.reports.curves import loss_name, metric_title
from bertwright.reports.report import metric_text, report_page
from bertwright.reports.runs import KIND_TITLES, Run, duration, moment, read_run


def open_run(folder: str | Path) -> "OpenedRun":
    """Read a run folder, of a run that has ended or that still trains: the object is a picture of this moment.

    Raises InputError for a folder that is no run folder, or whose files are broken.
    """
    run = read_run(Path(folder))
    return OpenedRun(**{field.name: getattr(run, field.name) for field in fields(Run)})


@dataclass(frozen=True, repr=False)
class OpenedRun(Run):
    """A run at one moment. A notebook displays a short table of it."""

    def report(self, other: str | Path | None = None, *, corpus: str | Path | None = None) -> "RunReport":
        """Return the report of the run as it is now, or its comparison with another run folder of the same kind.

        The page is the one that `bertwright report` writes; here no file is written. corpus: folder for the sentences
        with masks, None for the run's own. Raises InputError for a folder that is no run, and for runs of two kinds.
        """
        page = report_page(self.folder, Path(other) if other else None, corpus=Path(corpus) if corpus else None)
        return RunReport(legible(page), legible(f"report of {self.name}"))

    def __repr__(self) -> str:
        return f"<bertwright run {self.folder}: {KIND_TITLES[self.kind]}, {self.state}, {self._steps}>"

    @property
    def _steps(self) -> str:
        planned = f" of {self.steps_planned:,}" if self.steps_planned else ""
        return f"{self.steps_done:,}{planned} steps"

    def _repr_html_(self) -> Html:
        rows = [
            ("run", legible(str(self.folder))),
            ("kind", KIND_TITLES[self.kind]),
            ("state", f"{self.state} · {self.detail}" if self.detail else self.state),
            ("steps", self._steps),
            *(
                (f"{loss_name(term)}, training", metric_text(f"{term}_loss", loss))
                for term, loss in self.losses.items()
            ),
            *(
                (f"{metric_title(name)}, validation", metric_text(name, value))
                for name, value in self.last_metrics.items()
            ),
            ("started", moment(self.started) if self.started else ""),
            ("left", duration(self.seconds_left)),
        ]
        return table([row for row in rows if row[1]])


@dataclass(frozen=True)
class RunReport:
    """A report as HTML. A notebook displays it in a frame."""

    html: str
    title: str

    def __repr__(self) -> str:
        return f"<{self.title}: {len(self.html):,} characters of HTML>"

    def _repr_html_(self) -> Html:
        return framed(self.html, title=self.title)
