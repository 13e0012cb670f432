"""The report: well formed, escaped, complete without validation, and two runs on one page."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.reports.charts import Chart, Series, averaged, ticks
from bertwright.reports.curves import run_charts
from bertwright.reports.report import try_report, write_report
from bertwright.reports.runs import read_run
from bertwright.training.run_folder import RunFolder, start_run
from tests.support.folders import read_jsonl

EVIL = "<script>alert('&\"')</script>"
VOID = {"meta"}


class Checked(HTMLParser):
    """Parser that refuses tags which do not close in order, and gathers texts, tags and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def checked_page(path: Path) -> Checked:
    page = path.read_text("utf-8")
    checked = Checked()
    checked.feed(page)
    checked.close()
    assert checked.open == []
    assert not checked.links
    assert "script" not in checked.tags
    assert not re.search(r"https?:|@import|url\((?!#)", page)
    assert re.search(r"\bnan\b|undefined", page) is None
    return checked


def page_text(path: Path) -> str:
    return " ".join(" ".join(checked_page(path).texts).split())


def pretraining(folder: Path, *, held_out: bool = True, **changes: Any) -> RunFolder:
    settings = PretrainSettings.model_validate({"steps": 200, **changes}).model_dump(mode="json")
    run = start_run(folder, kind="pretrain", settings=settings, data={"corpus": "c0ffee", "x": EVIL}, resume=False)
    for step in range(10, 210, 10):
        loss = 10.2 if step == 10 else 7.0 - step / 100
        run.log({"step": step, "mlm": loss, "nsp": 0.7, "gradient_norm": 1.5, "learning_rate": 1e-4,
                 "seconds": 3.0, "tokens_per_second": 500.0, "mfu": 0.25})  # fmt: skip
        if held_out and step % 100 == 0:
            run.log({"step": step, "held_out": {"mlm_loss": loss - 0.5, "mlm_accuracy": step / 1000, "rows": 64.0}})
    run.note(resolved={"numerics": {"precision": "fp32", "peak_flops": 2e11}, "steps": 200}, versions={"torch": EVIL})
    return run


def test_a_page_is_whole_escaped_and_says_the_figures(tmp_path: Path) -> None:
    run = pretraining(tmp_path / "r", seed=7)
    before = (run.folder / "metrics.jsonl").read_bytes()
    shown = page_text(write_report(run.folder, corpus=None))
    assert EVIL in shown  # as text, because no tag of that name was parsed
    assert "4.500 nats" in shown
    assert "20.0%" in shown
    assert "500 tokens/s" in shown
    assert "200 GFLOP/s" in shown
    assert "the paper: 0" in shown  # the seed, and no other setting but the steps, differs
    assert shown.count("the paper:") == 2
    assert "one point lies above the picture, the highest at 10.2" in shown
    assert (run.folder / "metrics.jsonl").read_bytes() == before


def test_a_page_repeats_the_warnings_of_its_runs(tmp_path: Path) -> None:
    plain, warned = pretraining(tmp_path / "a"), pretraining(tmp_path / "b")
    warned.note(warnings=["the text is read 0.20 times"])
    assert "printed before step 0" not in page_text(write_report(plain.folder, corpus=None))
    shown = page_text(write_report(plain.folder, warned.folder, out=tmp_path / "page.html", corpus=None))
    assert "Warnings printed before step 0 b the text is read 0.20 times" in shown


def test_a_name_that_is_not_utf8_has_a_page_too(tmp_path: Path) -> None:
    run = pretraining(tmp_path / os.fsdecode(b"r\xff"))
    assert "r\\udcff" in page_text(write_report(run.folder, corpus=None))


def test_a_file_that_is_no_report_stays(tmp_path: Path) -> None:
    run = pretraining(tmp_path / "r")
    before = (record := run.folder / "run.json").read_bytes()
    with pytest.raises(InputError, match=r"--out .*run\.json: is no report and would be lost"):
        write_report(run.folder, out=record, corpus=None)
    assert record.read_bytes() == before
    page = write_report(run.folder, out=tmp_path / "page.html", corpus=None)
    assert write_report(run.folder, out=page, corpus=None) == page


