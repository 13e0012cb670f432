"""Files of a URL, and the calls that a pattern makes."""

from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.stores import listing, remote
from bertwright.stores.listing import files_below, find_remote
from tests.support.stores import put


@pytest.fixture
def keyed_texts(store: Any) -> Any:
    for key in ("b/texts/a.txt", "b/texts/c.txt.gz", "b/texts/.hidden", "b/texts-2/d.txt", "b/other/e.txt"):
        put(key, key.encode())
    return store


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("faulty://b/texts/a.txt", ["texts/a.txt"]),
        ("faulty://b/texts", ["texts/a.txt", "texts/c.txt.gz"]),
        ("faulty://b/texts/", ["texts/a.txt", "texts/c.txt.gz"]),
        ("faulty://b/texts*", ["texts/a.txt", "texts/c.txt.gz", "texts-2/d.txt"]),
        ("faulty://b/texts/*.gz", ["texts/c.txt.gz"]),
        ("faulty://b/*/[ae].txt", ["other/e.txt", "texts/a.txt"]),
        ("faulty://b/t?xts/a.txt", ["texts/a.txt"]),
    ],
)
def test_files_of_a_url(keyed_texts: Any, url: str, expected: list[str]) -> None:
    assert [str(file) for file in find_remote(url)] == [f"faulty://b/{name}" for name in expected]


def test_a_pattern_lists_its_own_beginning_alone(keyed_texts: Any) -> None:
    keyed_texts.calls.clear()
    find_remote("faulty://b/texts*")
    assert [call for call in keyed_texts.calls if call[0] == "find"] == [("find", "/b/texts"), ("find", "/b/texts-2")]


def test_a_store_that_lists_by_prefix_gets_it(keyed_texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As s3fs and gcsfs do; their listing without it would go through the whole bucket."""
    prefixes = []

    def find(self: Any, path: str, prefix: str = "", **options: Any) -> Any:
        prefixes.append((path, prefix))
        below = super(keyed_texts, self).find(path, **options)
        return {name: info for name, info in below.items() if name.startswith(f"{path}/{prefix}")}

    monkeypatch.setattr(keyed_texts, "find", find)
    assert [file.name for file in find_remote("faulty://b/texts*")] == ["a.txt", "c.txt.gz", "d.txt"]
    assert prefixes == [("/b", "texts")]


def test_files_below_are_named_from_the_folder(keyed_texts: Any) -> None:
    assert list(files_below("faulty://b")) == [
        "other/e.txt",
        "texts/.hidden",
        "texts/a.txt",
        "texts/c.txt.gz",
        "texts-2/d.txt",
    ]
    assert files_below("faulty://b/absent") == {}


def test_a_key_that_leads_out_of_the_folder_is_refused(keyed_texts: Any) -> None:
    keyed_texts.store["/b/other/../../x"] = keyed_texts.store["/b/other/e.txt"]
    with pytest.raises(InputError, match=r"b/other: the key \.\./\.\./x leads out of the folder"):
        files_below("faulty://b/other")


def test_what_names_no_file_is_refused(keyed_texts: Any) -> None:
    with pytest.raises(InputError, match="b/absent: no file of the store has this name, folder or pattern"):
        find_remote("faulty://b/absent")
    with pytest.raises(InputError, match=r"absent\*: no file of the store"):
        find_remote("faulty://b/absent*")
    with pytest.raises(InputError, match="the pattern begins in the name of the bucket; name one bucket"):
        find_remote("faulty://b*/x")


def test_files_of_a_folder_of_http_have_their_own_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page that lists the folder has neither sizes nor times."""

    class System:
        def find(self, path: str, *, detail: bool) -> dict[str, Any]:
            assert detail
            return {f"{path}/{name}": {"size": None, "type": "file"} for name in ("a.txt", "gone.txt")}

        def info(self, path: str) -> dict[str, Any]:
            if path.endswith("gone.txt"):
                raise FileNotFoundError(path)
            of_page = {"mimetype": "text/html"} if path.endswith("folder") else {}
            return {"size": 3, "ETag": "x", "type": "file", **of_page}

    monkeypatch.setattr(listing, "open_store", lambda url: (System(), url.rstrip("/")))
    monkeypatch.setattr(remote, "open_store", lambda url: (System(), url))
    (file,) = files_below("https://h/folder/").items()
    assert file == ("a.txt", remote.RemoteFile("https://h/folder/a.txt", 3, "etag x"))
    assert [file.size for file in find_remote("https://h/folder/")] == [3]
    assert [file.size for file in find_remote("https://h/folder/a.txt")] == [3]
    with pytest.raises(InputError, match="https://h/folder: is no file of the server; end the URL of a folder with /"):
        find_remote("https://h/folder")
