"""Requests that the engine died of, for a while: asked again they are refused at once, and cost nobody an engine."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

from luced import link
from luced.errors import RequestError

KEEP_S = 300.0  # then it may be another file, or another driver


class Guilty:
    def __init__(self) -> None:
        self._refusals: dict[bytes, tuple[float, RequestError]] = {}

    def add(self, generate: link.Generate, error: RequestError) -> None:
        """It had said nothing, so it is its prompt that the engine dies of, whatever the seed."""
        self._refusals[_key(generate)] = (time.monotonic() + KEEP_S, error)

    def check(self, generate: link.Generate) -> None:
        """RequestError: this tenant has asked the same, and the engine died of it."""
        now = time.monotonic()
        self._refusals = {key: refusal for key, refusal in self._refusals.items() if refusal[0] > now}
        if self._refusals and (refusal := self._refusals.get(_key(generate))):
            error = refusal[1]
            raise RequestError(error.name, error.message, error.remedy, **error.data)


def _key(generate: link.Generate) -> bytes:
    """Of what is computed and for whom."""
    same = replace(generate, priority="", client=0, sampling=replace(generate.sampling, seed=0))
    return hashlib.blake2b(repr(same).encode(), digest_size=16).digest()
