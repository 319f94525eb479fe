"""luced config"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from luced.cli.options import catalogue_of
from luced.cli.table import print_table
from luced.errors import RequestError

if TYPE_CHECKING:
    from luced.gguf.catalogue import Catalogue


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each setting and line.")
def config(as_json: bool) -> None:
    """Show every setting, its value and where that came from.

    The last of these that has a value counts: the default, /etc/luce/luced.toml, ~/.config/luce/luced.toml, the
    environment (LUCE_N_CTX for n_ctx), the options of `luced serve`.
    """
    from luced import config

    settings = config.load()
    rows = config.rows(settings)
    catalogue = catalogue_of(settings)
    names = {name for entry in catalogue.entries() for name in entry.names}
    for row in rows:
        row["problem"] = _problem(row, catalogue, names)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    else:
        cells = [[row["key"], _shown(row["value"]), row["source"], row["problem"]] for row in rows]
        print_table(["key", "value", "source", ""], cells)


def _problem(row: dict[str, Any], catalogue: Catalogue, names: set[str]) -> str:
    """What the daemon would start with, and yet not as it is meant."""
    kind, _, rest = row["key"].partition(".")
    if kind == "models" and rest.rpartition(".")[0] not in names:
        return "no model has this name now"
    if kind == "aliases" or kind == "default_model":
        try:
            catalogue.find(rest or row["value"])
        except RequestError as error:
            return error.message
    return ""


def _shown(value: Any) -> str:
    return ":".join(value) if isinstance(value, list) else str(value)
