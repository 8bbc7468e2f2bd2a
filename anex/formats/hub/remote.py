"""A repository on the hub, through `huggingface_hub`, whose errors become anex's.

`huggingface_hub` knows endpoints, proxies, tokens and what the hub's refusals
mean.  Its downloads begin at zero in a new process (seen in version 2.4), and
its headers tell the hub what is installed and what runs it, so the two requests
that a pull needs are made here, with its HTTP session.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from anex.errors import InputError, ResourceError

if TYPE_CHECKING:
    from hashlib import _Hash

_PUBLIC = "https://huggingface.co"
_TIMEOUT = 20.0  # seconds without an answer, or between two pieces of one
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TEMPORARY = (408, 429, 500, 502, 503, 504)


class UnreachableError(ResourceError):
    """The hub does not answer, or not now."""


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository.

    Attributes:
        id: Digest of its content: SHA-256, or that of git (SHA-1 with a length in front).
    """

    name: str
    size: int
    id: str

    def digest(self) -> _Hash:
        """A hash that gives `id` once it was fed the whole file."""
        if len(self.id) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a revision holds.

    Attributes:
        revision: The commit.
        files: By name.
    """

    revision: str
    files: dict[str, RepoFile]


class Remote:
    """One repository of models.

    Args:
        name: `owner/name`.
        endpoint: Address of the hub; by default `HF_ENDPOINT`, or the public one.

    Raises:
        InputError: The name cannot be one of a repository, the address none of a hub.
    """

    def __init__(self, name: str, endpoint: str | None = None) -> None:
        # First of all: the library cannot even be imported with an address that is none.
        _check_address(endpoint or os.environ.get("HF_ENDPOINT", _PUBLIC))
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        self.name = name
        self._endpoint = endpoint
        try:
            validate_repo_id(name)
        except HFValidationError:
            raise InputError(
                "neither a file, nor a folder, nor a name on the hub",
                where=ascii(name),
                hint="such as owner/model",
            ) from None

    def listing(self, revision: str | None = None) -> Listing:
        """The files of a revision (by default the newest of the main branch).

        Raises:
            InputError: No such repository or revision, or one that needs permission.
            UnreachableError: The hub does not answer.
        """
        from huggingface_hub import constants, get_session
        from huggingface_hub.utils import hf_raise_for_status

        where = f"{self._endpoint or constants.ENDPOINT}/api/models/{self.name}"
        if revision is not None:
            where += f"/revision/{quote(revision, safe='')}"
        with self._errors():
            response = get_session().get(
                where, params={"blobs": True}, headers=_headers(), timeout=_TIMEOUT, follow_redirects=True
            )
            hf_raise_for_status(response)
            try:
                content = response.json()
                commit, found = str(content["sha"]), [_file(entry) for entry in content["siblings"]]
            except (TypeError, KeyError, ValueError, AttributeError) as error:
                raise self._nonsense() from error
        if not _ID.fullmatch(commit):
            raise self._nonsense()
        return Listing(commit, {file.name: file for file in found if file is not None})

    @contextmanager
    def content(self, file: RepoFile, revision: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The bytes of a file from `start` on, while the block runs.

        Yields:
            Where they really start (0 where the hub cannot begin in the middle), and pieces of them.

        Raises:
            InputError: No permission, or the file is gone.
            UnreachableError: The connection fails; what came before counts.
        """
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import hf_raise_for_status

        url = hf_hub_url(self.name, file.name, revision=revision, endpoint=self._endpoint)
        headers = _headers() | {"Accept-Encoding": "identity", "Range": f"bytes={start}-"}
        with (
            self._errors(),
            get_session().stream(
                "GET", url, headers=headers, timeout=_TIMEOUT, follow_redirects=True
            ) as response,
        ):
            hf_raise_for_status(response)
            partial = response.status_code == 206
            if partial and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise self._nonsense()
            # Pieces as they come: what is gathered into larger ones goes with a lost connection.
            yield start if partial else 0, response.iter_bytes()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the library and its HTTP client as one line each."""
        from huggingface_hub import errors

        # httpx's or httpx2's, whichever the installed version builds on.
        transport: type[Exception] = errors.HTTPError
        try:
            yield
        except errors.GatedRepoError:
            raise InputError(
                "the model is behind a gate",
                where=self.name,
                hint="accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN",
            ) from None
        except errors.RepositoryNotFoundError:
            raise InputError(
                "no such model on the hub",
                where=self.name,
                hint="check the name; a private one needs `hf auth login` or HF_TOKEN",
            ) from None
        except errors.RevisionNotFoundError:
            raise InputError("no such revision", where=self.name, hint="a branch, tag or commit") from None
        except errors.EntryNotFoundError:
            raise InputError("no such file on the hub any more", where=self.name) from None
        except errors.HfHubHTTPError as error:
            raise self._refused(error.response.status_code) from error
        except errors.OfflineModeIsEnabled:
            raise UnreachableError("HF_HUB_OFFLINE forbids to ask the hub", where=self.name) from None
        except transport as error:
            raise UnreachableError(
                f"the hub cannot be reached: {type(error).__name__}", where=self.name, hint=self._hint()
            ) from error

    def _refused(self, status: int) -> InputError | ResourceError:
        if status in _TEMPORARY:
            return UnreachableError(
                f"the hub answers with status {status}", where=self.name, hint="try again later"
            )
        hint = "check HF_TOKEN or `hf auth login`" if status in (401, 403) else ""
        return InputError(f"the hub answers with status {status}", where=self.name, hint=hint)

    def _nonsense(self) -> InputError:
        return InputError("the answer is not one of a hub", where=self.name, hint=self._hint())

    def _hint(self) -> str:
        from huggingface_hub import constants

        return f"check the network and HF_ENDPOINT, {self._endpoint or constants.ENDPOINT}"


def _check_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").encode("idna")
        good = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise InputError("HF_ENDPOINT is not the address of a hub", where=ascii(address), hint=_PUBLIC)


def _headers() -> dict[str, str]:
    """Who asks, and the user's token where there is one."""
    from huggingface_hub.utils import get_token_to_send

    token = get_token_to_send(None)
    headers = {"User-Agent": "anex"}
    if token:
        if not (token.isascii() and token.isprintable()):
            raise InputError("the token of the hub holds other characters than ASCII", hint="check HF_TOKEN")
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _file(entry: Any) -> RepoFile | None:
    """A file of the hub's answer; None where its name is not one for a model folder.

    Raises:
        KeyError, TypeError: The entry makes no sense.
    """
    name, size, lfs = entry["rfilename"], entry["size"], entry.get("lfs")
    identity = entry["blobId"] if lfs is None else lfs["sha256"]
    if not isinstance(name, str) or type(size) is not int or size < 0 or not _ID.fullmatch(identity):
        raise TypeError(f"a file without name, size or digest: {entry}")
    return RepoFile(name, size, identity) if is_plain(name) else None


def is_plain(name: str) -> bool:
    """Whether a relative POSIX path stays in its folder on every system and is not hidden."""
    parts = name.split("/")
    return (
        name.isprintable()
        and not set(name) & set("\\:")
        and str(PurePosixPath(name)) == name
        and all(part and not part.startswith(".") for part in parts)
    )
