"""Settings of sentence vectors ↔ the files of a model folder, which are those of sentence-transformers.

    modules.json                      the modules in their order: Transformer, Pooling, Dense …, Normalize
    1_WordWeights/config.json         a weight for each piece; where it is absent, the numbers below are one less
    2_Pooling/config.json             pooling modes
    3_Dense/config.json               sizes and activation of a dense layer; its weights are beside it
    config_sentence_transformers.json prompts, similarity, Matryoshka widths
    sentence_bert_config.json         maximum number of tokens

Versions from 2.4 to 6.2 of sentence-transformers open what is written here. This module does not import torch, because
settings of the command line use its types.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from bertwright.config import Number, Positive, Settings
from bertwright.errors import InputError, shown
from bertwright.files import read_json, read_object, read_object_if_there, write_json
from bertwright.model.config import Size

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""Pooling of a text's token states into one vector, by the names of sentence-transformers.

cls, lasttoken        the state of the first or last token
max, mean             the maximum or mean over all tokens, special tokens included
mean_sqrt_len_tokens  the sum divided by the square root of the number of tokens
weightedmean          the mean with weights 1, 2, 3, … by position
"""
Activation = Literal["Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "LeakyReLU", "ELU", "Softplus"]
"""Activation of a dense layer: a class of torch.nn with its default arguments."""
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""Similarity of two vectors that the model is meant for; the last two are negative distances."""

MODULES: Final = "modules.json"
_MODULE_NAMES: Final = ("Transformer", "WordWeights", "Pooling", "Dense", "Normalize")
_PROMPTS: Final = "config_sentence_transformers.json"
_LENGTH: Final = "sentence_bert_config.json"
_LIBRARY: Final = "sentence_transformers"
_WIDTHS: Final = "matryoshka_dims"
"""Entry of `_PROMPTS` with the Matryoshka widths. It is ours; sentence-transformers ignores it."""
_QUERY_LENGTH: Final = "query_max_length"
"""Entry of `_PROMPTS` with the maximum number of tokens of a query. It is ours too."""
_FLAGS: Final[Mapping[str, Pooling]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Spelling of the pooling modes before version 5.4, in the order in which several are concatenated."""


class DenseLayer(Settings):
    """Shape of a dense layer after the pooling: `inputs` → `outputs`, then the activation."""

    inputs: Size
    outputs: Size
    bias: bool = True
    activation: Activation = "Tanh"


class VectorSettings(Settings):
    """Computation of a text's vector from its token states; the defaults are those of a folder without such files.

    The order is: prompt before the text, pooling, dense layers, normalisation, truncation.
    """

    pooling: tuple[Pooling, ...] = ("mean",)
    """Pooling modes; the vectors of several are concatenated."""
    piece_weights: tuple[Number, ...] = ()
    """Weight of each piece of the vocabulary in the mean, by id; empty where all are 1."""
    dense: tuple[DenseLayer, ...] = ()
    normalize: bool = False
    """True where vectors are divided by their length."""
    prompts: dict[str, str] = Field(default_factory=dict)
    """Texts that are put before a text, by name, such as query and document."""
    default_prompt: str | None = None
    """Name of the prompt of texts for which none is named."""
    include_prompt: bool = True
    """False where the prompt's tokens, [CLS] included, are left out of the pooling."""
    max_length: Positive | None = None
    """Maximum number of tokens; None for the positions of the model."""
    query_length: Positive | None = None
    """Maximum number of tokens of a query; None for that of every text."""
    similarity: Similarity = "cosine"
    widths: tuple[Size, ...] = ()
    """Matryoshka widths: numbers of first components that are good vectors on their own."""
    width: Size | None = None
    """Number of first components that are kept; None keeps all. A truncated vector is not normalised again."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.pooling:
            raise ValueError(f"pooling: expected one or more of {', '.join(get_args(Pooling))}, got none")
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise ValueError(f"default_prompt: expected the name of a prompt ({known}), got {self.default_prompt!r}")
        if self.piece_weights and not self.is_plain_mean:
            raise ValueError(f"piece_weights: {self.no_plain_mean}")
        for before, after in zip(self.dense, self.dense[1:], strict=False):
            if before.outputs != after.inputs:
                raise ValueError(
                    f"dense: a layer with {before.outputs} outputs is followed by one with {after.inputs} inputs"
                )
        return self

    @property
    def is_plain_mean(self) -> bool:
        """Return True where the pooling is the mean over all tokens, in which pieces may have weights."""
        return self.pooling == ("mean",) and self.include_prompt

    @property
    def no_plain_mean(self) -> str:
        """Return the end of a message about weights of pieces with another pooling."""
        without = "" if self.include_prompt else " without the tokens of the prompt"
        return f"expected the pooling mean over all tokens, got {', '.join(self.pooling)}{without}"

    def size(self, hidden: int) -> int:
        """Return the number of components of a vector that is not truncated; `hidden`: width of the states."""
        return self.dense[-1].outputs if self.dense else len(self.pooling) * hidden

    def check_fit(self, hidden: int, source: str) -> None:
        """Raise InputError where these settings do not fit states of width `hidden`; `source` names the folder."""
        pooled = len(self.pooling) * hidden
        if self.dense and self.dense[0].inputs != pooled:
            raise InputError(
                f"{source}: the first dense layer has {self.dense[0].inputs} inputs; expected {pooled}, the size of "
                f"the pooled vector ({len(self.pooling)} × {hidden})"
            )
        for width in (*self.widths, *([self.width] if self.width else [])):
            self.check_width(width, hidden, f"{source}: Matryoshka width")

    def check_pieces(self, pieces: int, source: str) -> None:
        """Raise InputError where pieces have weights, but not all of a vocabulary of `pieces` pieces."""
        if 0 < len(self.piece_weights) < pieces:
            raise InputError(
                f"{source}: has weights for {len(self.piece_weights):,} pieces; expected one for each of the "
                f"{pieces:,} pieces of its vocabulary"
            )

    def check_width(self, width: int, hidden: int, source: str) -> None:
        """Raise InputError for a width that the vectors do not have; `source` names the option or file."""
        if not 1 <= width <= self.size(hidden):
            raise InputError(f"{source} {width}: expected 1 to {self.size(hidden)}, the size of this model's vectors")


def read_vector_settings(folder: Path) -> VectorSettings | None:
    """Read the settings of a model folder; None where it has none: `VectorSettings()` is then what is computed.

    Raises InputError, with the file, for modules and entries that are not computed here.
    """
    modules = folder / MODULES
    if not modules.is_file():
        return None
    entries = _module_entries(modules)
    _check_transformer(folder, entries[0][1])
    names = [name for name, _ in entries]
    pooling = next(_read_pooling(folder / path / "config.json") for name, path in entries if name == "Pooling")
    weights = [_read_piece_weights(folder / path / "config.json") for name, path in entries if name == "WordWeights"]
    dense = [_read_dense(folder / path / "config.json") for name, path in entries if name == "Dense"]
    for name, path in entries:
        if name == "Normalize" and (file := folder / path / "config.json").is_file():
            _check_entries(file, read_object(file), _ON_VECTORS)
    values = {"dense": dense, "normalize": "Normalize" in names, **pooling, **_read_prompts(folder / _PROMPTS)}
    values["piece_weights"] = weights[0] if weights else ()
    try:
        return VectorSettings.model_validate({**values, "max_length": _read_length(folder)})
    except ValidationError as error:
        raise InputError(f"{folder}: {_first_error(error)}") from None


def dense_folders(folder: Path) -> list[Path]:
    """Return the folders of the dense layers of a model folder with `modules.json`, in their order."""
    return [folder / path for name, path in _module_entries(folder / MODULES) if name == "Dense"]


def is_vector_file(name: str) -> bool:
    """Return True for a name that `write_vector_settings` gives to a file or folder of a model folder."""
    return name in (MODULES, _PROMPTS, _LENGTH) or bool(
        re.fullmatch(r"\d+_(WordWeights|Pooling|Dense|Normalize)", name)
    )


def write_vector_settings(folder: Path, settings: VectorSettings, *, hidden: int, positions: int) -> None:
    """Write the settings into a model folder, without the weights of dense layers.

    hidden: width of the states. positions: number of positions of the model, the maximum number of tokens where the
    settings have none; text-embeddings-inference opens no folder without a maximum.
    """
    settings.check_fit(hidden, str(folder))
    names = [*(["WordWeights"] if settings.piece_weights else []), "Pooling", *("Dense" for _ in settings.dense)]
    names += ["Normalize"] if settings.normalize else []
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{_LIBRARY}.models.Transformer"}]
    for index, name in enumerate(names, start=1):
        path = f"{index}_{name}"
        modules.append({"idx": index, "name": str(index), "path": path, "type": f"{_LIBRARY}.models.{name}"})
        (folder / path).mkdir(exist_ok=True)
    if settings.piece_weights:
        write_json(folder / "1_WordWeights" / "config.json", _piece_weights_to_json(settings.piece_weights))
    pooled = 1 + names.index("Pooling")
    write_json(folder / f"{pooled}_Pooling" / "config.json", _pooling_to_json(settings, hidden))
    for index, layer in enumerate(settings.dense, start=pooled + 1):
        described = {
            "in_features": layer.inputs,
            "out_features": layer.outputs,
            "bias": layer.bias,
            "activation_function": _activation_path(layer.activation),
        }
        write_json(folder / f"{index}_Dense" / "config.json", described)
    if settings.normalize:
        write_json(folder / f"{len(names)}_Normalize" / "config.json", {})
    widths = {_WIDTHS: list(settings.widths)} if settings.widths else {}
    width = {"truncate_dim": settings.width} if settings.width else {}
    prompts = {
        "prompts": settings.prompts,
        "default_prompt_name": settings.default_prompt,
        "similarity_fn_name": settings.similarity,
    }
    query_length = {_QUERY_LENGTH: settings.query_length} if settings.query_length else {}
    write_json(folder / _PROMPTS, {**prompts, **width, **widths, **query_length})
    write_json(folder / _LENGTH, {"max_seq_length": settings.max_length or positions, "do_lower_case": False})
    write_json(folder / MODULES, modules)


def _activation_path(activation: Activation) -> str:
    """Return the module and class of an activation, as sentence-transformers writes them and other programs read."""
    return f"torch.nn.modules.{'linear' if activation == 'Identity' else 'activation'}.{activation}"


def _pooling_to_json(settings: VectorSettings, hidden: int) -> dict[str, Any]:
    """Return the entries of the pooling, in the spelling before 5.4 where it can say the same: all versions read it."""
    modes = tuple(mode for mode in _FLAGS.values() if mode in settings.pooling)
    if modes != settings.pooling:
        described: dict[str, Any] = {"embedding_dimension": hidden, "pooling_mode": list(settings.pooling)}
    else:
        flags = {flag: mode in settings.pooling for flag, mode in _FLAGS.items()}
        described = {"word_embedding_dimension": hidden, **flags}
    return {**described, "include_prompt": settings.include_prompt}


def _piece_weights_to_json(weights: Sequence[float]) -> dict[str, Any]:
    """Return the entries of WordWeights; its vocabulary names the pieces by their ids."""
    names = [str(id) for id in range(len(weights))]
    return {"vocab": names, "word_weights": dict(zip(names, weights, strict=True)), "unknown_word_weight": 1.0}


def _read_piece_weights(path: Path) -> list[Any]:
    """Return the weight of each id: that of its name, of its name in lower case, or of unknown words."""
    raw = read_object(path)
    vocabulary, weights, unknown = raw.get("vocab") or [], raw.get("word_weights"), raw.get("unknown_word_weight", 1)
    is_named = isinstance(vocabulary, list) and {type(name) for name in vocabulary} == {str}
    if not (is_named and isinstance(weights, dict)):
        raise InputError(f"{path}: expected a list vocab of names and an object word_weights")
    return [weights.get(name, weights.get(name.lower(), unknown)) for name in vocabulary]


def _module_entries(path: Path) -> list[tuple[str, str]]:
    """Return the class name and the folder of each module; InputError for another order than Transformer, Pooling, …"""
    entries = read_json(path)
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path}: expected a list of modules, got {shown(entries)}")
    modules = []
    for number, entry in enumerate(entries):
        kind, where = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(where, str):
            raise InputError(f"{path}: module {number}: expected an object with type and path, got {shown(entry)}")
        library, name = kind.partition(".")[0], kind.rpartition(".")[2]
        if library != _LIBRARY or name not in _MODULE_NAMES:
            raise InputError(
                f"{path}: module {number} is {kind}; only {', '.join(_MODULE_NAMES)} of sentence-transformers are "
                "computed here"
            )
        if number and (Path(where).name != where or where == ".."):
            raise InputError(f"{path}: module {number}: expected the name of a folder as path, got {where!r}")
        modules.append((name, where))
    names = [name for name, _ in modules]
    weights = ["WordWeights"] * ("WordWeights" in names)
    expected = ["Transformer", *weights, "Pooling", *["Dense"] * names.count("Dense")]
    if names not in (expected, [*expected, "Normalize"]):
        raise InputError(
            f"{path}: the modules are {', '.join(names)}; only Transformer, WordWeights or nothing, Pooling, dense "
            "layers and at the end Normalize, in this order, are computed here"
        )
    return modules


_ON_VECTORS: Final[Mapping[str, tuple[Any, ...]]] = {
    "module_input_name": (None, "sentence_embedding"),
    "module_output_name": (None, "sentence_embedding"),
    "use_residual": (None, False),
}
"""Entries of a module after the pooling → the values with which it is computed here."""
_TRANSFORMER: Final[Mapping[str, tuple[Any, ...]]] = {
    "transformer_task": (None, "feature-extraction"),
    "module_output_name": (None, "token_embeddings"),
}


def _check_entries(path: Path, raw: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]) -> None:
    for name, values in allowed.items():
        if raw.get(name) not in values:
            raise InputError(f"{path}: {name} is {raw[name]!r}; only {values[-1]!r} is computed here")


def _check_transformer(folder: Path, where: str) -> None:
    """Raise InputError for a Transformer in a folder of its own, or one that does not give the last layer's states."""
    if where:
        raise InputError(
            f"{folder / MODULES}: the Transformer is in the folder {where!r}; expected its files beside {MODULES}: "
            "open the folder with sentence-transformers and save it again"
        )
    path = folder / _LENGTH
    raw = read_object_if_there(path)
    _check_entries(path, raw, _TRANSFORMER)
    modalities = raw.get("modality_config") or {}
    text = modalities.get("text", {}) if isinstance(modalities, dict) else None
    if not isinstance(text, dict):
        raise InputError(f"{path}: modality_config is {modalities!r}; expected an object with an object for text")
    _check_entries(path, text, {"method": (None, "forward"), "method_output_name": (None, "last_hidden_state")})
    tokenizer = folder / "tokenizer_config.json"
    keeps_case = not (tokenizer.is_file() and read_object(tokenizer).get("do_lower_case"))
    if raw.get("do_lower_case") and keeps_case:
        raise InputError(
            f"{path}: do_lower_case is true, but the tokenizer keeps upper case ({tokenizer.name}); expected a "
            "tokenizer that lower-cases, or do_lower_case false"
        )


def _read_pooling(path: Path) -> dict[str, Any]:
    raw = read_object(path)
    modes = raw.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _FLAGS.items() if raw.get(flag)] or ["mean"]
    if isinstance(modes, str):
        modes = [modes]
    if not isinstance(modes, list) or any(mode not in _FLAGS.values() for mode in modes):
        allowed = ", ".join(_FLAGS.values())
        raise InputError(f"{path}: pooling_mode: expected one or more of {allowed}, got {shown(modes)}")
    unknown = [name for name, value in raw.items() if name.startswith("pooling_mode_") and value and name not in _FLAGS]
    if unknown:
        raise InputError(f"{path}: {unknown[0]}: there is no such pooling mode; expected one of {', '.join(_FLAGS)}")
    return {"pooling": modes, "include_prompt": raw.get("include_prompt", True)}


