"""A model folder in use from Python: `bertwright.load(MODEL)` → a function of texts."""

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from bertwright.console import redirect_messages, say
from bertwright.errors import InputError
from bertwright.markup import Html
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model, refuse_random_name
from bertwright.objectives.masked_lm import has_masked_lm
from bertwright.scoring.generation import TextGenerator
from bertwright.scoring.scorer import has_scores
from bertwright.scoring.settings import FirstToken, GenerateSettings, Masking, ScoreSettings
from bertwright.search.index import SearchIndex
from bertwright.search.memory import MemoryIndex
from bertwright.search.nearest import VectorIndex
from bertwright.serving.displayed import Results, Vectors, model_table, with_texts
from bertwright.serving.embeddings import Pool
from bertwright.serving.encoder_pipelines import StaticPipeline, VectorPipeline
from bertwright.serving.explanations import ExplainPipeline, can_explain
from bertwright.serving.pipeline import Pipeline, blocks, parse_input
from bertwright.serving.pipelines import Use, has_next_sentence, open_pipeline, open_use
from bertwright.serving.python_inputs import described, items_of, paired, texts_of, values_for
from bertwright.serving.reranking import can_rerank, check_query, ranked_texts, relevance
from bertwright.serving.results import RankedText, Vector
from bertwright.serving.settings import AnswerPrecision, ExplainBaseline, ExplainMethod, ExplainSettings, check_top_k
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.finite import NotFinite
from bertwright.tasks.inference import Answerable, answerable
from bertwright.tasks.kinds import import_hint
from bertwright.tasks.sentence_vectors import fingerprint_of, saved_vector_head
from bertwright.tasks.static_vectors import StaticVectors, is_static, open_vectors
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.training.hardware import prepare_processor

_BLOCK_INPUTS: Final = 1024
"""Number of inputs that are held and answered at a time; those of like length are computed together."""
_BLOCK_CHARACTERS: Final = 1_000_000
"""Number of characters of such a block."""


def load(model: str | Path, *, precision: AnswerPrecision = "auto") -> "Predictor":
    """Open MODEL (a model folder, a run folder, a static table, or small-wiki) to answer with.

    precision: auto is bf16 where this processor multiplies it faster, else fp32; int8 is faster and less exact.
    `Predictor.backend` is the precision in use. Raises InputError for a folder that is missing, incomplete or no model.
    """
    prepare_processor()
    messages: list[str] = []
    refuse_random_name(str(model))
    if is_static(str(model)):
        static = open_vectors(str(model), precision, "cpu")
        assert isinstance(static, StaticVectors)
        return StaticPredictor(static, str(model))
    with redirect_messages(messages.append):
        saved = open_model(str(model))
        predictor = Predictor(answerable(saved, precision), open_tokenizer(saved), str(model))
    for message in messages:
        if not message.startswith("answering in"):  # the precision is `backend`; the other messages are warnings
            _warn(message)
    return predictor


