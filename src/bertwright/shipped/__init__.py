"""name → folder of a model that comes with the program; such a name may be given where a model folder is expected."""

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent


def shipped() -> tuple[str, ...]:
    """Return the names of the models that come with the program, sorted."""
    return tuple(sorted(path.parent.name for path in _FOLDER.glob("*/config.json")))


def folder_of(source: str | Path) -> Path:
    """Return the folder of the shipped model `source`; another name, or an existing path, is returned as it is."""
    path = Path(source)
    return _FOLDER / path if str(source) in shipped() and not path.exists() else path
