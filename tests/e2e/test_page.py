"""The page of a service in a real Chromium, against a real service with small models."""

import csv
import json
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn

from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.registry import find
from bertwright.search.index import SearchIndex
from bertwright.search.index_files import IndexRow
from bertwright.search.new_rows import IndexedText
from bertwright.serving.app import create_app
from bertwright.serving.predictor import Predictor, load
from bertwright.serving.search import ServedIndex, open_indexes
from bertwright.serving.settings import ServeSettings
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.spec import TaskSpec
from bertwright.training.hardware import resolve_numerics
from tests.support import eight_sentences
from tests.support.encoders import SHAPE, write_encoder
from tests.support.texts import PLACES

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
TASKS = find("bertwright.tasks", TaskSpec)
SETTINGS = FinetuneSettings(
    epochs=20, batch_size=4, learning_rate=3e-3, max_length=48, threads=1, precision="fp32", warmup=0.05
)
EPOCHS = {"topics": 30, "number": 4, "swag": 6}  # a number need not be right, a choice is soon learned
PASSAGE = "In the evening they all met near {}, as they had said."
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script> 𝔘𝔫𝔦 & more"
LAYERS, HEADS = SHAPE["layers"], SHAPE["heads"]


# ---- models and a service --------------------------------------------------------------------------------------------


def _write_table(folder: Path, columns: tuple[str, ...], answers: list[str]) -> Path:
    folder.mkdir()
    rows = [[*(f"The {PLACES[row]} of {column}" for column in columns), answers[row]] for row in range(8)]
    text = "\n".join("\t".join(row) for row in [[*columns, "label"], *rows]) + "\n"
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text(text, "utf-8")
    return folder


def _write_questions(folder: Path) -> Path:
    folder.mkdir()
    articles = []
    for row, noun in enumerate(PLACES):
        answer = "" if row in (2, 5) else f"the {noun}"
        context = PASSAGE.format(answer or "something")
        answers = [{"text": answer, "answer_start": context.find(answer)}] if answer else []
        question = {
            "id": f"q{row}",
            "question": "Where did they meet?",
            "answers": answers,
            "is_impossible": not answer,
        }
        articles.append({"title": "t", "paragraphs": [{"context": context, "qas": [question]}]})
    for name in ("train.json", "dev.json"):
        (folder / name).write_text(json.dumps({"version": "v2.0", "data": articles}), "utf-8")
    return folder


def _write_choices(folder: Path) -> Path:
    folder.mkdir()
    endings = ("asks the ferryman", "eats a stone", "paints the moon", "sells the river")
    rows = [
        {
            "sent1": f"Someone waits at the {PLACES[row]}.",
            "sent2": "She",
            **{f"ending{k}": endings[(k - 3 * row) % 4] for k in range(4)},
            "label": 3 * row % 4,
        }
        for row in range(8)
    ]
    for name in ("train.csv", "dev.csv"):
        with (folder / name).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