class Predictor:
    """A model in use. Call it with one input, with several, or with an iterator of any length.

    One input gives one result of `bertwright.serving.results`. A list, a tuple, and a column or table of pandas or
    Arrow give a list. Any other iterator gives an iterator, of which a thousand inputs are held at a time. Results have
    the order of the inputs. Of a table, the columns are read that the model was trained on.

    An input has the form that the model was trained for: a text, a tuple of two texts (a pair, or a question and its
    passage), or a tuple of a context and its choices. Two columns may be given side by side, as in
    model(questions, passages).

    Threads may share a model. They take turns, since each turn uses all cores.
    """

    def __init__(self, saved: Answerable, tokenizer: BaseTokenizer, source: str) -> None:
        self.source, self.config, self.tokenizer = source, saved.config, tokenizer
        self.backend: str = "fp32" if saved.computed == "plain" else saved.computed
        self._saved = saved
        self._lock = threading.RLock()
        self.pipeline = open_pipeline(saved, tokenizer)
        if missing_import := import_hint(saved):
            say(f"{missing_import}; as it is, it gives vectors")
        self._opened: dict[Use, Pipeline[Any, Any]] = {}
        self._generator: TextGenerator | None = None

    @property
    def kind(self) -> str:
        """classification, tagging, questions, choice, fill, or vectors for an encoder without a head."""
        return self.pipeline.kind

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the outputs; empty where the model gives no labels."""
        return self.pipeline.labels

    @property
    def _kind_and_size(self) -> tuple[str, str]:
        return self.kind, f"{self.layers} layers of {self.config.hidden}"

    def __repr__(self) -> str:
        return f"<bertwright model {self.source}: {', '.join(self._kind_and_size)}, {self.backend}>"

    def _repr_html_(self) -> Html:
        return model_table(self.source, *self._kind_and_size, self.backend, self.pipeline.form, self.labels)

    def __call__(self, inputs: Any, second: Any = None) -> Any:
        """Return a result for one input, a list for several, an iterator for an iterator.

        Raises InputError, with the number of the input, for an input of another form than the model's, and RunFailed
        where the model's output is not finite. A warning tells how many inputs are longer than the model reads; their
        results tell it too.
        """
        inputs = inputs if second is None else paired(inputs, second)
        if isinstance(self.pipeline, VectorPipeline):
            return self.vectors(inputs)
        return self._map(inputs, self.pipeline)

    def fill(self, inputs: Any, *, top_k: int = 5) -> Any:
        """Return the candidates for each [MASK] of a text, or of several texts."""
        check_top_k(top_k)
        return self._map(inputs, self.pipeline_for("fill"), top_k=top_k)

    def next_sentence(self, first: Any, second: Any) -> Any:
        """Return the probability that the second text follows the first; for two columns, a list of probabilities."""
        results = self._map(paired(first, second), self.pipeline_for("next sentence"))
        if isinstance(results, list):
            return [result.probability for result in results]
        is_iterator = isinstance(results, Iterator)
        return (result.probability for result in results) if is_iterator else results.probability

    def vectors(
        self,
        inputs: Any,
        *,
        pool: Pool | None = None,
        layer: int = -1,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Any:
        """Return a vector [D] for a text, [N, D] for several, an iterator of vectors for an iterator; float32.

        pool: mean or max over the tokens of a text, or cls, the state of [CLS]. None is what the model folder
        describes: pooling, dense layers and normalisation; the mean where it describes nothing, and for another layer
        than the last. layer: 0 for the embeddings, then the layers; -1 is the last. The folder's default prompt stands
        before each text; `prompt_name` names another prompt of the folder, and `prompt` is a text, "" for none.
        """
        if pool not in (None, "mean", "max", "cls"):
            raise InputError(f"pool {pool!r}: allowed are mean, max and cls")
        layers = self.layers
        if isinstance(layer, bool | float) or layer not in range(-layers - 1, layers + 1):  # 1.0 is in a range
            raise InputError(f"layer {layer!r}: allowed are {-layers - 1} to {layers}; 0 is the embeddings")
        pipeline = self.pipeline_for("vectors").with_prompt(prompt_name, prompt, self.source)
        results = self._map(inputs, pipeline, pool=pool, layer=layer)
        if isinstance(results, list):
            size = pipeline.size(pool, layer)
            return np.array([result.values for result in results], dtype=np.float32).reshape(-1, size).view(Vectors)
        if isinstance(results, Vector):
            return results.values.view(Vectors)
        return (result.values for result in results)

    def score(self, inputs: Any, *, masking: Masking | None = None, first_token: FirstToken | None = None) -> Any:
        """Return the `SentenceScore` of a sentence, or those of several: log-likelihood, pieces, bits per character.

        masking: for masked LM, the pieces that are masked with the predicted one: the later ones of its word
        (within-word, the default), or none (piece). first_token: for a language model, count or leave-out. Raises
        InputError for a model without such a head, an empty sentence, and one with more tokens than the model reads.
        """
        pipeline = self.pipeline_for("score").with_settings(ScoreSettings(masking, first_token))
        return self._map(inputs, pipeline)

    def explain(
        self,
        inputs: Any,
        second: Any = None,
        *,
        method: ExplainMethod = "gradients",
        baseline: ExplainBaseline = "auto",
        word: int | None = None,
    ) -> Any:
        """Return the `Explanation` of the answer to an input, or those of several: the words that spoke for it.

        Inputs have the forms that the model itself takes. See `ExplainSettings` for the options. The explanation is
        computed in fp32, whatever the precision of the answer. It is None for a text without words in a model of tags.
        Raises InputError for a model that was not fine-tuned, and for options outside of their limits.
        """
        settings = ExplainSettings(method, baseline, word)
        inputs = inputs if second is None else paired(inputs, second)
        return self._map(inputs, self.pipeline_for("explain"), settings=settings)

    def generate(
        self,
        prompts: Any,
        *,
        tokens: int = 50,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Any:
        """Return the `Continuation` of a prompt, or a list of them for several, by a GPT-1, GPT-2 or GPT-BERT.

        Without temperature, top_k and top_p the most probable token is taken each time; see `GenerateSettings`. Raises
        InputError for another model, for a prompt that is empty or longer than the model reads, and for settings
        outside of their limits.
        """
        settings = GenerateSettings(tokens, temperature, top_k, top_p, seed)
        texts = texts_of([prompts] if isinstance(prompts, str) else prompts, "prompt")
        with self._lock, redirect_messages(_warn):
            if self._generator is None:
                self._generator = TextGenerator(self._saved, self.tokenizer)
            continuations = self._generator.generate(texts, settings)
        return continuations[0] if isinstance(prompts, str) else continuations

    def index(self, texts: Any, *, ids: Any = None) -> MemoryIndex:
        """Return an index of a list or column of texts in memory, for many calls of `search`.

        ids: texts of the same number; without them the id of a text is its position, from 0 on. Raises InputError for
        an empty text, and for an id that is there twice.
        """
        documents, names = texts_of(texts, "text"), None if ids is None else texts_of(ids, "id")
        with self._lock, redirect_messages(_warn):
            return MemoryIndex.of_texts(self.pipeline_for("vectors").vector_source, documents, ids=names)

    def search(
        self, queries: Any, *, index: str | Path | VectorIndex | None = None, texts: Any = None, top_k: int = 10
    ) -> Any:
        """Return the best rows of an index for a query, or a list of them for each of several queries.

        index: a folder that `bertwright index` wrote, or an open index: a `SearchIndex`, or what `index` of this object
        returns. texts: in its place a list or column of texts, which are encoded at each call. Each row is a `Hit` with
        id, score, text and fields; the best comes first. Raises InputError for an index of another model, and for an
        empty query.
        """
        if (index is None) == (texts is None):
            raise InputError("search: expected an index or texts, got " + ("neither" if index is None else "both"))
        check_top_k(top_k)
        if index is None:
            opened: VectorIndex = self.index(texts)
        else:
            opened = index if isinstance(index, VectorIndex) else SearchIndex.open(index)
        query_texts = texts_of([queries] if isinstance(queries, str) else queries, "query")
        with self._lock, redirect_messages(_warn):
            hits = opened.search(self.pipeline_for("vectors").vector_source, query_texts, top_k)
        return hits[0] if isinstance(queries, str) else hits

    def rerank(
        self, query: str, texts: Any, *, top_k: int | None = None, relevant: str | None = None
    ) -> list[RankedText]:
        """Return the `top_k` texts that are most relevant for a query, the most relevant first; None: all.

        The model was fine-tuned on pairs, the query as the first text: the score is the number of a regression, or the
        probability of the label `relevant`, rounded to six decimals. None is the label that `relevant_label` of this
        object names. Of equal scores the earlier text comes first. Raises InputError for another model, for two labels
        of which neither is known to be the relevant one, an empty query, and an input that is not a text.
        """
        label = relevance(self.pipeline, self.source, relevant=relevant)
        check_query(query)
        if top_k is not None:
            check_top_k(top_k)
        documents = texts_of(texts, "document")
        results = self._map([(query, text) for text in documents], self.pipeline)
        return Results(ranked_texts(results, documents, label=label, top_k=top_k))

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all that decides the vectors; an index stores it. No encoder is built."""
        return fingerprint_of(self._saved, self.tokenizer, saved_vector_head(self._saved))

    @property
    def reranks(self) -> bool:
        """True where the model is a reranker."""
        return can_rerank(self.pipeline)

    @property
    def relevant_label(self) -> str | None:
        """The label whose probability is the score of `rerank`; None for a number, and without a known label."""
        return relevance(self.pipeline, self.source) if self.reranks else None

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prompts of the folder by name, which stand before the texts of vectors; see `prompt_name` of `vectors`."""
        return dict(self.pipeline_for("vectors").prompts)

    @property
    def layers(self) -> int:
        """Number of layers; 0 for a static table."""
        return self.config.layers

    @property
    def heads(self) -> int:
        """Number of attention heads of each layer; 0 for a backbone without attention, or of two encoders."""
        return self.config.heads if isinstance(self.config, EncoderConfig) else 0

    def can(self, use: Use) -> bool:
        """Return whether `pipeline_for` has a pipeline for that use."""
        if use == "next sentence":
            return has_next_sentence(self._saved)
        if use == "inside":
            return bool(self.heads) and getattr(self.tokenizer, "has_special", True)
        if use == "score":
            return has_scores(self._saved)
        if use == "explain":
            return can_explain(self._saved)
        return use == "vectors" or has_masked_lm(self._saved)

    def pipeline_for(self, use: Use) -> Any:
        """Return the pipeline for another use than the model's own. Raises InputError where the model has none."""
        if self.kind == use:
            return self.pipeline
        with self._lock:
            if use not in self._opened:
                if use == "fill" and not self.can(use):
                    raise InputError(f"{self.source}: is a model for {self.kind} without the head that fills [MASK]")
                if use == "explain":
                    self._opened[use] = ExplainPipeline(self.pipeline, self._saved, self.tokenizer)
                else:
                    self._opened[use] = open_use(self._saved, self.tokenizer, use)
            return self._opened[use]

    def _map(self, inputs: Any, pipeline: Pipeline[Any, Any], **options: Any) -> Any:
        if (item := parse_input(pipeline, inputs)) is not None:
            return self._warned(self._answer([item], pipeline, options, first=None), pipeline)[0]
        values = values_for(pipeline, inputs)
        if values is None:
            raise InputError(f"{described(inputs)}: {self.source} takes {pipeline.form}; or a list, column or iterator")
        numbered = blocks(pipeline, items_of(pipeline, values), inputs=_BLOCK_INPUTS, characters=_BLOCK_CHARACTERS)
        answered = (self._answer(items, pipeline, options, first=first) for first, items in numbered)
        if isinstance(values, Sequence):
            return self._warned(Results(chain.from_iterable(answered)), pipeline)
        return chain.from_iterable(self._warned(results, pipeline) for results in answered)

    def _answer(
        self, items: Sequence[Any], pipeline: Pipeline[Any, Any], options: Mapping[str, Any], *, first: int | None
    ) -> list[Any]:
        """Return the results of a block; `first` is the number of its first input, None for an input alone."""
        with self._lock, redirect_messages(_warn):
            try:
                results = pipeline.answer(items, **options)
            except NotFinite as error:
                index = error.index + (first or 0)
                location = self.source if first is None else f"{self.source}: input {index}"
                raise NotFinite(index, location) from None
        return [with_texts(result, pipeline.texts(item)) for item, result in zip(items, results, strict=True)]

    def _warned(self, results: list[Any], pipeline: Pipeline[Any, Any]) -> list[Any]:
        """Return the results, after a warning where inputs were cut."""
        if num_cut := sum(getattr(result, "truncated", False) for result in results):
            _warn(f"{num_cut} of {len(results)} inputs exceed {pipeline.limit} that {self.source} reads; cut")
        return results


class StaticPredictor(Predictor):
    """A static table in use. It gives vectors and searches; every other use is refused."""

    layers = heads = 0

    def __init__(self, static: StaticVectors, source: str) -> None:
        self.source, self.tokenizer, self.backend = source, static.tokenizer, "fp32"
        self._lock = threading.RLock()
        self.pipeline: StaticPipeline = StaticPipeline(static)

    def generate(self, prompts: Any, **_: Any) -> Any:
        """Raise InputError: a static table continues no text."""
        raise InputError(f"{self.source}: is a static table, which gives vectors; expected a GPT-1, GPT-2 or GPT-BERT")

    @property
    def _kind_and_size(self) -> tuple[str, str]:
        return "static table", f"vectors of {self.pipeline.vector_source.size}"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the table."""
        return self.pipeline.vector_source.fingerprint

    def can(self, use: Use) -> bool:
        """Return whether the use is vectors."""
        return use == "vectors"

    def pipeline_for(self, use: Use) -> Any:
        """Return the pipeline of vectors. Raises InputError for another use."""
        if use != "vectors":
            raise InputError(f"{self.source}: is a static table, which gives vectors; expected an encoder for: {use}")
        return self.pipeline


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)
