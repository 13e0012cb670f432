"""The commands serve and demo: a model over HTTP and in a browser."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from bertwright.commands import CommandResult
from bertwright.commands.arguments import PrecisionOption, Repeatable
from bertwright.commands.options import SettingsOptions
from bertwright.errors import InputError, MissingExtra
from bertwright.serving.settings import AnswerPrecision, ServeSettings
from bertwright.shipped import shipped

TOKEN = "BERTWRIGHT_TOKEN"
_DEMO_MODELS = ("finetuned-pretrained", "pretraining")
"""Folders of quickstart that hold the models of a demo."""


def serve_command(
    *,
    model: Repeatable = (),
    index: Repeatable = (),
    settings: Annotated[Mapping[str, Any], SettingsOptions(ServeSettings)],
    precision: PrecisionOption = "auto",
    threads: int | None = None,
) -> CommandResult:
    """Serve models over HTTP until Ctrl-C: a page at /, the endpoints at /docs.

    Args:
        model: MODEL, or NAME=MODEL; once for each model. The first one answers requests that name none. Default: the
            models that the indexes name.
        index: INDEX, or NAME=INDEX, a folder of `bertwright index`; once for each. Its model must be served too.
        threads: Number of threads that compute (default: one per core).
    """
    chosen = ServeSettings.model_validate({**settings, "token": _token(settings.get("token"))})
    indexes = _named(index, "--index", "INDEX")
    _serve(_models(model or _models_of(indexes)), chosen, indexes=indexes, precision=precision, threads=threads)
    return {"text": None}


def demo_command(
    *,
    model: Repeatable = (),
    port: int = ServeSettings().port,
    precision: PrecisionOption = "auto",
    no_browser: bool = False,
) -> CommandResult:
    """Open a page with a model in the browser: fill masks, classify, look inside the model.

    Args:
        model: MODEL, or NAME=MODEL, once for each (default: the models of `bertwright quickstart` in ./quickstart,
            else small-wiki, which comes with the program).
        port: Port to listen on; 0 takes a free one.
        no_browser: Print the address of the page without opening it.
    """
    import threading
    import webbrowser

    models = _models(model) if model else _made_by_quickstart(Path("quickstart")) or _models(shipped())

    def open_page(url: str) -> None:
        # In a thread, since a browser in the terminal returns only when it is closed.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    _serve(models, ServeSettings(port=port), precision=precision, ready=None if no_browser else open_page)
    return {"text": None}


def _serve(
    models: Mapping[str, str],
    settings: ServeSettings,
    *,
    precision: AnswerPrecision,
    indexes: Mapping[str, str] | None = None,
    threads: int | None = None,
    ready: Any = None,
) -> None:
    """Load the models and indexes and serve them. `ready` is called with the address once the service listens.

    Raises MissingExtra where the packages of the service are not installed.
    """
    try:
        from bertwright.serving.search import open_indexes
        from bertwright.serving.server import open_models, serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("bertwright"):
            raise
        raise MissingExtra("serve", "serving") from None
    import torch

    if threads is not None:
        if threads < 1:
            raise InputError(f"--threads {threads}: expected at least 1")
        torch.set_num_threads(threads)
    opened = open_models(models, precision=precision)
    serve(opened, settings, indexes=open_indexes(indexes or {}, opened), ready=ready or (lambda url: None))


def _token(typed: str | None) -> str | None:
    """Return the token of the option or of the environment.

    Raises InputError for an empty token, and for one that no request header can hold. The messages do not show it,
    since it is a secret.
    """
    token = os.environ.get(TOKEN) if typed is None else typed
    if token is None:
        return None
    if not token:
        fault = "expected a token, got an empty text; leave it out to serve without one"
    elif token != token.strip():
        fault = "begins or ends with a space or the end of a line, which no header keeps; remove that"
    elif not token.isprintable():
        position = next(position for position, character in enumerate(token, 1) if not character.isprintable())
        fault = f"character {position} of {len(token)} is not printable, or not UTF-8, which no header holds; remove it"
    else:
        return token
    raise InputError(f"--token (or {TOKEN}): {fault}")


def _models(typed: tuple[str, ...]) -> dict[str, str]:
    """Return the models by their names, in order. Raises InputError for two of one name, or none at all."""
    models = _named(typed, "--model", "MODEL")
    if not models:
        raise InputError("--model: expected at least one model folder or run folder")
    return models


def _models_of(indexes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the models that indexes name, each once. Raises InputError for one that is not there any more."""
    from bertwright.search.index import SearchIndex
    from bertwright.search.run import model_of

    return tuple(dict.fromkeys(model_of(SearchIndex.open(folder)) for folder in indexes.values()))


def _named(typed: tuple[str, ...], option: str, value: str) -> dict[str, str]:
    """Return the folders of an option by their names, in order. Raises InputError for two of one name."""
    folders: dict[str, str] = {}
    for text in typed:
        name, sign, path = text.partition("=")
        if not sign or Path(text).exists():  # a folder of a search is called learning-rate=0.001
            name, path = _name_of(text), text
        if not name or not path:
            raise InputError(f"{option} {text}: expected {value} or NAME={value}")
        if name in folders:
            advice = "write another name" if sign else f"write NAME={value}"
            raise InputError(f"{option} {text}: there are two folders called {name}; {advice}")
        folders[name] = path
    return folders


def _name_of(text: str) -> str:
    """Return the last part of the path or URL; for the `model` folder of a run, the name of the run."""
    from bertwright.stores.cache import url_of_copy

    path = PurePosixPath(url_of_copy(text) or Path(text).resolve())
    return path.parent.name if path.name == "model" else path.name


def _made_by_quickstart(folder: Path) -> dict[str, str]:
    """Return the models of a quickstart that exist in its folder, by their names."""
    return {name: str(folder / name) for name in _DEMO_MODELS if (folder / name / "model" / "config.json").is_file()}
