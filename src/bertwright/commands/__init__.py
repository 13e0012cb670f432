"""Commands: `bertwright corpus build` is `corpus_build_command`. Each takes its options and calls into the package.

Imports that need more than a few milliseconds stand inside the functions, so that --help answers at once.
"""

from collections.abc import Mapping
from typing import Any

CommandResult = Mapping[str, Any]
"""Result of a command: printed line by line, or as one JSON object with --json.

`text` is printed instead of the lines, and `exit_code` is returned instead of 0. Neither is part of the object.
"""