def _read_dense(path: Path) -> DenseLayer:
    raw = read_object(path)
    _check_entries(path, raw, _ON_VECTORS)
    activation = raw.get("activation_function", "torch.nn.Tanh")
    name = activation.rpartition(".")[2] if isinstance(activation, str) else ""
    if name not in get_args(Activation) or not activation.startswith("torch.nn."):
        allowed = ", ".join(get_args(Activation))
        raise InputError(f"{path}: activation_function: expected one of torch.nn ({allowed}), got {shown(activation)}")
    values = {"inputs": raw.get("in_features"), "outputs": raw.get("out_features"), "bias": raw.get("bias", True)}
    try:
        return DenseLayer.model_validate({**values, "activation": name})
    except ValidationError as error:
        raise InputError(f"{path}: in_features, out_features, bias: {_first_error(error)}") from None


def _read_prompts(path: Path) -> dict[str, Any]:
    """Return prompts, similarity and widths by our names."""
    raw = read_object_if_there(path)
    _check_entries(path, raw, {"model_type": (None, "SentenceTransformer")})
    similarity = raw.get("similarity_fn_name") or "cosine"
    if similarity not in get_args(Similarity):
        allowed = ", ".join(get_args(Similarity))
        raise InputError(f"{path}: similarity_fn_name: expected one of {allowed}, got {shown(similarity)}")
    return {
        "prompts": raw.get("prompts") or {},
        "default_prompt": raw.get("default_prompt_name"),
        "similarity": similarity,
        "widths": raw.get(_WIDTHS) or (),
        "width": raw.get("truncate_dim"),
        "query_length": raw.get(_QUERY_LENGTH),
    }


def _read_length(folder: Path) -> Any:
    """Return the maximum number of tokens: the noted one, or that of the tokenizer; None where neither is noted."""
    length, tokenizer = folder / _LENGTH, folder / "tokenizer_config.json"
    noted = read_object_if_there(length).get("max_seq_length")
    if noted is None and tokenizer.is_file():
        noted = read_object(tokenizer).get("model_max_length")
    is_limit = not isinstance(noted, int | float) or noted < 10**15  # a tokenizer without a limit notes 10³⁰
    return noted if is_limit else None


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}, got {shown(first['input'])}" if where else first["msg"]
