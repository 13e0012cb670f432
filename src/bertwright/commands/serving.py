"""The commands serve and demo: a model over HTTP and in a browser."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bertwright.errors import InputError, MissingExtra
from bertwright.shipped import shipped

Result = Mapping[str, Any]
Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
Answering = Literal["auto", "fp32", "bf16", "int8"]
TOKEN = "BERTWRIGHT_TOKEN"
_DEMO_MODELS = ("finetuned-pretrained", "pretraining")
"""What quickstart makes and a person would like to see, below its folder."""


def serve(
    *,
    model: Several,
    host: str = "127.0.0.1",
    port: int = 8000,
    precision: Answering = "auto",
    token: str | None = None,
    max_inputs: int = 256,
    max_characters: int = 100_000,
    max_body: int = 1_000_000,
    max_waiting_tokens: int = 8_192,
    timeout: float = 30.0,
    batch_tokens: int = 4096,
    threads: int | None = None,
) -> Result:
    """Answer over HTTP: a page at /, the endpoints at /docs, until Ctrl-C.

    Args:
        model: MODEL, or NAME=MODEL; once for each model. The first one answers requests that name none.
        host: the address to listen at; 0.0.0.0 for every one of this machine's.
        port: 0 takes any that is free.
        precision: auto is bf16 where it is faster here, else fp32; int8 is faster and less exact.
        token: what clients must send as a bearer token; better in the environment, as BERTWRIGHT_TOKEN.
        max_inputs: inputs of one request.
        max_characters: of one text.
        max_body: bytes of one request.
        max_waiting_tokens: tokens in the queue; while so many wait, further requests are refused with 503 at once. A
            BERT-base answers 8,192 tokens in about 15 seconds on two cores.
        timeout: seconds that a request may take.
        batch_tokens: tokens that are computed together.
        threads: of the computation (default: one per core).
    """
    settings = _settings(
        host=host,
        port=port,
        token=_token(token),
        max_inputs=max_inputs,
        max_characters=max_characters,
        max_body=max_body,
        max_waiting_tokens=max_waiting_tokens,
        timeout=timeout,
        batch_tokens=batch_tokens,
    )
    _serve(_named(model), settings, precision=precision, threads=threads)
    return {"text": None}


def demo(
    *,
    model: Several = (),
    port: int = 8000,
    precision: Answering = "auto",
    no_browser: bool = False,
) -> Result:
    """Open a page with a model in the browser: fill masks, classify, look inside.

    Args:
        model: MODEL, or NAME=MODEL, once for each (default: what `bertwright quickstart` made in ./quickstart, else
            the small-wiki that comes with the program).
        port: 0 takes any that is free.
        precision: auto is bf16 where it is faster here, else fp32; int8 is faster and less exact.
        no_browser: only say where the page is.
    """
    import threading
    import webbrowser

    named = _named(model) if model else _made_by_quickstart(Path("quickstart")) or _named(shipped())

    def ready(url: str) -> None:
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()  # a browser in the terminal stays

    _serve(named, _settings(port=port), precision=precision, ready=None if no_browser else ready)
    return {"text": None}


def _serve(
    named: Mapping[str, str], settings: Any, *, precision: Answering, threads: int | None = None, ready: Any = None
) -> None:
    try:
        from bertwright.serving.server import open_models
        from bertwright.serving.server import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("bertwright"):
            raise
        raise MissingExtra("serve", "serving") from None
    import torch

    if threads is not None:
        if threads < 1:
            raise InputError(f"--threads {threads}: at least 1")
        torch.set_num_threads(threads)
    models = open_models(named, precision=precision)
    run(models, settings, ready=ready or (lambda url: None))


def _token(given: str | None) -> str | None:
    """Of the option or the environment; an empty one is a variable that somebody forgot to set.

    One that no request can hold is refused, since nobody would be answered. Messages do not show it: it is a secret.
    """
    token = os.environ.get(TOKEN) if given is None else given
    if token is None:
        return None
    if not token:
        raise InputError(f"--token (or {TOKEN}): is empty; leave it out to serve without one")
    if token != token.strip():
        what = "a space or the end of a line"
        raise InputError(f"--token (or {TOKEN}): begins or ends with {what}, which no header keeps; leave that out")
    if not token.isprintable():
        place = next(place for place, sign in enumerate(token, 1) if not sign.isprintable())
        what = f"character {place} of {len(token)} is not printable, or not UTF-8"
        raise InputError(f"--token (or {TOKEN}): {what}, which no header holds; leave it out")
    return token


def _settings(**given: Any) -> Any:
    from bertwright.serving.schemas import ServeSettings

    return ServeSettings(**given)


def _named(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, sign, place = one.partition("=")
        if not sign or Path(one).exists():  # a search's folder is called learning-rate=0.001
            name, place = _name_of(one), one
        if not name or not place:
            raise InputError(f"--model {one}: write MODEL or NAME=MODEL")
        if name in found:
            raise InputError(f"--model {one}: there are two models called {name}; write NAME=MODEL")
        found[name] = place
    if not found:
        raise InputError("--model: name at least one model folder or run folder")
    return found


def _name_of(place: str) -> str:
    """The last part of the path; of a run's `model` folder, the run's."""
    path = Path(place).resolve()
    return path.parent.name if path.name == "model" else path.name


def _made_by_quickstart(folder: Path) -> dict[str, str]:
    return {name: str(folder / name) for name in _DEMO_MODELS if (folder / name / "model" / "config.json").is_file()}
