"""Build BERT encoders: from raw text to a pre-trained encoder, to a fine-tuned model, to an answer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bertwright.version import __version__

if TYPE_CHECKING:
    from bertwright.cli import command
    from bertwright.reports.opened_run import open_run
    from bertwright.serving.predictor import Predictor, load

__all__ = ["Predictor", "__version__", "command", "load", "open_run"]

_MODULES = {
    "Predictor": "serving.predictor",
    "command": "cli",
    "load": "serving.predictor",
    "open_run": "reports.opened_run",
}


def __getattr__(name: str) -> Any:  # torch is imported when a model is, and not by `import bertwright`
    if name in _MODULES:
        return getattr(import_module(f"bertwright.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'bertwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