@pytest.fixture(scope="module")
def trained_models(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> dict[str, Predictor]:
    """A small model of each kind; those with a task are overfitted to eight records."""
    folder = tmp_path_factory.mktemp("page")
    encoder = write_encoder(folder / "m", places_tokenizer, second_sentence="next")
    table: dict[str, Any] = {"dev": ("dev",), "label": "label"}
    mood = ClassificationTask(name="mood", text=("sentence",), labels=("bad", "good"), **table)
    pair = ClassificationTask(name="pair", text=("here", "there"), labels=("no", "yes"), **table)
    topics = ClassificationTask(
        name="topics", text=("sentence",), kind="multilabel", metrics=("micro_f1",), labels=("sea", "town"), **table
    )
    number = ClassificationTask(name="number", text=("sentence",), kind="regression", metrics=("pearson",), **table)
    ner = TASKS["ner"]
    runs = {
        "mood": (mood, _write_table(folder / "mood", ("sentence",), ["bad", "good"] * 4)),
        "pair": (pair, _write_table(folder / "pair", ("here", "there"), ["no", "yes"] * 4)),
        "topics": (topics, _write_table(folder / "topics", ("sentence",), ["sea|town", "town", "sea", ""] * 2)),
        "number": (number, _write_table(folder / "number", ("sentence",), [str(row / 4) for row in range(8)])),
        "ner": (ner, eight_sentences.tagging_example(ner, folder / "ner")["data"]),
        "squad": (TASKS["squad2"], _write_questions(folder / "squad")),
        "swag": (TASKS["swag"], _write_choices(folder / "swag")),
    }
    numerics = resolve_numerics("fp32", threads=1)  # measuring the machine takes longer than learning eight records
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertwright.finetuning.run.resolve_numerics", lambda *_, **__: numerics)
        for name, (task, data) in runs.items():
            settings = SETTINGS.model_copy(update={"epochs": EPOCHS.get(name, 20)})
            finetune(settings, task, model=encoder, data=data, out=folder / f"{name}-run")
    places = {"lm": encoder, **{name: str(folder / f"{name}-run") for name in runs}}
    return {name: load(model_folder, precision="fp32") for name, model_folder in places.items()}


@contextmanager
def served(
    models: dict[str, Predictor], *, indexes: dict[str, ServedIndex] | None = None, **settings: Any
) -> Iterator[str]:
    """The address of a service in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = create_app(models, ServeSettings(**settings), indexes=indexes)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def url(trained_models: dict[str, Predictor]) -> Iterator[str]:
    with served(trained_models) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra dev")
    with sync_api.sync_playwright() as tools:
        chromium = tools.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def open_page(
    browser: Any, url: str, *, refused: tuple[int, ...] = (), width: int = 1000, colours: str = "light"
) -> Iterator[Any]:
    """Open the page; at the end the console has only the statuses `refused`, and no other host was called."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=colours, locale="en", reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(10_000)
    messages: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: messages.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    try:
        page.goto(url)
        yield page
        expected = re.compile("|".join(f"status of {status}" for status in refused) or "(?!)")
        assert [text for text in messages if not expected.search(text)] == []
        assert [requested_url for requested_url in requested if not requested_url.startswith((url, "data:"))] == []
    finally:
        context.close()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    with open_page(browser, url) as opened_page:
        yield opened_page


def at(page: Any, model: str, tab: str) -> Any:
    """Go to a tab of a model: where its results appear."""
    page.select_option("#model", model)
    page.click(f"#tab-{tab}")
    return page.locator(f"#result-{tab}")


def wait_for_answer(page: Any, tab: str) -> None:
    page.wait_for_function(
        "(tab) => { const it = document.getElementById(`result-${tab}`);"
        " return it.children.length && !it.hasAttribute('aria-busy'); }",
        arg=tab,
    )


def type_into(page: Any, tab: str, fields: dict[str, str]) -> None:
    """Write into the fields and wait for the answer."""
    for name, text in fields.items():
        page.fill(f"#{tab}-{name}", text)
    page.evaluate("(tab) => ask(tab, true)", tab)
    wait_for_answer(page, tab)


# ---- the tests -------------------------------------------------------------------------------------------------------


def test_masks_are_filled_as_one_types(page: Any, trained_models: dict[str, Predictor]) -> None:
    result = at(page, "lm", "fill")
    text = "The [MASK] of the harbour"
    page.locator("#fill-text").fill("")
    # beginnings of the text have answers too, where a key comes late
    with page.expect_response(lambda response: text in (response.request.post_data or "")):
        page.locator("#fill-text").press_sequentially(text)  # keys alone, no button
    wait_for_answer(page, "fill")
    expected = trained_models["lm"](text).masks[0]
    assert result.locator(".mask").count() == 1
    assert result.locator(".name").all_inner_texts()[:3] == [one.piece for one in expected[:3]]
    assert result.locator(".share").first.inner_text() == f"{100 * expected[0].probability:.1f} %"
    assert expected[0].piece in page.locator("#told-fill").inner_text()  # what is read out

    page.fill("#fill-text", "no gap")
    result.get_by_text("Write [MASK] in place of a word.").wait_for()
    page.click("#fill-insert")
    page.click("#fill-insert")
    page.wait_for_function("() => document.querySelectorAll('#result-fill .mask').length === 2")
    assert page.input_value("#fill-text") == "no gap[MASK][MASK]"


def test_labels_have_bars(page: Any, trained_models: dict[str, Predictor]) -> None:
    result = at(page, "mood", "classification")
    assert not page.locator("#classification-second").is_visible()
    type_into(page, "classification", {"first": "The garden of sentence"})
    assert result.locator(".big").inner_text() == "good"
    assert result.locator(".name").all_inner_texts() == ["good", "bad"]
    share = trained_models["mood"]("The garden of sentence").probability
    assert result.locator(".share").first.inner_text() == f"{100 * share:.1f} %"
    width = result.locator(".track i").first.evaluate("(bar) => bar.offsetWidth / bar.parentElement.offsetWidth")
    assert width == pytest.approx(share, abs=0.02)


def test_a_pair_has_two_fields(page: Any, trained_models: dict[str, Predictor]) -> None:
    result = at(page, "pair", "classification")
    type_into(page, "classification", {"first": "The harbour of here", "second": "The harbour of there"})
    assert result.locator(".big").inner_text() == "no"
    type_into(page, "classification", {"second": " "})
    assert result.inner_text() == "Fill in both fields."


def test_several_labels_and_a_number(page: Any, trained_models: dict[str, Predictor]) -> None:
    result = at(page, "topics", "classification")
    type_into(page, "classification", {"first": "The harbour of sentence"})
    assert result.locator(".big").inner_text() == "Labels that apply: sea, town"
    type_into(page, "classification", {"first": "The kitchen of sentence"})
    assert result.locator(".big").inner_text() == "No label applies."

    result = at(page, "number", "classification")
    type_into(page, "classification", {"first": "The bridge of sentence"})
    score = trained_models["number"]("The bridge of sentence").score
    assert result.locator(".number").inner_text() == f"{score:.3f}"


def test_entities_are_marked_with_their_types(page: Any, trained_models: dict[str, Predictor]) -> None:
    result = at(page, "ner", "tagging")
    words, _ = eight_sentences.sentence(0)
    text = " ".join(words)
    type_into(page, "tagging", {"text": text})
    entities = trained_models["ner"](text).entities
    assert [one.type for one in entities] == ["PER", "LOC"]
    marks = result.locator("mark")
    assert marks.all_inner_texts() == [f"{one.text}{one.type} {100 * one.probability:.1f} %" for one in entities]
    colours = marks.evaluate_all("(marks) => marks.map((mark) => getComputedStyle(mark).backgroundColor)")
    assert len(set(colours)) == 2


def test_positions_count_characters(page: Any, trained_models: dict[str, Predictor]) -> None:
    """Beyond the first plane a character is two units in JavaScript and one in the service."""
    result = at(page, "ner", "tagging")
    text = f"𝔘𝔫𝔦 {' '.join(eight_sentences.sentence(0)[0])}"
    type_into(page, "tagging", {"text": text})
    entities = trained_models["ner"](text).entities
    assert entities
    marked = result.locator("mark").evaluate_all("(marks) => marks.map((mark) => mark.firstChild.data)")
    assert marked == [text[one.start : one.end] for one in entities] == [one.text for one in entities]


def test_an_answer_is_marked_in_its_passage(page: Any, trained_models: dict[str, Predictor]) -> None:
    result = at(page, "squad", "questions")
    type_into(page, "questions", {"question": "Where did they meet?", "context": PASSAGE.format("the harbour")})
    assert result.locator("mark").inner_text() == "the harbour"
    assert result.locator(".big").inner_text() == "the harbour"
    assert result.locator(".text").inner_text() == PASSAGE.format("the harbour")
    none = trained_models["squad"](("Where did they meet?", PASSAGE.format("something"))).no_answer
    type_into(page, "questions", {"context": PASSAGE.format("something")})
    assert result.locator("mark").count() == 0
    assert result.locator(".big").inner_text() == "The passage does not contain an answer."
    assert result.locator(".share").inner_text() == f"{100 * none:.1f} %"


@pytest.mark.parametrize(
    ("name", "tab", "fields"),
    [
        ("mood", "classification", {"first": "The garden of sentence"}),
        ("pair", "classification", {"first": "The harbour of here", "second": "The harbour of there"}),
        ("ner", "tagging", {"text": " ".join(eight_sentences.sentence(0)[0])}),
        ("squad", "questions", {"question": "Where did they meet?", "context": PASSAGE.format("the harbour")}),
    ],
)
def test_words_that_spoke_for_an_answer(
    page: Any, trained_models: dict[str, Predictor], name: str, tab: str, fields: dict[str, str]
) -> None:
    result = at(page, name, tab)
    type_into(page, tab, fields)
    assert result.locator(".explained").count() == 0
    page.check(f"#{tab}-explain")
    part = result.locator(".explained")
    part.wait_for()
    explanation = trained_models[name].explain(*fields.values())
    ranked = sorted(explanation.words, key=lambda word: -abs(word.score))
    part.locator("summary").focus()
    page.keyboard.press("Enter")  # the table opens by the keyboard
    assert part.locator("tbody th").all_inner_texts() == [word.text for word in ranked]
    scores = [float(cell.replace("\N{MINUS SIGN}", "-")) for cell in part.locator("td").all_inner_texts()]
    assert scores == pytest.approx([word.score for word in ranked], abs=1e-3)
    marks = part.locator(".text mark")
    expected = [word for word in explanation.words if abs(word.score) >= 0.02 * abs(ranked[0].score)]
    assert marks.all_inner_texts() == [word.text for word in expected]
    kinds = marks.evaluate_all("(all) => all.map((mark) => mark.className)")
    assert kinds == ["for" if word.score > 0 else "against" for word in expected]
    first = next(position for position, word in enumerate(expected) if word is ranked[0])
    assert marks.nth(first).get_attribute("title").startswith(f"{ranked[0].score:+.3f}".replace("-", "\N{MINUS SIGN}"))
    assert ranked[0].text in page.locator(f"#told-{tab}").inner_text()  # what is read out


def test_a_choice_is_made(page: Any) -> None:
    result = at(page, "swag", "choice")
    page.fill("#choice-context", "Someone waits at the harbour.")
    endings = ["She asks the ferryman", "She eats a stone", "She paints the moon"]
    page.get_by_role("button", name="Remove continuation 4").click()
    for position, ending in enumerate(endings, 1):
        page.get_by_label(f"Continuation {position}", exact=True).fill(ending)
    type_into(page, "choice", {})
    assert result.locator(".name").all_inner_texts() == endings
    assert result.locator("li.best .name").inner_text() == endings[0]


def test_does_the_second_text_follow(page: Any, trained_models: dict[str, Predictor]) -> None:
    result = at(page, "lm", "next")
    type_into(page, "next", {"first": "The harbour", "second": "the garden"})
    assert result.locator(".name").all_inner_texts() == ["follows", "does not follow"]
    share = trained_models["lm"].next_sentence("The harbour", "the garden")
    assert result.locator(".share").first.inner_text() == f"{100 * share:.1f} %"


def test_two_texts_are_compared(page: Any, trained_models: dict[str, Predictor]) -> None:
    result = at(page, "ner", "compare")
    compared(page, ["The harbour", "the garden of the tower"])
    a, b = trained_models["ner"].vectors(["The harbour", "the garden of the tower"]).astype(float)
    cosine = a @ b / np.sqrt((a @ a) * (b @ b))
    assert float(result.locator(".number").inner_text()) == pytest.approx(cosine, abs=1e-3)
    assert result.locator("svg[role=img] line").count() == 2
    compared(page, ["The harbour", "The harbour"])
    assert result.locator(".number").inner_text() == "1.000"
    compared(page, ["The harbour", " "])
    assert result.inner_text() == "Write at least two texts."


def test_several_texts_are_compared_in_a_matrix(page: Any, trained_models: dict[str, Predictor]) -> None:
    result = at(page, "ner", "compare")
    texts = ["The harbour", "the garden of the tower", "The harbour\nof the tower", "rain"]
    page.get_by_role("button", name="Add a text").click()
    compared(page, texts)
    vectors = trained_models["ner"].vectors(texts).astype(float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    cells = result.locator(".matrix tbody td").all_inner_texts()
    assert [float(cell) for cell in cells] == pytest.approx(cosines.ravel().tolist(), abs=1e-3)
    lower = np.where(np.tri(len(texts), k=-1, dtype=bool), cosines, -1)
    second, first = np.unravel_index(lower.argmax(), lower.shape)
    assert f"Most similar: text {first + 1} and text {second + 1}, {lower.max():.3f}" in result.inner_text()
    assert result.locator(".matrix .best").count() == 2


def compared(page: Any, texts: list[str]) -> None:
    """Write into the fields of the texts to compare, remove the others, and wait for the answer."""
    for number, text in enumerate(texts, 1):
        page.get_by_role("textbox", name=f"Text {number}", exact=True).fill(text)
    while (extra := page.get_by_role("button", name=f"Remove text {len(texts) + 1}")).count():
        extra.click()
    type_into(page, "compare", {})


def test_the_input_and_the_attention_are_drawn(page: Any) -> None:
    result = at(page, "lm", "inside")
    wait_for_answer(page, "inside")
    with page.expect_response(lambda response: "the garden" in (response.request.post_data or "")) as first:
        type_into(page, "inside", {"first": "the harbour", "second": "the garden"})
    attention = first.value.json()
    pieces = attention["pieces"]
    cells = [
        row.split("|")
        for row in result.locator("table.figure").evaluate(
            "(table) => [...table.rows].map((row) => [...row.cells].slice(1)"
            ".map((cell) => cell.querySelector('.box').textContent).join('|'))"
        )
    ]
    assert cells == [
        pieces,
        [f"E{piece}" for piece in pieces],
        [f"E{'AB'[segment]}" for segment in attention["segments"]],
        [f"E{position}" for position in range(len(pieces))],
    ]
    assert result.locator("table.figure .plus", has_text="+").count() == 2 * len(pieces)
    assert first.value.request.post_data_json["layer"] == LAYERS

    def lines() -> int:
        return int(result.locator("#attention line").count())

    assert "mean of all heads" in page.locator("#attention-title").inner_text()
    mean = np.mean(attention["attention"], axis=0)
    assert lines() == 3 * len(pieces)
    widths = result.locator("#attention line").evaluate_all(
        "(all) => all.map((one) => one.getAttribute('stroke-width'))"
    )
    expected = [0.5 + 3.5 * weight for weight in np.sort(mean.ravel())[::-1][: 3 * len(pieces)]]
    assert [float(width) for width in widths] == pytest.approx(expected, abs=0.006)  # the strongest first
    page.select_option("#inside-lines", "all")
    assert lines() == (mean >= 0.02).sum()
    page.select_option("#inside-head", "1")
    assert lines() == sum(share >= 0.02 for row in attention["attention"][0] for share in row)
    result.locator("[data-token=from-1]").hover()
    expected = [f"{100 * share:.1f} %" for share in attention["attention"][0][1]]
    assert result.locator("[data-token^=to-] .share").all_text_contents() == expected
    assert lines() == sum(share >= 0.001 for share in attention["attention"][0][1])
    page.select_option("#inside-head", "3")  # in the answer that is there already
    assert "layer 2, head 3" in page.locator("#attention-title").inner_text()
    expected = [f"{100 * share:.1f} %" for share in attention["attention"][2][1]]
    assert result.locator("[data-token^=to-] .share").all_text_contents() == expected
    page.select_option("#inside-head", "mean")
    assert "mean of all heads" in page.locator("#attention-title").inner_text()

    with page.expect_response("**/v1/inside") as second:
        page.select_option("#inside-layer", "1")
    assert second.value.request.post_data_json["layer"] == 1
    page.get_by_role("heading", name="Attention in layer 1").wait_for()
    result.locator("summary").click()
    result.locator("table.listed tbody tr").first.wait_for()  # a browser tells of an opened <details> later
    assert result.locator("table.listed tbody tr").count() == len(pieces)
    assert "%" in result.locator("table.listed tbody tr").first.inner_text()


def test_the_keyboard_is_enough(page: Any) -> None:
    at(page, "lm", "fill")
    wait_for_answer(page, "fill")

    def focused() -> str:
        return str(page.evaluate("document.activeElement.id || document.activeElement.dataset.token"))

    page.locator("#model").focus()
    page.keyboard.press("Tab")
    assert focused() == "tab-fill"
    seen = []
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        seen.append(focused())
        assert page.locator("[role=tabpanel]:visible").get_attribute("aria-labelledby") == focused()
        assert page.locator("[role=tab][aria-selected=true]").get_attribute("id") == focused()
    assert seen == ["tab-next", "tab-compare", "tab-inside", "tab-fill"]
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # where one is can be seen
    page.keyboard.press("End")
    assert focused() == "tab-inside"
    wait_for_answer(page, "inside")
    for _ in range(20):
        page.keyboard.press("Tab")
        if focused() == "from-0":
            break
    assert focused() == "from-0"
    page.keyboard.press("ArrowDown")
    assert focused() == "from-1"
    assert page.locator("#shares").inner_text().startswith("“m” attends to:")
    page.keyboard.press("ArrowRight")
    assert focused() == "to-1"
    assert "is attended to by" in page.locator("#shares").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#shares").inner_text() == ""
    assert focused() == "to-1"


@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_field_has_a_name(page: Any, language: str) -> None:
    page.select_option("#language", language)
    at(page, "lm", "fill")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea, button')].filter((one) =>"
        " !one.getAttribute('aria-label') && ![...one.labels].some((label) => label.textContent.trim())"
        " && !one.textContent.trim()).map((one) => one.outerHTML)"
    )
    assert unnamed == []


def test_a_phone_needs_no_sideways_scrolling(browser: Any, url: str) -> None:
    tabs = {
        "lm": ("fill", "next", "compare", "inside"),
        "pair": ("classification",),
        "ner": ("tagging",),
        "squad": ("questions",),
        "swag": ("choice",),
    }
    with open_page(browser, url, width=360) as page:
        page.wait_for_selector("#chooser:not([hidden])")
        for language in ("en", "ko"):
            page.select_option("#language", language)
            for model, names in tabs.items():
                for name in names:
                    at(page, model, name)
                    wait_for_answer(page, name)
                    wide = page.evaluate("document.documentElement.scrollWidth")
                    assert (language, name, wide) == (language, name, 360)


def test_on_a_phone_the_model_and_the_tabs_come_first(browser: Any, url: str) -> None:
    with open_page(browser, url, width=390) as page:
        at(page, "lm", "fill")
        wait_for_answer(page, "fill")
        model, tabs, text, language = (
            page.locator(selector).bounding_box() for selector in ("#model", "#tabs", "#fill-text", "#language")
        )
        assert model["y"] < 100
        assert model["y"] < tabs["y"] < text["y"] < language["y"]
        assert tabs["y"] + tabs["height"] < 300


def test_hover_and_the_selected_tab_look_different(page: Any) -> None:
    at(page, "lm", "fill")
    page.hover("#tab-compare")
    looks = [
        page.locator(f"#tab-{name}").evaluate(
            "(tab) => { const look = getComputedStyle(tab);"
            " return [look.color, look.backgroundColor, look.borderBottomColor]; }"
        )
        for name in ("fill", "compare", "inside")
    ]
    selected, hovered, other = looks
    for first, second in ((selected, hovered), (hovered, other), (selected, other)):
        assert first[0] != second[0]
    assert selected[2] != hovered[2]
    assert hovered[1] != selected[1] == other[1]


def test_what_scrolls_shows_it(browser: Any, url: str) -> None:
    with open_page(browser, url, width=390) as page:
        result = at(page, "lm", "inside")
        wait_for_answer(page, "inside")
        hint = result.get_by_text("Scroll sideways to see all tokens")
        hint.wait_for()
        faded = result.locator(".scrolling.more")
        assert faded.count() == 1
        result.locator(".scroll").evaluate("(box) => box.scrollTo(box.scrollWidth, 0)")
        faded.wait_for(state="detached")  # the end is reached
        assert hint.is_visible()
    with open_page(browser, url, width=1200) as page:
        result = at(page, "lm", "inside")
        type_into(page, "inside", {"first": "a", "second": ""})
        assert not result.get_by_text("Scroll sideways").is_visible()


def test_dark_and_light(browser: Any, url: str) -> None:
    shown = "getComputedStyle(document.body).backgroundColor"
    with open_page(browser, url) as page:
        light = page.evaluate(shown)
        page.select_option("#theme", "dark")
        dark = page.evaluate(shown)
        assert dark != light
        page.reload()  # it is remembered
        assert page.evaluate(shown) == dark
        page.select_option("#theme", "light")
        assert page.evaluate(shown) == light
    with open_page(browser, url, colours="dark") as page:
        assert page.evaluate(shown) == dark


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((one) => (one /= 255) <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const found = rgb(getComputedStyle(one).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  for (const one of document.querySelectorAll('body *')) {
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    if (!one.checkVisibility()) continue;
    const style = getComputedStyle(one);
    const ink = rgb(one instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(one))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${one.tagName} ${one.className.baseVal ?? one.className} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_all_text_has_the_contrast_of_wcag(browser: Any, url: str, colours: str) -> None:
    with open_page(browser, url, colours=colours) as page:
        for model, name in (("lm", "fill"), ("lm", "inside"), ("ner", "tagging"), ("squad", "questions")):
            at(page, model, name)
            if name == "tagging":
                type_into(page, name, {"text": " ".join(eight_sentences.sentence(3)[0])})
                assert page.locator("mark").count()
            wait_for_answer(page, name)
            assert (name, page.evaluate(CONTRAST)) == (name, [])


def test_korean(page: Any) -> None:
    at(page, "lm", "fill")
    wait_for_answer(page, "fill")
    page.select_option("#language", "ko")
    assert page.evaluate("document.documentElement.lang") == "ko"
    assert page.get_by_role("tab").all_inner_texts() == [
        "빈칸 채우기",
        "다음 문장 예측",
        "텍스트 비교",
        "모델 들여다보기",
    ]
    assert "빈칸을 채운 텍스트" in page.locator("#result-fill").inner_text()  # a result that was there already, too
    assert re.fullmatch(r"\d+\.\d%", page.locator("#result-fill .share").first.inner_text())  # no space in Korean
    page.reload()
    page.get_by_role("tab", name="빈칸 채우기").wait_for()
    missing = page.evaluate(
        "[Object.keys(WORDS.en), Object.keys(WORDS.ko)].map((keys, at, both) =>"
        " keys.filter((key) => !both[1 - at].includes(key)))"
    )
    assert missing == [[], []]
    untold = page.evaluate("[...document.querySelectorAll('[data-t]')].map((one) => one.dataset.t)")
    assert set(untold) <= set(page.evaluate("Object.keys(WORDS.en)"))


def test_an_index_is_searched(
    browser: Any, tmp_path: Path, places_tokenizer: Path, trained_models: dict[str, Predictor]
) -> None:
    """Rows with scores and marked words, reranked on request; markup in ids, texts and fields is text."""
    encoder = load(write_encoder(tmp_path / "encoder", places_tokenizer), precision="fp32")
    long = "Nothing stands here. " * 90 + "The bridges are far away. " + "Nothing follows. " * 90
    texts = {
        "mill": "The old mill and the bridge.",
        "<b>": f"A Bridge. {HOSTILE}",
        "long": long,
        "ko": "다리가 열렸다.",
    }
    rows = [[IndexedText(IndexRow(id, text, {"note": "<i>1</i>"}), id) for id, text in texts.items()]]
    SearchIndex.build(tmp_path / "index", encoder.pipeline_for("vectors").sentences, rows, model=encoder.source)
    models = {"pair": trained_models["pair"], "mood": trained_models["mood"], "encoder": encoder}
    indexes = open_indexes({"docs": str(tmp_path / "index")}, models)
    query = "Where is the bridge?"
    with served(models, indexes=indexes) as url, open_page(browser, url) as page:
        page.get_by_role("tab", name="Search").wait_for()
        assert page.input_value("#model") == "encoder"  # the model of the index
        assert not page.locator("#search-index").is_visible()  # there is only one
        type_into(page, "search", {"query": query})
        result = page.locator("#result-search")
        expected = encoder.search(query, index=indexes["docs"].index)
        assert result.locator(".head span:first-child").all_inner_texts() == [hit.id for hit in expected]
        assert result.locator(".score").all_inner_texts() == [f"{hit.score:.3f}" for hit in expected]
        assert sorted(result.locator("mark").all_inner_texts()) == ["Bridge", "bridge", "bridges"]
        assert HOSTILE in result.inner_text()
        assert result.get_by_text("<i>1</i>").count() == 4
        excerpt = result.locator("li", has_text="far away").locator(".text").inner_text()
        assert len(excerpt) < 600
        assert excerpt.startswith("… ")
        assert excerpt.endswith(" …")
        assert page.locator("#search-reranker option").all_inner_texts() == ["none", "pair"]
        page.select_option("#search-reranker", "pair")
        page.wait_for_function(
            "() => document.querySelector('#result-search > p.quiet').textContent.includes('relevance by pair')"
        )
        with pytest.warns(UserWarning, match="2 of 4 inputs exceed"):
            ranked = trained_models["pair"].rerank(query, [hit.text for hit in expected])
        assert result.locator(".score").all_inner_texts() == [f"{each.score:.3f}" for each in ranked]
        type_into(page, "search", {"query": "다리는 어디에 있나요?"})
        assert result.locator("mark").all_inner_texts() == ["다리가"]
        assert result.locator(":is(img, script, b, i)").count() == 0
        assert page.title() == "bertwright"
        page.select_option("#model", "mood")
        assert page.locator("#tab-search").count() == 0


def test_markup_is_shown_as_text(page: Any) -> None:
    at(page, "ner", "tagging")
    words = " ".join(eight_sentences.sentence(2)[0])
    type_into(page, "tagging", {"text": f"{HOSTILE} {words}"})
    at(page, "squad", "questions")
    type_into(page, "questions", {"question": HOSTILE, "context": f"{PASSAGE.format('the tower')} {HOSTILE}"})
    assert page.locator("#result-questions .text").inner_text().endswith(HOSTILE)
    at(page, "lm", "inside")
    type_into(page, "inside", {"first": "<img> <script>", "second": ""})
    at(page, "lm", "fill")
    type_into(page, "fill", {"text": f"[MASK] {HOSTILE[:40]}"})
    assert HOSTILE[:40] in page.locator("#result-fill .text").inner_text()
    at(page, "swag", "choice")
    page.get_by_label("Continuation 1", exact=True).fill(HOSTILE)
    type_into(page, "choice", {})
    assert page.locator("#result-choice .name").first.inner_text() == HOSTILE
    assert page.locator("[id^=result] :is(img, script)").count() == 0
    assert page.title() == "bertwright"


def test_a_refusal_is_shown_in_the_services_words(browser: Any, url: str) -> None:
    with open_page(browser, url, refused=(422,)) as page:
        result = at(page, "lm", "fill")
        type_into(page, "fill", {"text": "[MASK]" * 80})
        assert "this model takes at most 64" in result.get_by_role("alert").inner_text()
        type_into(page, "fill", {"text": "[MASK]"})
        assert result.get_by_role("alert").count() == 0


def test_a_token_is_required(browser: Any, trained_models: dict[str, Predictor]) -> None:
    with (
        served({"lm": trained_models["lm"]}, token="schlüssel") as url,
        open_page(browser, url, refused=(401,)) as page,
    ):
        page.get_by_role("heading", name="This service requires an access token").wait_for()
        assert "Authorization: Bearer TOKEN" in page.locator("#token-trouble").inner_text()
        page.get_by_label("Access token").fill("another")
        page.keyboard.press("Enter")
        page.locator("#token-form").wait_for()
        page.get_by_label("Access token").fill("schlüssel")
        page.keyboard.press("Enter")
        page.locator("#tab-fill").wait_for()
        wait_for_answer(page, "fill")
        assert not page.locator("#token-form").is_visible()
        assert page.evaluate("sessionStorage.getItem('bertwright.token')") == "schlüssel"
        assert page.evaluate("localStorage.getItem('bertwright.token')") is None


def test_a_busy_service_is_asked_again(browser: Any, url: str) -> None:
    with open_page(browser, url, refused=(503,)) as page:
        result = at(page, "lm", "next")
        wait_for_answer(page, "next")
        refusals = [1, 1]

        def refuse(route: Any) -> None:
            if not refusals:
                route.continue_()
                return
            refusals.pop()
            body = {"error": {"message": "12 s of work wait", "type": "overloaded"}}
            route.fulfill(status=503, json=body, headers={"Retry-After": "1"})

        page.route("**/v1/next-sentence", refuse)
        page.fill("#next-first", "another text")
        result.get_by_text("tries again in 1 second").wait_for()
        assert "12 s of work wait" in result.inner_text()
        result.locator(".bars").wait_for()
        assert refusals == []


def test_a_service_that_is_gone_is_reported(browser: Any, trained_models: dict[str, Predictor]) -> None:
    with opened_gone(browser, trained_models) as page:
        result = page.locator("#result-fill")
        page.fill("#fill-text", "now [MASK]")
        result.get_by_role("alert").wait_for()
        assert "cannot be reached" in result.inner_text()
        assert result.get_by_role("button", name="Try again").is_visible()


@contextmanager
def opened_gone(browser: Any, models: dict[str, Predictor]) -> Iterator[Any]:
    """The page of a service that ended since."""
    context = browser.new_context(locale="en")
    try:
        page = context.new_page()
        with served({"lm": models["lm"]}) as url:
            page.goto(url)
            page.locator("#tab-fill").wait_for()
            wait_for_answer(page, "fill")
        yield page
    finally:
        context.close()


def test_an_older_answer_never_replaces_a_newer_one(page: Any) -> None:
    result = at(page, "lm", "fill")
    wait_for_answer(page, "fill")
    held: list[Any] = []

    def hold(route: Any) -> None:
        if not held:
            held.append(route)  # the first is answered last
        else:
            route.continue_()

    page.route("**/v1/fill", hold)
    page.evaluate("document.getElementById('fill-text').value = 'old [MASK] [MASK]'; window.older = ask('fill'); 0")
    page.evaluate("document.getElementById('fill-text').value = 'new [MASK]'; void ask('fill')")
    page.wait_for_function("() => document.querySelectorAll('#result-fill .mask').length === 1")
    assert held[0].request.post_data_json["inputs"] == ["old [MASK] [MASK]"]
    held[0].fulfill(response=held[0].fetch())  # the service's own answer to the older text
    page.evaluate("window.older")
    assert "new " in result.locator(".text").inner_text()
    assert result.get_by_role("alert").count() == 0
