"""The manual: Markdown pages, every warning an error (`make docs`)."""

import bertwright

project = "bertwright"
author = "The bertwright authors"
project_copyright = author
version = release = bertwright.__version__

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nitpicky = True
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"bertwright {release}"
