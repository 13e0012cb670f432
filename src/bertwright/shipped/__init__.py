"""name → folder of a model that comes with the program: what MODEL may be where no folder of that name is."""

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent


def shipped() -> tuple[str, ...]:
    """The names, in order."""
    return tuple(sorted(path.parent.name for path in _FOLDER.glob("*/config.json")))


def place_of(source: str | Path) -> Path:
    """The path itself, or the folder of the model of that name; what is there in the working directory comes first."""
    path = Path(source)
    return _FOLDER / path if str(source) in shipped() and not path.exists() else path
