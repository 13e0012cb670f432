"""Optional packages: each is imported where it is used, and without it the message names the extra to install."""

import ast
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "bertwright"
FOR_DEVELOPERS = {"dev", "docs", "bench"}
MODULES = {"scikit-learn": "sklearn", "faiss-cpu": "faiss", "PyStemmer": "Stemmer", "mlflow-skinny": "mlflow"}
"""Distribution → the name by which it is imported, where the two differ in more than a hyphen."""
TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")
BEHIND_A_CHECK = {
    "finetuning/baselines.py": {"scipy"},  # _sklearn(), which needs scipy, is called before
    "finetuning/trials.py": {"optuna"},  # search_by_trials() imports it first
    "stores/listing.py": {"fsspec"},  # open_store() is called before
    "training/uploads.py": {"fsspec"},  # open_store() is called before
    "interop/onnx.py": {"onnxruntime"},  # checked at the top of the module
    "experiments/forest.py": {"matplotlib"},
    "experiments/pictures.py": {"matplotlib"},
    **{f"tracking/{name}.py": {name} for name in TRACKERS},  # refuse_missing_tracker() is called before
    **{f"sklearn/{name}.py": {"sklearn"} for name in ("base", "estimators", "inputs", "tagger")},
    **{
        f"serving/{name}.py": {"fastapi", "fastapi_offline", "prometheus_client", "uvicorn"}
        for name in ("app", "connection", "endpoints", "middleware", "search", "server", "service", "tei")
    },
}
"""File → packages that it imports without a check, because whoever calls it has checked."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = {
    name: [re.split(r"[>=]", line)[0] for line in lines]
    for name, lines in PROJECT["optional-dependencies"].items()
    if name not in FOR_DEVELOPERS
}
EXTRA_OF = {MODULES.get(name, name.replace("-", "_")): extra for extra, names in EXTRAS.items() for name in names}

USES = {
    "sklearn": "import bertwright.sklearn",
    "scipy": "from bertwright.experiments.statistics import _student; _student()",
    "mwparserfromhell": "from bertwright.text.wikitext import passages; passages('[[a]]')",
    "datasets": "from bertwright.text.records import HubDataset, read_hub;"
    "next(read_hub(HubDataset('a', None, 'train', ''), None, 'stop'))",
    "huggingface_hub": "main('import hub:one/model --out imported'.split())",
    "fastapi": "main('serve --model small-wiki'.split())",
    "fastapi_offline": "main('serve --model small-wiki'.split())",
    "uvicorn": "main('demo --model small-wiki'.split())",
    "prometheus_client": "main('serve --model small-wiki'.split())",
    "onnx": "main('export onnx --model small-wiki --out graph'.split())",
    "onnxruntime": "main('export onnx --model small-wiki --out graph'.split())",
    "onnxscript": "main('export onnx --model small-wiki --out graph'.split())",
    "matplotlib": "from bertwright.babylm.results import draw_learning_curve; draw_learning_curve(None, {'a': []})",
    "optuna": "from bertwright.finetuning.trials import _import_optuna; _import_optuna()",
    "fsspec": "main('corpus inspect s3://bucket/corpus'.split())",
    **{name: f"main('track run --to {name}'.split())" for name in TRACKERS},
    "sqlalchemy": "main('track run --to mlflow'.split())",
    "alembic": "main('track run --to mlflow'.split())",
    "datasketch": "from bertwright.text.near_duplicates import _signatures; next(_signatures([]))",
    "bm25s": "from bertwright.search.bm25 import rank_by_bm25; rank_by_bm25(None, [], None)",
    "faiss": "from bertwright.search.approximate import check_faiss; check_faiss()",
    "Stemmer": "from bertwright.search.bm25 import rank_by_bm25; rank_by_bm25(None, [], None)",
}
"""Package → Python that needs it: a command, or the function that imports it where a command would work before that."""
PROGRAM = """
    import os, sys, torch, pydantic, tyro, bertwright.files
    from bertwright.cli import main

    uses = {uses!r}
    assert not {{*uses}} & {{*sys.modules}}, {{*uses}} & {{*sys.modules}}
    for package, use in uses.items():
        print(f"#{{package}}", flush=True)
        if os.fork():
            os.wait()
            continue
        sys.modules[package] = None
        os.dup2(1, 2)
        try:
            exec(use)
        except BaseException as error:
            print(f"{{type(error).__name__}}: {{error}}")
        sys.stdout.flush()
        os._exit(0)
"""
"""Each use runs in a process of its own in which its package cannot be imported; torch is imported only once."""


def imports(node: ast.AST) -> Iterator[str]:
    """The optional packages that one statement imports."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        yield from {name.partition(".")[0] for name in names} & {*EXTRA_OF}


def unchecked(node: ast.AST) -> Iterator[str]:
    """The packages that are imported below a node without a check."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Try) and any("MissingExtra" in ast.unparse(handler) for handler in node.handlers):
        return
    yield from imports(node)
    for child in ast.iter_child_nodes(node):
        yield from unchecked(child)


def test_every_import_of_an_optional_package_is_checked() -> None:
    names = re.compile(rf"^ *(?:import|from) (?:{'|'.join(EXTRA_OF)})\b", flags=re.M)
    texts = {str(path.relative_to(SOURCE)): path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in texts.items() if names.search(text)}
    for path, tree in trees.items():
        assert {*unchecked(tree)} <= BEHIND_A_CHECK.get(path, set()), path
    assert {*BEHIND_A_CHECK} <= {*trees}
    imported = {name for tree in trees.values() for node in ast.walk(tree) for name in imports(node)}
    imported |= {"onnxscript", "sqlalchemy", "alembic"}  # torch.onnx imports the first, MLflow the others
    assert imported == {*EXTRA_OF}, "an extra installs a package that nothing imports, or a package has no extra"
    assert {*USES} == {*EXTRA_OF}


@pytest.mark.slow
def test_without_each_package_in_turn_the_extra_is_named(tmp_path: Path) -> None:
    program = textwrap.dedent(PROGRAM).format(uses=USES)
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env={**os.environ}
    )
    assert completed.returncode == 0, completed.stderr
    parts = {text.partition("\n")[0]: text for text in completed.stdout.split("#")[1:]}
    assert {*parts} == {*EXTRA_OF}
    answers = {
        package: f"needs the extra '{extra}': pip install 'bertwright[{extra}]'" for package, extra in EXTRA_OF.items()
    }
    assert [parts[package] for package, answer in answers.items() if answer not in parts[package]] == []
    assert "Traceback" not in completed.stdout


def test_the_manual_says_what_each_extra_is_for() -> None:
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", page, flags=re.M))
    assert rows == {extra: ", ".join(names) for extra, names in EXTRAS.items()}
    lines = (ROOT / "pyproject.toml").read_text("utf-8").splitlines()
    for extra in PROJECT["optional-dependencies"]:
        number = next(number for number, line in enumerate(lines) if line.startswith(f"{extra} = ["))
        assert lines[number - 1].startswith("# "), f"pyproject.toml:{number + 1}: no comment above the extra"
