"""Settings of the daemon and its engine: one frozen object. Nothing below it reads the environment or a settings file.

The last of these that has a value counts: the default, /etc/luce/luced.toml, $XDG_CONFIG_HOME/luce/luced.toml, the
environment (LUCE_N_CTX for n_ctx), the command line. Aliases and the models' own settings are merged key by key.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from luce import messages
from luce.errors import LuceError
from luce.fields import Field, read_fields
from luce.paths import user_socket
from luced.errors import ModelError

SYSTEM_FILE = Path("/etc/luce/luced.toml")
SYSTEM_MODELS = Path("/var/lib/luce/models")
FIRST_INHERITED_FD = 3  # SD_LISTEN_FDS_START of systemd
DEVICES = ("auto", "cpu", "cuda", "cuda:N")
ISAS = ("auto", "baseline", "avx2", "avx512")
DEFAULT, COMMAND_LINE = "default", "command line"

MAX_CTX = 1 << 24
N_CTX = Field("n_ctx", "int", "Tokens of context of each model. 0: what it was trained for.", 0, 0, MAX_CTX)
DEVICE = Field("device", "str", "Where to compute. auto: the fastest that works.", "auto", choices=DEVICES)
_KEPT = 'How long a model stays in memory after its last request, like "10m". Negative: for ever. 0: not at all.'
KEEP_ALIVE = Field("keep_alive", "duration", _KEPT, "5m")

# What a file may set. `socket` is not among them: clients find it by the environment alone.
SETTINGS = (
    Field("model_dirs", "list[str]", "Folders of GGUF files, searched before the usual ones.", []),
    Field("pull_dir", "str", "Where `luced pull` puts models, and `luced rm` takes them from.", ""),
    Field("default_model", "str", "The model that answers where the client names none.", "smollm2-135m-instruct"),
    DEVICE,
    Field("isa", "str", "Instruction set of the CPU kernels. auto: the best.", "auto", choices=ISAS),
    Field("n_threads", "int", "CPU threads. 0: one for each core.", 0, 0, 1024),
    N_CTX,
    messages.KV_TYPE,
    KEEP_ALIVE,
    Field("n_batch", "int", "Most tokens of a step.", 512, 1, 8192),
    Field("inference_socket", "str", "Also listen here, for inference alone: may be mounted in containers.", ""),
    Field("operator_group", "str", "Whose members are operators, like root and the daemon's own user.", ""),
    Field("max_queue", "int", "Requests that may wait for a model or their turn.", 1024, 1, 1 << 20),
    Field("max_queue_of_user", "int", "Of them, those of one user.", 512, 1, 1 << 20),
    Field("deadline_s", "int", "Seconds after which any request ends. 0: when it asks for it.", 0, 0, 1 << 30),
    Field("pause_s", "int", "Seconds after which a request that nobody reads gives up its memory.", 10, 0, 3600),
    Field("stall_s", "int", "Seconds after which the connection of such a client is closed.", 600, 1, 1 << 30),
    Field("cache_bytes", "int", "Bytes of the KV cache of each model. 0: what fits.", 0, 0, 1 << 60),
    Field("state_bytes", "int", "Bytes of each model's recurrent states. 0: what fits.", 0, 0, 1 << 60),
)
SAMPLING = tuple(f for f in messages.SAMPLING if f.type in ("int", "float") and f.default is not None and f.name != "n")
MODEL_SETTINGS = (*SAMPLING, N_CTX, messages.KV_TYPE, KEEP_ALIVE)  # of [models."name"]
TABLES = ("aliases", "models")
# As its makers advise; at the usual temperature a model this small rambles.
MODELS = {"smollm2-135m-instruct": {"temperature": 0.2, "top_p": 0.9}}
PATHS = ("model_dirs", "pull_dir", "inference_socket")


@dataclass(frozen=True)
class Config:
    """`sources` says of each key where its value came from, with keys like `n_ctx` and `models.tiny.top_k`;
    the names in `models` are in lower case."""

    socket: Path
    model_dirs: tuple[Path, ...] = ()
    pull_dir: Path = SYSTEM_MODELS
    usual_dirs: tuple[Path, ...] = ()  # searched after model_dirs
    state_dir: Path = SYSTEM_MODELS.parent
    default_model: str = "smollm2-135m-instruct"
    device: str = "auto"
    isa: str = "auto"
    n_threads: int = 0
    n_ctx: int = 0
    kv_type: str = "f16"
    keep_alive: str | float = "5m"
    n_batch: int = 512
    cache_bytes: int = 0
    state_bytes: int = 0
    inference_socket: Path | None = None
    operator_group: str = ""
    max_queue: int = 1024
    max_queue_of_user: int = 512
    deadline_s: int = 0
    pause_s: int = 10
    stall_s: int = 600
    aliases: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    listen_fd: int | None = None  # the socket that systemd listens on for us
    notify_socket: str = ""  # where systemd wants to be told how we are
    watchdog_s: float = 0.0  # and that at least so often; 0: it need not be
    has_journal: bool = False  # stderr goes to systemd's journal
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def search_path(self) -> tuple[Path, ...]:
        """Folders of models, in order of precedence."""
        return (*self.model_dirs, *self.usual_dirs)

    def of_model(self, names: Iterable[str]) -> dict[str, Any]:
        """The settings of the model that has these names: what its sections [models."name"] give, and no more."""
        wanted = {name.lower() for name in names}
        return {k: v for name, section in self.models.items() if name in wanted for k, v in section.items()}


def load(**flags: object) -> Config:
    """The settings of this user's daemon; a flag of None was not given. ModelError("bad_config"): file, key, why."""
    home = _home()
    config_home = _base(home, "XDG_CONFIG_HOME", ".config")
    pull_dir = _base(home, "XDG_DATA_HOME", ".local/share") / "luce" / "models"
    state_dir = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]  # of a service of systemd
    given = _Given({"socket": user_socket(), "pull_dir": pull_dir})
    given.add(DEFAULT, {"models": MODELS})
    for path in (SYSTEM_FILE, config_home / "luce" / "luced.toml"):
        given.add(str(path), _read_file(path, home))
    given.add_environment(home)
    given.add(COMMAND_LINE, {name: value for name, value in flags.items() if value is not None})
    config = Config(
        listen_fd=_take_listen_fd(),
        has_journal=bool(os.environ.get("JOURNAL_STREAM")),
        notify_socket=os.environ.pop("NOTIFY_SOCKET", ""),
        state_dir=Path(state_dir or _base(home, "XDG_STATE_HOME", ".local/state") / "luce"),
        watchdog_s=int(os.environ.pop("WATCHDOG_USEC", "0")) / 1e6,
        aliases=MappingProxyType(given.aliases),
        models=MappingProxyType({name: MappingProxyType(section) for name, section in given.models.items()}),
        sources=MappingProxyType(given.sources),
        **given.values,
    )
    return replace(config, usual_dirs=tuple(dict.fromkeys((config.pull_dir, SYSTEM_MODELS, _hub_cache(home)))))


