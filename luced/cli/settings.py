"""luced config"""

from __future__ import annotations

import json
from typing import Any

import click

from luced.cli.table import print_table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each setting and line.")
def config(as_json: bool) -> None:
    """Show every setting, its value and where that came from.

    The last of these that has a value counts: the default, /etc/luce/luced.toml, ~/.config/luce/luced.toml, the
    environment (LUCE_N_CTX for n_ctx), the options of `luced serve`.
    """
    from luced import config

    rows = config.rows(config.load())
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    else:
        print_table(["key", "value", "source"], [[row["key"], _shown(row["value"]), row["source"]] for row in rows])


def _shown(value: Any) -> str:
    return ":".join(value) if isinstance(value, list) else str(value)
