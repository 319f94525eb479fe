"""What is known of each model that can be named, for `luced models` and the method `models`."""

from __future__ import annotations

from typing import Any

from luced.errors import ModelError, RequestError
from luced.gguf.catalogue import Catalogue, Entry, Facts


def describe_models(catalogue: Catalogue, default_name: str) -> list[dict[str, Any]]:
    """One row for each, by name. A file that is not in order has a `problem` and no facts."""
    try:
        default = catalogue.find(default_name)
    except RequestError:
        default = None
    return [_describe(entry, entry == default) for entry in catalogue.entries()]


def _describe(entry: Entry, is_default: bool) -> dict[str, Any]:
    problem = ""
    try:
        facts = entry.facts()
    except ModelError as error:
        facts, problem = Facts("", "", 0, 0), str(error)
    return {
        "name": entry.name,
        "path": str(entry.path),
        "bytes": entry.n_bytes,
        "architecture": facts.architecture,
        "quantisation": facts.quantisation,
        "parameters": facts.n_parameters,
        "context": facts.n_ctx,
        "default": is_default,
        "problem": problem,
    }
