"""What is known of each model that can be named, for `luced models` and the method `models`."""

from __future__ import annotations

from typing import Any

from luced.config import Config
from luced.errors import ModelError, RequestError
from luced.gguf.catalogue import Catalogue, Entry
from luced.gguf.facts import Facts


def describe_models(catalogue: Catalogue, config: Config) -> list[dict[str, Any]]:
    """One row for each, by name. A file that is not in order has a `problem` and no facts."""
    try:
        default = catalogue.find(config.default_model)
    except RequestError:
        default = None
    return [_describe(entry, entry == default, config) for entry in catalogue.entries()]


def _describe(entry: Entry, is_default: bool, config: Config) -> dict[str, Any]:
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
        "aliases": list(entry.aliases),
        "settings": config.of_model(entry.names),
    }
