"""The manual: Markdown pages, every warning an error (`make docs`)."""

import re

import bertwright

project = "bertwright"
author = "The bertwright authors"
project_copyright = author
version = release = bertwright.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nitpicky = True
OTHERS = "pathlib|numpy|collections|typing|sklearn|torch|pydantic|bertwright"
nitpick_ignore_regex = [("py:.*", rf"({OTHERS})\..*|Path|optional")]
exclude_patterns = ["_build", "notebook-tutorial"]

html_theme = "furo"
html_title = f"bertwright {release}"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"


def as_written(app, what, name, obj, options, lines):
    """Docstrings are plain text, and are shown as they stand."""
    paragraphs = "\n".join(lines).strip().split("\n\n") if lines else []
    shown = []
    for paragraph in paragraphs:
        rows = paragraph.split("\n")
        is_list = any("  " in row.strip() for row in rows)  # names and what they are, in columns
        named = [re.sub(r"^(\w+) {2,}", r"**\1**: ", row) for row in rows]
        shown += [f"| {row}" for row in (named if is_list else [" ".join(rows)])] + [""]
    lines[:] = shown


def setup(app):
    app.connect("autodoc-process-docstring", as_written)
