"""Every command that the manual prints can be typed, and every link in it leads somewhere."""

import inspect
import re
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bertwright.commands import COMMANDS, load_command, parse
from bertwright.commands.options import entries
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.serving.settings import ServeSettings
from tests.support.pages import PAGES, commands

SETTINGS = {
    "pretrain": PretrainSettings,
    "finetune": FinetuneSettings,
    "distill": FinetuneSettings,
    "serve": ServeSettings,
}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")

ALL = [(page, words) for page in PAGES if page.name != "CHANGELOG.md" for words in commands(page.read_text("utf-8"))]


@cache
def parser_of(name: str, *arguments: str) -> Any:
    """The command's own signature on a function that does nothing; the options depend on the typed arguments."""
    command = load_command(name, arguments)

    def nothing(*_: Any, **__: Any) -> None: ...

    nothing.__signature__ = inspect.signature(command)
    nothing.__annotations__ = inspect.get_annotations(command, eval_str=True)
    nothing.__doc__ = command.__doc__
    return nothing


@pytest.mark.parametrize(("page", "words"), ALL, ids=[f"{page.name}: {' '.join(words)}"[:100] for page, words in ALL])
def test_a_command_of_the_manual_can_be_typed(page: Path, words: list[str]) -> None:
    name = next((" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in COMMANDS), None)
    assert name, f"{page.name}: there is no command {' '.join(words[:2])}"
    optional = any(word.startswith("[--") for word in words)
    rest = [word.strip("[]") for word in words[name.count(" ") + 1 :] if word not in ("…", "--json", "[--json]")]
    if "…" in words or optional:  # an excerpt: what it shows must be options of the command
        known = {*inspect.signature(parser_of(name)).parameters}
        known |= {entry.name for entry in entries(SETTINGS[name])} if name in SETTINGS else set()
        assert {word.removeprefix("--").replace("-", "_") for word in rest if word.startswith("--")} <= known
        return
    with suppress(SystemExit) if "--help" in rest else nullcontext():
        parse(parser_of(name, *rest), rest, prog=name)


def test_there_are_many() -> None:
    assert len(ALL) >= 150
    assert len({words[0] for _, words in ALL}) >= 15


def test_links_lead_somewhere() -> None:
    checked = 0
    for page in PAGES:
        text = page.read_text("utf-8")
        for target in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.S)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor and there.suffix == ".md":
                titles = re.findall(r"^#+ (.*)$", there.read_text("utf-8"), flags=re.M)
                made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
                assert anchor in made, f"{page.name}: {target}"
            checked += 1
    assert checked >= 80
    print(f"\n{checked} links, {len(ALL)} commands")
