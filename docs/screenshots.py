"""models → pictures of the page, for the manual: `python docs/screenshots.py lm=RUN ner=RUN squad=RUN swag=RUN`.

Starts `bertwright serve` with the models and takes what the page shows with Chromium, into docs/pictures. What a model
cannot do is left out. `python docs/screenshots.py --displays RUN …` takes what a notebook displays of the models; the
models of the manual are those of tutorial.ipynb. `python docs/screenshots.py --tensorboard FOLDER` takes TensorBoard's
page of the runs in FOLDER. Needs the extra `dev` and a Chromium.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import bertwright

PICTURES = Path(__file__).resolve().parent / "pictures"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SHOTS = (  # name, kind of model, tab, width, height, colours, language
    ("fill", "fill", "fill", 1280, 830, "light", "en"),
    ("entities", "tagging", "tagging", 1280, 600, "light", "en"),
    ("question", "questions", "questions", 1280, 760, "light", "en"),
    ("choice", "choice", "choice", 1280, 880, "light", "en"),
    ("inside", "fill", "inside", 1280, 1330, "light", "en"),
    ("fill-dark", "fill", "fill", 1280, 830, "dark", "en"),
    ("compare-korean", "fill", "compare", 1280, 860, "light", "ko"),
    ("fill-phone", "fill", "fill", 360, 1040, "light", "en"),
    ("entities-phone", "tagging", "tagging", 360, 800, "light", "en"),
)
DISPLAYED = {
    "fill": "Nobody at the [MASK] sees the boat of the sailor.",
    "classification": "The captain leaves the anchor near the bay.",
}
"""Kind of model → the text of its displays."""


@contextmanager
def serving(*command: str) -> Iterator[str]:
    """Yield the address of a service, which it prints when it answers."""
    with subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = ""
            while not (address := re.search(r"(http://[\w.]+:\d+)", line)):
                line = process.stderr.readline()
                if not line:
                    raise SystemExit("the service did not start")
            yield address[1]
        finally:
            process.terminate()
            process.communicate()


def shown(page: Page, kind: str, tab: str) -> bool:
    """Open a tab with the first model of that kind and wait for its answer; False where there is none."""
    page.wait_for_selector("#model option", state="attached")
    options = page.evaluate("(kind) => models.filter((one) => one.kind === kind).map((one) => one.id)", kind)
    if not options:
        return False
    page.select_option("#model", options[0])
    page.click(f"#tab-{tab}")
    page.wait_for_selector(f"#result-{tab} > *")
    page.wait_for_function(f"!document.querySelector('#result-{tab}').hasAttribute('aria-busy')")
    page.evaluate("document.activeElement.blur()")
    return True


def take(browser: Browser, url: str) -> None:
    """All pictures."""
    for name, kind, tab, width, height, colours, language in SHOTS:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=colours, locale=language
        )
        page = context.new_page()
        page.goto(url)
        if shown(page, kind, tab):
            page.wait_for_timeout(600)
            page.screenshot(path=PICTURES / f"{name}.png")
        else:
            print(f"{name}: no model for {kind}", file=sys.stderr)
        context.close()


def take_displays(browser: Browser, folders: list[str]) -> None:
    """What a notebook displays: each model, an answer, and the words that spoke for it where it can explain one."""
    parts = []
    for model in map(bertwright.load, folders):
        text = DISPLAYED[model.kind]
        shown = [model, model(text), *([model.explain(text)] if model.can("explain") else [])]
        parts += [f"<div style='margin:0 0 18px'>{each._repr_html_()}</div>" for each in shown]
    page = browser.new_page(viewport={"width": 760, "height": 200})
    page.set_content(f"<body style='font:14px system-ui;margin:16px'>{''.join(parts)}")
    page.screenshot(path=PICTURES / "notebook.png", full_page=True)


def take_tensorboard(browser: Browser, folders: list[str]) -> None:
    """TensorBoard's charts of the runs in the first folder."""
    with serving("tensorboard.main", "--logdir", folders[0], "--host", "127.0.0.1", "--port", "0") as url:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{url}/?darkMode=false&smoothing=0&tagFilter=train|out.mlm_(loss|accuracy)#timeseries")
        page.wait_for_selector("scalar-card svg path", timeout=60_000)
        page.get_by_role("button", name="Settings").first.click()
        page.wait_for_timeout(3000)  # the lines are drawn after their axes
        page.screenshot(path=PICTURES / "tensorboard.png")


def main(models: list[str]) -> None:
    """Arguments: MODEL or NAME=MODEL, one or more; folders of models with --displays first, of runs --tensorboard."""
    chromium = shutil.which("chromium")
    if not models or chromium is None:
        raise SystemExit(__doc__ if chromium else "no chromium on the PATH")
    PICTURES.mkdir(exist_ok=True)
    taken = {"--displays": take_displays, "--tensorboard": take_tensorboard}
    if models[0] in taken:
        with sync_playwright() as tools:
            taken[models[0]](tools.chromium.launch(executable_path=chromium, args=FLAGS), models[1:])
        return
    options = [part for model in models for part in ("--model", model)]
    with serving("bertwright", "serve", "--port", "0", *options) as url, sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=FLAGS)
        take(browser, url)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
