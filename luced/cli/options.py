"""Options that several commands have, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from luce.errors import LuceError
from luce.fields import read_fields
from luced import config
from luced.config import ISAS

if TYPE_CHECKING:
    from luced.device.choose import Chosen
    from luced.gguf.catalogue import Catalogue, Entry

F = TypeVar("F", bound=Callable[..., Any])

threads_option = click.option("--threads", type=click.IntRange(1), help="CPU threads. Default: one for each core.")
isa_option = click.option(
    "--isa", type=click.Choice(ISAS), help="Instruction set of the CPU kernels. Default: the best."
)


class DeviceName(click.ParamType[str]):
    name = "device"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        try:
            read_fields("--device", (config.DEVICE,), {config.DEVICE.name: value}, ())
        except LuceError:
            self.fail(f"{value!r} is not one of {', '.join(config.DEVICES)}.", parameter, context)
        return value

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in config.DEVICES[:-1] if name.startswith(incomplete)]


device_option = click.option(
    "--device",
    type=DeviceName(),
    metavar="[auto|cpu|cuda[:N]]",
    help="Where to compute. auto: the fastest that works. Default: `luced config`.",
)
model_dirs_option = click.option(
    "--model-dir",
    "model_dirs",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    help="Folder of GGUF files, searched before the usual ones; any number of times. Default: `luced config`.",
)


def load_config(model_dirs: tuple[Path, ...] = (), **flags: object) -> config.Config:
    """The settings, with the flags of a command line; what was not given is None or ()."""
    return config.load(model_dirs=tuple(folder.absolute() for folder in model_dirs) or None, **flags)


def tell_device(chosen: Chosen) -> None:
    """On stderr: what is computed on, and what `auto` passed over."""
    device, passed_over = chosen
    click.echo(f"luced: on {device.name}: {device.device_name}, {device.isa}", err=True)
    for why in passed_over:
        click.echo(f"  not on {why}", err=True)


def catalogue_of(settings: config.Config) -> Catalogue:
    from luced.gguf.catalogue import Catalogue

    return Catalogue(settings.search_path, aliases=settings.aliases)


def find(model: str, model_dirs: tuple[Path, ...]) -> Entry:
    """The model of that name or path. RequestError: there is none."""
    return catalogue_of(load_config(model_dirs)).find(model)


def numbers(option: str, text: str) -> list[int]:
    """Of `3,17,5`. BadParameter: it is no such list."""
    try:
        found = [int(number) for number in text.split(",")]
    except ValueError:
        found = [-1]
    if min(found) < 0:
        raise click.BadParameter(f"{text!r} is no list of whole numbers like 3,17,5", param_hint=option)
    return found


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of models that begin so, for the one who presses TAB; never an error."""
    try:
        names = [entry.name for entry in catalogue_of(load_config()).entries()]
    except (LuceError, OSError):
        return []
    return [name for name in names if name.lower().startswith(incomplete.lower())]
