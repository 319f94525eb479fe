"""luced pull"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from luced.cli.exits import INTERRUPTED, fail
from luced.cli.options import catalogue_of, load_config
from luced.cli.progress import Reporter, reporter

if TYPE_CHECKING:
    from luced.front.hub import RemoteModel
    from luced.gguf.catalogue import Catalogue


@click.command()
@click.argument("model", metavar="hf:OWNER/REPO[:TYPE]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each event and line, on standard output.")
def pull(model: str, as_json: bool) -> None:
    """Fetch a model from the Hugging Face hub into the folder pull_dir (see `luced config`).

    TYPE is a type of weights, as Q8_0, or the name of a file; without it Q4_K_M is taken, or the only model there is.
    A split model comes whole. What was interrupted goes on where it stopped; what is here already is checked, and
    fetched again where it is damaged. What is in the cache of huggingface-hub is used there. HF_TOKEN and HF_ENDPOINT
    count as they do for huggingface-hub.

    \b
    luced pull hf:unsloth/Qwen3-0.6B-GGUF
    luced pull hf:unsloth/Qwen3-0.6B-GGUF:Q8_0
    """
    from luced.front import hub as hubs
    from luced.front import pull as pulls

    settings = load_config()
    try:
        repo, wanted = hubs.parse(model)
        hub = hubs.Hub()
        found = hubs.choose(hub.models(repo), repo, wanted)
        with reporter(as_json) as report:
            path = _in_cache(catalogue_of(settings), found, report) or pulls.pull(hub, found, settings.pull_dir, report)
    except hubs.PullError as error:
        fail(str(error), error.remedy, error.status)
    except KeyboardInterrupt:
        fail("interrupted", "what has come is kept: run it again and it goes on", INTERRUPTED)
    if not as_json:
        click.echo(path)
        click.echo(f"ask it: luce-ask --model {catalogue_of(settings).find(str(path)).name} 'question'", err=True)


def _in_cache(catalogue: Catalogue, model: RemoteModel, report: Reporter) -> Path | None:
    """Where another program has fetched the same files to."""
    wanted = [file.sha256 for file in model.files]
    for entry in catalogue.entries():
        if entry.place == "hub" and [path.resolve().name for path in entry.paths] == wanted:
            report("done", path=str(entry.path), fetched=0)
            return entry.path
    return None
