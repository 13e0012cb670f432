"""A report → one HTML file that needs nothing else: style and pictures lie in it, and it fetches nothing.

The template escapes all that it is given (jinja2's autoescape), so that no name or text of a run can become markup.
"""

from datetime import datetime
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from bertwright import __version__
from bertwright.recipes import charts
from bertwright.recipes.report import Report


def page(report: Report) -> str:
    """The page of a report."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("bertwright.recipes").joinpath("report_page.html").read_text("utf-8"))
    return template.render(
        report=report,
        title=" against ".join(head[0] for head in report.heads),
        size=charts,
        made=f"bertwright {__version__}, {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
    )
