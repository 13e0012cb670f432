"""A run in Python: its table, its report in a frame, and the errors of folders that are no runs."""

import html
import re
from pathlib import Path

import pytest

import bertwright as bw
from bertwright.errors import InputError
from bertwright.pretraining.settings import PretrainSettings
from bertwright.reports.report import write_report
from bertwright.training.run_folder import start_run

EVIL = "<script>alert(1)</script>"


def write_run(folder: Path, *, step: int = 20) -> Path:
    settings = PretrainSettings.model_validate({"steps": 20}).model_dump(mode="json")
    run = start_run(folder, kind="pretrain", settings=settings, data={"corpus": EVIL}, resume=False)
    for number in range(10, step + 1, 10):
        run.log({"step": number, "mlm": 7 - number / 10, "learning_rate": 1e-4, "seconds": 3.0,
                 "tokens_per_second": 500.0, "mfu": 0.25, "gradient_norm": 1.0})  # fmt: skip
    run.log({"step": step, "held_out": {"mlm_loss": 4.5, "mlm_accuracy": 0.25, "rows": 8.0}})
    run.note(resolved={"numerics": {"precision": "fp32", "peak_flops": 2e11}, "steps": 20})
    return folder


def test_a_run_shows_a_short_table(tmp_path: Path) -> None:
    run = bw.open_run(str(write_run(tmp_path / "<b>run")))
    assert (run.steps_done, run.kind, run.last_metrics["mlm_accuracy"]) == (20, "pretrain", 0.25)
    assert repr(run) == f"<bertwright run {tmp_path}/<b>run: pre-training, {run.state}, 20 of 20 steps>"
    shown = run._repr_html_()
    assert "<b>run" not in shown
    assert "&lt;b&gt;run" in shown
    for part in ("20 of 20 steps", "25.0%", "4.500 nats", "5.000 nats"):
        assert part in shown


def test_a_report_is_the_page_of_the_command_in_a_frame(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "first"), write_run(tmp_path / "second", step=10)
    for other in (None, second):
        report = bw.open_run(first).report(other)
        written = write_report(first, other, corpus=None).read_text("utf-8")
        without_footer = [re.sub("<footer>.*", "", page) for page in (report.html, written)]
        assert without_footer[0] == without_footer[1]
        frame = report._repr_html_()
        source = re.findall(r'srcdoc="([^"]*)"', frame)
        assert [html.unescape(page) for page in source] == [report.html]
        assert "<script" not in report.html
        assert "<svg" in report.html
        assert "characters of HTML" in repr(report)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        bw.open_run(tmp_path)
    run = bw.open_run(write_run(tmp_path / "run"))
    with pytest.raises(InputError, match="not a run folder"):
        run.report(tmp_path)