def rows(config: Config) -> list[dict[str, Any]]:
    """Each value, where it came from and what it is, for `luced config`."""
    docs = {f.name: f.doc for f in SETTINGS} | {
        "socket": "Where to listen; $LUCE_SOCKET sets it for clients too.",
        "state_dir": "Where reports of requests that the engine dies of are put, in reports/.",
        "usual_dirs": "Searched after model_dirs; the last is the Hugging Face cache.",
    }
    values = {f.name: getattr(config, f.name) for f in fields(config) if f.name in docs}
    found = [(key, value, docs[key]) for key, value in values.items()]
    found += [(f"aliases.{name}", target, "Another name of that model.") for name, target in config.aliases.items()]
    model_docs = {f.name: f.doc for f in MODEL_SETTINGS}
    for name, section in config.models.items():
        found += [(f"models.{name}.{key}", value, model_docs[key]) for key, value in section.items()]
    return [
        {"key": key, "value": _plain(value), "source": config.sources.get(key, DEFAULT), "doc": doc}
        for key, value, doc in found
    ]


class _Given:
    """What the sources have given so far; the last one counts."""

    def __init__(self, defaults: dict[str, Any]) -> None:
        self.values = defaults
        self.aliases: dict[str, str] = {}
        self.models: dict[str, dict[str, Any]] = {}
        self.sources: dict[str, str] = {}

    def add(self, source: str, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if key == "aliases":
                for name, target in value.items():
                    self._set(self.aliases, name, target, f"aliases.{name}", source)
            elif key == "models":
                for name, section in value.items():
                    for setting, number in section.items():
                        section_values = self.models.setdefault(name.lower(), {})
                        self._set(section_values, setting, number, f"models.{name.lower()}.{setting}", source)
            else:
                self._set(self.values, key, value, key, source)

    def _set(self, values: dict[str, Any], name: str, value: Any, key: str, source: str) -> None:
        values[name], self.sources[key] = value, source

    def add_environment(self, home: Path) -> None:
        """LUCE_ and the name of a setting in capitals; folders of LUCE_MODEL_DIRS are separated by colons."""
        if os.environ.get("LUCE_SOCKET"):
            self.sources["socket"] = "$LUCE_SOCKET"
        by_variable = {f"LUCE_{f.name.upper()}": f for f in SETTINGS}
        known = ("LUCE_SOCKET", *by_variable)
        for variable, text in os.environ.items():
            if not variable.startswith("LUCE_") or not text or variable == "LUCE_SOCKET":
                continue
            if setting := by_variable.get(variable):
                value = _read_settings(f"${variable}", (setting,), {setting.name: _parse(setting, text)})
                self.add(f"${variable}", _with_paths(f"${variable}", value, home))
            elif near := difflib.get_close_matches(variable, known, 1, 0.87):  # others may have LUCE_ names too
                raise _bad(f"${variable} is no setting; did you mean ${near[0]}?", variable=variable)


def _parse(setting: Field, text: str) -> Any:
    if setting.type == "list[str]":
        return [part for part in text.split(":") if part]
    try:
        return int(text) if setting.type == "int" else text
    except ValueError:
        return text  # of the wrong type, which the reader says


def _read_file(path: Path, home: Path) -> dict[str, Any]:
    """Checked values of a settings file; none where there is no such file."""
    try:
        found = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", file=str(path)) from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError; numbers or nesting beyond what Python reads
        raise _bad(f"{path} is no TOML: {error}", file=str(path)) from None
    tables = {name: _table(path, name, found.pop(name, {})) for name in TABLES}
    values = _with_paths(str(path), _read_settings(str(path), SETTINGS, found), home)
    for alias, target in tables["aliases"].items():
        if type(target) is not str or not target:
            raise _bad(f"{path}: aliases.{alias} must be the name of a model", file=str(path), key=f"aliases.{alias}")
    for name, section in tables["models"].items():
        section = _table(path, f'models."{name}"', section)
        tables["models"][name] = _read_settings(f'{path}: models."{name}"', MODEL_SETTINGS, section)
    return values | tables


def _read_settings(where: str, known: tuple[Field, ...], found: Mapping[str, Any]) -> dict[str, Any]:
    """The given values, of the right type and range."""
    by_name = {f.name: f for f in known}
    values: dict[str, Any] = {}
    for key, value in found.items():
        if key not in by_name:
            also = TABLES if known is SETTINGS else ()
            near = difflib.get_close_matches(key, [*by_name, *also], 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join([*by_name, *also])}"
            raise _bad(f"{where}: {key} is no setting; {hint}", where=where, key=key)
        try:
            values |= read_fields(where, (by_name[key],), {key: value}, ())
        except LuceError as error:
            raise _bad(error.message, where=where, key=key) from None
    return values


def _with_paths(where: str, values: dict[str, Any], home: Path) -> dict[str, Any]:
    """The same with folders as absolute paths; `~/` is the home folder."""

    def path(key: str, text: str) -> Path:
        found = home / text[2:] if text.startswith("~/") else Path(text)
        if not found.is_absolute():
            raise _bad(f"{where}: {key} must be an absolute path or begin with ~/, not {text!r}", where=where, key=key)
        return found

    for key in PATHS:
        if key in values:
            given = values[key]
            values[key] = path(key, given) if type(given) is str else tuple(path(key, text) for text in given)
    return values


def _table(path: Path, name: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise _bad(f"{path}: {name} must be a table, [{name}]", file=str(path), key=name)
    return value


def _bad(message: str, **facts: str) -> ModelError:
    return ModelError("bad_config", message, **facts)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without an entry in passwd
        return Path("/")


def _base(home: Path, variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or home / usual)


def _hub_cache(home: Path) -> Path:
    """Where huggingface-hub keeps its cache."""
    usual = Path(os.environ.get("HF_HOME") or _base(home, "XDG_CACHE_HOME", ".cache") / "huggingface") / "hub"
    return Path(os.environ.get("HF_HUB_CACHE") or usual)


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _take_listen_fd() -> int | None:
    """Takes what systemd says out of the environment: it is for this process, not for the engine."""
    pid, n_fds = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    return FIRST_INHERITED_FD if pid == str(os.getpid()) and n_fds == "1" else None
