"""What the Hugging Face hub has of a model, and its bytes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NoReturn, Protocol

import httpx2
from huggingface_hub import HfApi, get_session, get_token, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from luced.gguf.catalogue import type_in_name
from luced.gguf.files import PROJECTOR
from luced.gguf.reader import n_parts, split_name

DEFAULT_TYPE = "Q4_K_M"
READ_BYTES = 1 << 20
TIMEOUT_S = 30.0  # without a byte
MAX_TRIES = 6  # in a row that brought nothing
BACKOFF_S = 1.0  # after the first of them; doubled each time
BUSY = (408, 429, 500, 502, 503, 504)

# sysexits.h
NO_SUCH, UNAVAILABLE, CANNOT_CREATE, IO_ERROR, NOT_PERMITTED = 65, 69, 73, 74, 77


class PullError(Exception):
    """A model cannot be fetched: the message says why, `remedy` what to do; `status` is the exit status."""

    def __init__(self, message: str, remedy: str, status: int) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.status = status


class Arrived(Protocol):
    """Somebody who takes the bytes of a file."""

    @property
    def n_bytes(self) -> int: ...


@dataclass(frozen=True)
class RemoteFile:
    name: str  # in the repository, folders included
    n_bytes: int
    sha256: str


@dataclass(frozen=True)
class RemoteModel:
    """One model of a repository: a file, or all parts of one in order."""

    repo: str
    revision: str
    stem: str
    files: tuple[RemoteFile, ...]

    @property
    def type(self) -> str:
        return type_in_name(self.stem)

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


def parse(name: str) -> tuple[str, str]:
    """(OWNER/REPO, type or empty) of hf:OWNER/REPO[:TYPE]."""
    repo, _, wanted = name.removeprefix("hf:").partition(":")
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo):
        raise PullError(f"{name!r} names no repository", "say it as hf:OWNER/REPO or hf:OWNER/REPO:TYPE", NO_SUCH)
    return repo, wanted.removesuffix(".gguf")


class Hub:
    """`endpoint`: another hub than $HF_ENDPOINT or the public one."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._api = HfApi(endpoint=endpoint)

    def models(self, repo: str) -> list[RemoteModel]:
        """All that the repository has, by name. PullError: there is no such repository, or we may not see it."""
        try:
            info = self._api.model_info(repo, files_metadata=True, timeout=TIMEOUT_S)
        except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, httpx2.TransportError) as error:
            _fail(repo, error)
        except (httpx2.InvalidURL, ValueError, KeyError, TypeError):
            message = f"{self._api.endpoint} does not answer as the Hugging Face hub does"
            raise PullError(message, "correct HF_ENDPOINT", UNAVAILABLE) from None
        files = [
            RemoteFile(s.rfilename, s.lfs.size, s.lfs.sha256)
            for s in info.siblings or ()
            if s.lfs is not None and is_model_name(s.rfilename)
        ]
        models: dict[str, list[RemoteFile]] = {}
        for file in sorted(files, key=lambda file: file.name):
            models.setdefault(split_name(file.name), []).append(file)
        return [
            RemoteModel(repo, info.sha or "main", PurePosixPath(name).name, tuple(parts))
            for name, parts in models.items()
            if len(parts) == n_parts(parts[0].name)
        ]

    def read(self, model: RemoteModel, file: RemoteFile, arrived: Arrived) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of the rest of a file; `arrived` tells how much is here, whenever we (re)connect.

        A connection that breaks is opened again. An offset of 0 in the middle: it starts all over. PullError: it
        cannot be had.
        """
        url = hf_hub_url(model.repo, file.name, revision=model.revision, endpoint=self._api.endpoint)
        n_failed = 0
        while (at := arrived.n_bytes) < file.n_bytes:
            try:
                for piece in _stream(url, at):
                    n_failed = 0
                    yield piece
                if arrived.n_bytes == at:
                    raise httpx2.RemoteProtocolError("the file ended early")
            except (HfHubHTTPError, httpx2.TransportError) as error:
                is_final = isinstance(error, HfHubHTTPError) and error.response.status_code not in BUSY
                n_failed += 1
                if is_final or n_failed == MAX_TRIES:
                    _fail(model.repo, error)
                time.sleep(BACKOFF_S * 2 ** (n_failed - 1))


def is_model_name(name: str) -> bool:
    """A model, of a name that stays inside the folder it is put into."""
    path = PurePosixPath(name)
    is_plain = not path.is_absolute() and not any(part.startswith(".") for part in path.parts)
    return is_plain and path.suffix == ".gguf" and not path.name.startswith(PROJECTOR)


def choose(models: list[RemoteModel], repo: str, wanted: str) -> RemoteModel:
    """The one of that type or file name; without one Q4_K_M, or the only one. PullError: which there are."""
    if not models:
        raise PullError(f"{repo} has no GGUF models", "look for a repository whose name ends with -GGUF", NO_SUCH)
    found = [m for m in models if wanted.lower() in (m.type.lower(), m.stem.lower())] if wanted else models
    if not wanted and len(models) > 1:
        found = [model for model in models if model.type == DEFAULT_TYPE]
    if len(found) == 1:
        return found[0]
    choices = found or models
    by_type = len({model.type for model in choices}) == len(choices)
    names = ", ".join(f"{(by_type and m.type) or m.stem} ({m.n_bytes / 1e9:.2f} GB)" for m in choices)
    why = f"has {len(found)} models {wanted or DEFAULT_TYPE}" if found else f"has no {wanted or DEFAULT_TYPE}"
    raise PullError(f"{repo} {why}; there are {names}", f"name one of them: luced pull hf:{repo}:NAME", NO_SUCH)


def _stream(url: str, at: int) -> Iterator[tuple[int, bytes]]:
    """The bytes from `at` on, or from 0 if the server does not serve parts."""
    headers = {"Accept-Encoding": "identity"}
    if token := get_token():
        headers["Authorization"] = f"Bearer {token}"  # which a redirection to another host leaves out
    if at:
        headers["Range"] = f"bytes={at}-"
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as response:
        if response.is_error:
            response.read()
        hf_raise_for_status(response)
        if at and response.status_code != httpx2.codes.PARTIAL_CONTENT:
            at = 0
        for data in response.iter_bytes(READ_BYTES):
            yield at, data
            at += len(data)


def _fail(repo: str, error: Exception) -> NoReturn:
    """The PullError that an error of the hub or of the way to it comes to."""
    token = "log in with `hf auth login`, or set HF_TOKEN"
    match error:
        case GatedRepoError():
            message = f"{repo} is gated: its owner must let you in"
            remedy = f"ask for access on the repository's page, then {token}"
            raise PullError(message, remedy, NOT_PERMITTED) from None
        case RepositoryNotFoundError() | HFValidationError():
            message = f"there is no repository {repo}, or it is private"
            raise PullError(message, f"correct the name; for a private one {token}", NO_SUCH) from None
        case OfflineModeIsEnabled():
            message = "HF_HUB_OFFLINE is set: nothing can be fetched"
            raise PullError(message, "unset it", UNAVAILABLE) from None
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            message = f"the hub does not let this user read {repo} (HTTP {error.response.status_code})"
            raise PullError(message, token, NOT_PERMITTED) from None
        case HfHubHTTPError() if error.response.status_code == httpx2.codes.NOT_FOUND:
            raise PullError(f"{repo}: a file is gone from the hub", "run it again", NO_SUCH) from None
        case HfHubHTTPError():
            message = f"the hub answers with HTTP {error.response.status_code}"
            raise PullError(message, "run it again later: it goes on where it stopped", UNAVAILABLE) from None
    why = str(error) or type(error).__name__
    remedy = "check the network, HF_ENDPOINT and the proxy, then run it again"
    raise PullError(f"the hub cannot be reached: {why}", remedy, UNAVAILABLE) from None
