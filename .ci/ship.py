"""RUN → src/bertwright/shipped/NAME: a pre-trained model as it comes with the program.

python .ci/ship.py RUN NAME --title "…" --license cc-by-sa-3.0 --language en --data "…"

Weights are rounded to bfloat16, which halves the file; tokenizer and settings are the run's; the card is the run's
with a title, what the text was, and its licence.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file

from bertwright.files import check_digest, read_json
from bertwright.model.folder import CARD, TOKENIZER_FILES, WEIGHTS, model_within, write_folder

SHIPPED = Path(__file__).parents[1] / "src" / "bertwright" / "shipped"
MOST = 12_000_000
"""Bytes of the whole folder."""


def main() -> None:
    """Write the folder, in the place of an earlier one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--title", required=True, help="the first line of the card")
    parser.add_argument("--license", required=True, help="as the Hub writes it, such as cc-by-sa-3.0")
    parser.add_argument("--language", required=True, help="such as en")
    parser.add_argument("--data", action="append", default=[], help="a line of the card on the text; several times")
    arguments = parser.parse_args()
    folder, out = model_within(arguments.run), SHIPPED / arguments.name
    check_digest(folder / WEIGHTS)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(folder / WEIGHTS).items()}
    card = (folder / CARD).read_text("utf-8").replace("bw.load('FOLDER')", f"bw.load({arguments.name!r})")
    title = next(line for line in card.splitlines() if line.startswith("# "))
    card = card.replace(title, f"# {arguments.title}\n\n{title.removeprefix('# ')}; weights in bfloat16.")
    card = card.replace("## Data\n\n", "## Data\n\n" + "".join(f"- {line}\n" for line in arguments.data))
    card = card.replace(
        "---\nlibrary_name", f"---\nlicense: {arguments.license}\nlanguage: {arguments.language}\nlibrary_name", 1
    )
    described = read_json(folder / "config.json") | {"dtype": "bfloat16"}
    beside, positions = map(folder.joinpath, TOKENIZER_FILES), described["max_position_embeddings"]
    write_folder(out, weights, described=described, beside=beside, card=card, positions=positions)
    size = sum(path.stat().st_size for path in out.iterdir())
    if size > MOST:
        raise SystemExit(f"{out}: {size:,} bytes, more than {MOST:,}")
    print(f"{out}: {size:,} bytes")


if __name__ == "__main__":
    main()
