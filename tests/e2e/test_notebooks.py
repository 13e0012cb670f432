"""Jupyter: the tutorial as a notebook, and a training that a kernel's interrupt stops, with real kernels."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from bertwright.reports.runs import read_run

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.ipynb"

Message = dict[str, Any]
Run = Callable[..., tuple[str, list[Message]]]


def test_the_tutorial_is_stored_without_outputs() -> None:
    notebook = json.loads(TUTORIAL.read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 12
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    nbformat.validate(notebook)


@pytest.mark.slow
def test_the_tutorial_shows_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(TUTORIAL, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources
    ).execute()  # raises where one fails
    outputs = {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}

    def of(part: str) -> list[Any]:
        (result,) = [output for source, output in outputs.items() if part in source]
        return list(result)

    def html(part: str) -> str:
        return str(of(part)[-1].data["text/html"])

    trained = [output.data["text/plain"] for output in of('"pretrain --corpus')]
    assert sum(text.startswith("step ") for text in trained) == 1
    assert not [output for output in of('"pretrain --corpus') if output.output_type == "stream"]
    assert "stopped                          False" in trained[-1]
    assert "pre-training" in html('open_run("notebook-tutorial/run")\nrun')
    for part in ("run.report()", 'open_run("notebook-tutorial/tuned").report()'):
        assert html(part).startswith('<iframe sandbox=""')
        assert "&lt;svg" in html(part)
    assert "2 layers of 128" in html("encoder = bw.load")
    filled = html("encoder.fill")
    assert ">[MASK]</span>" in filled
    assert "%</td>" in filled
    assert "2 vectors of 128 components" in html("encoder.vectors")
    labels = html("classifier([")
    assert "<b>sea</b>" in labels
    assert "<b>forest</b>" in labels
    assert "log-odds of sea" in html("classifier.explain")
    assert 'title="+' in html("classifier.explain")


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[KernelManager, Run]]:
    """A kernel, and a function that runs a cell in it and returns the status and the messages of its outputs.

    Its argument `each` is called with each message.
    """
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    client: BlockingKernelClient = manager.blocking_client()
    client.start_channels()

    def run(code: str, each: Callable[[Message], None] = lambda _: None) -> tuple[str, list[Message]]:
        messages = []

        def hear(message: Message) -> None:
            if message["msg_type"] not in ("status", "execute_input"):
                messages.append(message)
                each(message)

        reply = client.execute_interactive(code, timeout=180, output_hook=hear)
        return reply["content"]["status"], messages

    try:
        client.wait_for_ready(timeout=60)
        yield manager, run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def shown(message: Message) -> str:
    """The text that a message shows."""
    return str(message["content"].get("data", {}).get("text/plain", message["content"].get("text", "")))


@pytest.mark.slow
def test_an_interrupt_saves_a_run_which_continues(
    kernel: tuple[KernelManager, Run], own_corpus: Path, tmp_path: Path
) -> None:
    manager, run = kernel
    settings = "--size tiny --lengths 32 --batch-size 8 --steps 600 --threads 1 --precision fp32"
    command = f"pretrain --corpus {own_corpus} --out run {settings}"
    interrupted = []

    def interrupt(message: Message) -> None:
        if shown(message).startswith("step ") and not interrupted:
            interrupted.append(message)
            manager.interrupt_kernel()

    status, messages = run(f"import bertwright as bw\nbw.command({command!r})", interrupt)
    assert status == "ok"
    assert interrupted
    texts = [shown(message) for message in messages]
    (stopped,) = [text for text in texts if text.startswith("stopped after step ")]
    assert stopped.endswith("; continue with --resume")
    assert texts[-1].split("\n")[-1].split() == ["stopped", "True"]
    assert read_run(tmp_path / "run").state == "stopped"
    step = int(stopped.split()[3].rstrip(";"))
    assert 0 < step < 600

    status, messages = run("6 * 7")
    assert (status, shown(messages[-1])) == ("ok", "42")

    status, messages = run(f"bw.command({command!r} + ' --resume')")
    assert status == "ok"
    assert any(shown(message) == f"run: continues from step {step}" for message in messages)
    lines = [message for message in messages if shown(message).startswith("step ")]
    assert [message["msg_type"] for message in lines] == ["display_data"] + ["update_display_data"] * (len(lines) - 1)
    assert len({message["content"]["transient"]["display_id"] for message in lines}) == 1
    assert shown(lines[-1]).startswith("step 600/600 ")
    finished = read_run(tmp_path / "run")
    assert (finished.state, finished.steps_done) == ("finished", 600)


@pytest.mark.slow
def test_a_command_that_fails_fails_its_cell(kernel: tuple[KernelManager, Run]) -> None:
    _, run = kernel
    status, messages = run("import bertwright as bw\nbw.command('pretrain --corpus nowhere --out run')")
    assert status == "error"
    (error,) = [message["content"] for message in messages if message["msg_type"] == "error"]
    assert error["ename"] == "InputError"
    assert "nowhere" in error["evalue"]