def test_a_run_without_validation_metrics_or_without_any_line(tmp_path: Path) -> None:
    run = pretraining(tmp_path / "r", held_out=False)
    shown = page_text(write_report(run.folder, corpus=None))
    assert "masked LM loss, training 5.000 nats" not in shown
    assert "5.000 nats masked LM loss, training" in shown
    (run.folder / "metrics.jsonl").unlink()
    assert "The run has written no metrics yet" in page_text(write_report(run.folder, corpus=None))


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    one = pretraining(tmp_path / "one")
    other = pretraining(tmp_path / f"other{EVIL.replace('/', '')}", batch_size=64)
    out = tmp_path / "page.html"
    shown = page_text(write_report(one.folder, other.folder, out=out, corpus=None))
    assert "batch size 256 64" in shown
    assert "warmup" not in shown
    assert "The steps of the two runs are not equally large" in shown
    assert checked_page(out).tags.count("figure") == 6  # two losses, accuracy, rate, speed, gradient norm
    assert "+0.000" in shown


def test_losses_are_drawn_over_words_where_they_are_known(tmp_path: Path) -> None:
    """The run whose corpus has no counts is not among the lines over words."""
    counted, other = pretraining(tmp_path / "counted"), pretraining(tmp_path / "other")
    path = counted.folder / "metrics.jsonl"
    lines = [{**line, "words": 7_500 * line["step"]} for line in read_jsonl(path)]
    for line in lines:
        if "held_out" in line:
            line["held_out"]["mlm_bits_per_character"] = 2.5 - line["step"] / 1000
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    charts = {chart.title: chart for chart in run_charts([read_run(counted.folder)], ["counted"])}
    loss = charts["masked LM loss, training and validation, over words seen"]
    training, validation = loss.series
    assert training.points[-1] == (1_500_000, 5.0)
    assert validation.points == [(750_000, 5.5), (1_500_000, 4.5)]
    assert loss.x_ticks[-1][1] == "1,500,000"
    bits = charts["masked LM bits per character, validation, over words seen"]
    assert bits.series[0].points == [(750_000, 2.4), (1_500_000, 2.3)]
    assert charts["masked LM loss, training and validation"].series[0].points[-1] == (200, 5.0)

    shown = page_text(write_report(counted.folder, corpus=None))
    assert "1,500,000 words of text seen" in shown
    assert "2.3 at 1,500,000 words" in shown
    out = tmp_path / "page.html"
    shown = page_text(write_report(counted.folder, other.folder, out=out, corpus=None))
    assert "1,500,000 – words of text seen" in shown
    both = run_charts([read_run(counted.folder), read_run(other.folder)], ["counted", "other"])
    over_words = [chart for chart in both if chart.over == "words"]
    assert [chart.title for chart in over_words] == [title for title in charts if title.endswith("over words seen")]
    assert {series.label.split(",")[0] for chart in over_words for series in chart.series} == {"counted"}
    assert "words seen" not in page_text(write_report(other.folder, corpus=None))


def test_finetuning_shows_its_seeds(tmp_path: Path) -> None:
    settings = FinetuneSettings(seeds=2, epochs=5, batch_size=32, weight_decay=0.5).model_dump(mode="json")
    data = {"task": {"name": EVIL}, "train": "d1"}
    run = start_run(tmp_path / "t", kind="finetune", settings=settings, data=data, resume=False)
    for seed, score in ((0, 0.5), (1, 0.7)):
        seed_run = start_run(run.folder / f"seed-{seed}", kind="finetune-seed", settings={}, data={}, resume=True)
        seed_run.log({"step": 10, "loss": 0.5, "tokens_per_second": 10.0, "mfu": 0.1})
        seed_run.log({"step": 10, "held_out": {"f1": score, "collapsed": 0.0}})
        seed_run.note(finished=True, result={"seed": seed, "epoch": 3, "scores": {"f1": score}, "collapsed": seed == 1})
    shown = page_text(write_report(run.folder, corpus=None))
    assert "0.600 ± 0.141" in shown  # sqrt(0.02)
    assert "seed 1 3 0.700 collapsed" in shown
    assert "1 of 2 seeds collapsed" in shown
    assert "the default: 0.01" in shown
    with pytest.raises(InputError, match=r"--corpus nope: expected a pre-training with masked LM"):
        write_report(run.folder, corpus=Path("nope"))
    pre = pretraining(tmp_path / "p")
    with pytest.raises(InputError, match="of one kind"):
        write_report(run.folder, pre.folder, corpus=None)


