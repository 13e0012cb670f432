"""texts → the drawn documents → a vocabulary of them alone → the corpus of an entry.

The budget of the challenge holds for all text that a model learns from, that of its vocabulary included.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from bertwright.babylm.request import EntryRequest
from bertwright.console import say
from bertwright.corpus.build import build_corpus
from bertwright.corpus.inputs import Reader, stamp_of
from bertwright.corpus.manifest import MANIFEST
from bertwright.corpus.sample import SampledInputs, sample_inputs
from bertwright.errors import InputError
from bertwright.files import new_folder, read_object_if_there, write_json
from bertwright.text.documents import as_document, find_inputs
from bertwright.text.wordpiece import train_wordpiece

_DRAWN: Final = "drawn.json"
"""File of an entry's folder with the stamps of the files that the vocabulary was learned from."""


def draw_text(request: EntryRequest) -> SampledInputs | None:
    """Return the drawn documents; None where the corpus is built. InputError where the text has too few words."""
    if request.built_corpus or _has_vocabulary(request):
        return None
    return sample_inputs(request.corpus, request.sample, request.text, skip=False)


def make_corpus(request: EntryRequest, drawn: SampledInputs | None) -> Path:
    """Return the corpus folder of an entry; learn the vocabulary and build the corpus where they are missing.

    drawn: what `draw_text` returned for the request. A build that was stopped continues. Raises InputError where the
    text was changed since the vocabulary was learned: other documents would then be drawn.
    """
    if request.built_corpus:
        return request.built_corpus
    tokenizer, corpus = request.out / "tokenizer", request.out / "corpus"
    if not (corpus / MANIFEST).is_file():
        if drawn:
            say(f"{tokenizer}: learning {request.entry.vocab_size:,} pieces")
            learned = train_wordpiece(
                _paragraphs(request, drawn), vocab_size=request.entry.vocab_size, cased=request.entry.cased
            )
            write_json(request.out / _DRAWN, {"stamps": drawn.stamps})
            with new_folder(tokenizer) as folder:
                learned.save(folder)
        _refuse_changed(request)
        say(f"{corpus}: building the corpus")
        build_corpus(request.corpus, tokenizer=tokenizer, out=corpus, settings=request.text, sample=request.sample)
    return corpus


def _refuse_changed(request: EntryRequest) -> None:
    """Raise InputError where a file of the text is not the one that the vocabulary was learned from."""
    names = [[source.name] for source in request.sample.mix] or [list(request.corpus)]
    stamps = [list(stamp_of(file)) for inputs in names for file in find_inputs(inputs)]
    path = request.out / _DRAWN
    if stamps != read_object_if_there(path).get("stamps"):
        raise InputError(
            f"{' '.join(chain.from_iterable(names))}: the text was changed after the vocabulary in "
            f"{request.out / 'tokenizer'} was learned from it; remove {request.out}, and give the same command again"
        )


def _has_vocabulary(request: EntryRequest) -> bool:
    return request.is_begun and (request.out / "tokenizer").is_dir()


def _paragraphs(request: EntryRequest, drawn: SampledInputs) -> Iterator[str]:
    """Yield the paragraphs of the drawn documents."""
    for document in Reader(drawn.inputs, request.text, chosen=drawn.chosen, stamps=drawn.stamps).documents():
        yield from as_document(document).paragraphs
