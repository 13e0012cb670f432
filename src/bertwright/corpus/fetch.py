"""URL of a corpus → its folder on this machine: shards are mapped into memory, so they are copied before a run."""

from pathlib import Path

from bertwright.corpus.manifest import MANIFEST, TOKENIZER, Manifest, read_manifest
from bertwright.errors import InputError
from bertwright.files import atomic_file, file_digest
from bertwright.stores.cache import complete_copies, copies_folder, fetch_files
from bertwright.stores.listing import files_below, leads_outside
from bertwright.stores.remote import without_query


def fetch_corpus(url: str) -> Path:
    """Return the folder of a copy of the corpus that a URL names.

    The copy belongs to the digest of the manifest, which holds those of all shards. Each shard is compared with its
    digest when it is downloaded, and the manifest is written last. A second call downloads nothing. Raises InputError
    where there is no corpus or a file of it is missing, RunFailed where the store fails or a shard has another digest.
    """
    base = url.rstrip("/")
    where, files = without_query(base), files_below(base)
    if MANIFEST not in files:
        raise InputError(f"{where}: not a corpus (it has no {MANIFEST}); make one with 'bertwright corpus build'")
    read = fetch_files(base, {MANIFEST: files[MANIFEST]})
    digests = _digests(read_manifest(read))
    if outside := next(filter(leads_outside, digests), None):
        raise InputError(
            f"{where}: names the shard {outside}, outside of its folder, as corpora of 'corpus merge' do; copy its "
            "parts to this machine, or name them: --corpus PART --corpus PART"
        )
    if missing := next((name for name in digests if name not in files), None):
        raise InputError(
            f"{where}/{missing}: this file of the corpus is missing in the store; copy the corpus there again"
        )
    folder = copies_folder(base, file_digest(read / MANIFEST))
    complete_copies(base, {name: files[name] for name in digests}, folder, digests=digests)
    if not (folder / MANIFEST).is_file():
        with atomic_file(folder / MANIFEST) as stream:
            stream.write((read / MANIFEST).read_bytes())
    return folder


def _digests(manifest: Manifest) -> dict[str, str]:
    """Return the sha256 of each file of a corpus but its manifest."""
    digests = {entry.name: entry.sha256 for entry in manifest.shards}
    digests |= {entry.hashes: entry.hashes_sha256 for entry in manifest.shards}
    if manifest.duplicates:
        digests[manifest.duplicates.name] = manifest.duplicates.sha256
    return digests | {f"{TOKENIZER}/{name}": digest for name, digest in manifest.tokenizer_files.items()}