def marked_settings(page: Path) -> dict[str, bool]:
    """Settings of a page, and whether each is marked."""
    table = page.read_text("utf-8").partition("<h2>Settings</h2>")[2]
    rows = re.findall(r'<tr( class="marked")?>\s*<t[hd][^>]*>([^<]+)<', table)
    return {name: bool(mark) for mark, name in rows}


def test_settings_that_the_program_chose_are_not_marked(tmp_path: Path) -> None:
    settings = FinetuneSettings(epochs=7, batch_size=8, learning_rate=5e-4, warmup=0.1, max_length=384)
    data = {"task": {"name": "squad1"}, "train": "d1"}
    run = start_run(tmp_path / "t", kind="finetune", settings=settings, data=data, resume=False)
    run.note(chosen={"batch_size": 8, "learning_rate": 5e-4, "warmup": 0.1, "max_length": 384})
    page = write_report(run.folder, corpus=None)
    marks = marked_settings(page)
    assert [name for name, is_marked in marks.items() if is_marked] == ["epochs"]
    assert list(marks)[:5] == ["epochs", "batch size", "learning rate", "warmup", "max length"]
    shown = page_text(page)
    assert "epochs 7 the default: chosen by the program" in shown
    assert shown.count("chosen for the task, the rows and the model") == 4
    other = start_run(tmp_path / "earlier", kind="finetune", settings=settings, data=data, resume=False)
    marks = marked_settings(write_report(other.folder, corpus=None))  # its record does not say what was chosen
    assert [name for name, is_marked in marks.items() if is_marked] == ["max length"]


def test_what_cannot_be_written_is_reported_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = pretraining(tmp_path / "r")
    (run.folder / "report.html").mkdir()
    assert try_report(run.folder) is None
    assert "the report could not be written" in capsys.readouterr().err
    with pytest.raises(InputError, match="not a run folder"):
        write_report(tmp_path, corpus=None)


def test_the_picture_keeps_late_and_measured_points(tmp_path: Path) -> None:
    falling = [(1.0, 10.2), *((float(step), 6 - step / 1000) for step in range(50, 1000, 50))]
    chart = Chart("loss", "", [Series("a", falling), Series("b", [(500.0, 9.0)], validation=True)])
    assert 9.0 < chart.limits[1] < 10.2
    assert chart.limits[0] < 5.05
    assert "10.2" in chart.above
    flat = Chart("flat", "", [Series("a", [(1.0, 0.0), (2.0, 0.0)])], from_zero=True)
    assert flat.limits[0] < flat.limits[1]


def test_ticks_are_round_numbers_within_their_ends() -> None:
    assert ticks(0, 9825, most=6) == [(2000.0 * n, f"{2000 * n:,}") for n in range(5)]
    assert [text for _, text in ticks(4.61, 7.31, most=6)] == ["5.0", "5.5", "6.0", "6.5", "7.0"]
    assert [at for at, _ in ticks(0, 2e-5, most=6)] == pytest.approx([0, 5e-6, 1e-5, 1.5e-5, 2e-5])
    assert averaged([(0.0, 0.0), (1.0, 2.0), (2.0, 7.0)], 2) == [(0.5, 1.0), (2.0, 7.0)]
