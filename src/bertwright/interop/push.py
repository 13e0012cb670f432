"""model folder → a repository of the Hugging Face Hub, with the model card."""

from pathlib import Path
from typing import Any

from bertwright.errors import InputError, MissingExtra, RunFailed
from bertwright.model.folder import CARD, model_files, open_model
from bertwright.text.parquet import first_line
from bertwright.version import __version__


def push_model(source: str, repository: str, *, private: bool, update: bool) -> dict[str, Any]:
    """Upload MODEL, which is opened first, to the Hub; return {"model", "repository", "files", "address", "text"}.

    private: make a repository that others cannot read. update: add a commit to a repository that exists. Only the files
    of a model are uploaded. Raises InputError for a folder that is no model, a missing token, a bad name, a repository
    that exists, and one that the token may not write; RunFailed where the upload fails.
    """
    try:  # imported here: only models of the Hub need this extra
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise MissingExtra("hub", "push") from None
    saved = open_model(source)
    if saved.weights is None:
        raise InputError(f"push {source}: has no trained weights; name a model folder or a run folder")
    if private and update:
        raise InputError("push: --private is for a new repository; change one that exists on its page at the Hub")
    if get_token() is None:
        raise InputError("push needs a token of the Hub that may write: run `hf auth login`, or set HF_TOKEN")
    folder, api = Path(saved.source), HfApi()
    names = model_files(folder)
    try:
        if not update:
            api.create_repo(repository, private=private)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=names,
            commit_message=f"Model of bertwright {__version__}",
        )
    except HFValidationError as error:
        raise InputError(f"push {repository}: no name of a repository: {first_line(error)}") from None
    except HfHubHTTPError as error:
        raise _refusal(repository, error.response.status_code, first_line(error)) from None
    except Exception as error:  # the errors of a connection are those of the library below, which may change
        raise RunFailed(
            f"push {repository}: the upload failed: {type(error).__name__}: {first_line(error)}; nothing changed here: "
            "check the connection, and repeat the command, with --update if the repository was made"
        ) from error
    address = str(commit.repo_url)
    card = "" if CARD in names else " (the folder has no model card)"
    text = f"{address}: {len(names)} files of {folder}{card}"
    return {"model": str(folder), "repository": repository, "files": names, "address": address, "text": text}


def _refusal(repository: str, status: int, reason: str) -> InputError | RunFailed:
    """Return the error for an answer of the Hub."""
    if status == 409:
        return InputError(f"push {repository}: exists already; --update adds a commit to it, or choose another name")
    if status in (401, 403):
        return InputError(f"push {repository}: the Hub refuses your token ({status}); it must be one that may write")
    if status == 404:
        return InputError(f"push {repository}: the Hub has no such repository; leave --update out to create it")
    return RunFailed(f"push {repository}: the Hub answered with status {status}: {reason}")
