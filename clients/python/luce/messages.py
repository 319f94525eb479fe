"""The protocol as data: every method, its parameters, its result and its notifications, in one table.

The daemon checks requests against it, the clients are typed by it, and docs/protocol.md and the `api` method are
generated from it. Shared by daemon and clients; depends on nothing but the standard library.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from .errors import LuceError

LEVEL = 1  # of the protocol; a daemon serves levels COMPATIBLE..LEVEL
COMPATIBLE = 1
MAX_FRAME_BYTES = 16 << 20
MAX_NESTING = 64
MAX_ITEMS = 1 << 21  # in all the arrays and maps of a frame

REQUIRED = object()


@dataclass(frozen=True)
class Field:
    """One parameter or result field. `type` is one of TYPES; a default of None means absent."""

    name: str
    type: str
    doc: str
    default: Any = REQUIRED
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Notification:
    """Something the daemon says of a running request; `id` is the request's."""

    name: str
    doc: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Method:
    name: str
    doc: str
    params: tuple[Field, ...] = ()
    result: tuple[Field, ...] = ()
    notifications: tuple[str, ...] = ()
    role: str = "user"  # or "operator"


MODEL = Field("model", "str", "Name of the model; empty: the default model.", "")

SAMPLING = (
    Field("temperature", "float", "0 is greedy.", 0.8, 0, 100),
    Field("top_k", "int", "Keep the k most likely tokens; 0: all.", 40, 0, 1 << 30),
    Field("top_p", "float", "Keep the most likely tokens that make up this probability.", 0.95, 0, 1),
    Field("min_p", "float", "Drop tokens less likely than this share of the most likely one.", 0.05, 0, 1),
    Field("typical_p", "float", "Keep the tokens of typical information that make up this probability.", 1.0, 0, 1),
    Field("repetition_penalty", "float", "Weakens tokens of prompt and answer; 1: off.", 1.0, 0.01, 100),
    Field("frequency_penalty", "float", "Subtracted for each time the answer has the token.", 0.0, -100, 100),
    Field("presence_penalty", "float", "Subtracted once the answer has the token.", 0.0, -100, 100),
    Field("logit_bias", "map[int,float]", "Token id to a number that is added to its logit.", {}),
    Field("seed", "int", "Same seed, same answer. Absent: the daemon draws one and tells it.", None, 0, (1 << 64) - 1),
    Field("logprobs", "int", "Report the log-probability of each token and of the k best.", None, 0, 32),
    Field("max_tokens", "int", "Most tokens to generate; 0 only fills the cache. Absent: what fits.", None, 0),
    Field("stop", "list[str]", "End the answer before the first of these strings.", []),
    Field("stop_ids", "list[int]", "End the answer at one of these token ids.", []),
    Field("ignore_eos", "bool", "Go on after the model's own end tokens.", False),
    Field("n", "int", "Number of answers.", 1, 1, 64),
    Field("stream", "bool", "Send `text` notifications as the answer grows.", True),
    Field("priority", "str", "Class of the request.", "interactive", choices=("interactive", "agent", "batch")),
)  # fmt: skip

USAGE = Field("usage", "map", "Counts of tokens: prompt, cached, generated, drafted, accepted.")
TIMINGS = Field("timings", "map", "Seconds: queue_s, load_s, prefill_s, decode_s, total_s.")
ANSWER = (
    Field("model", "str", "The model that answered."),
    Field("choices", "list[Choice]", "One for each answer: index, text, finish, tokens (ids), logprobs if asked for."),
    USAGE,
    TIMINGS,
    Field("seed", "int", "The seed that was used."),
    Field("degraded", "list[str]", "What was not done as asked, in words; empty when nothing was."),
)  # fmt: skip

NOTIFICATIONS = (
    Notification(
        "text",
        "A piece of an answer. Pieces of one choice joined are its text; no piece holds half a code point.",
        (
            Field("id", "int", "The request."),
            Field("choice", "int", "Index of the answer."),
            Field("text", "str", "The piece."),
            Field("tokens", "list[int]", "The token ids that it came from."),
            Field("logprobs", "list[Logprob]", "One for each token, if asked for.", None),
        ),
    ),
    Notification(
        "progress",
        "What the request is waiting for, in real numbers.",
        (
            Field("id", "int", "The request."),
            Field("phase", "str", "load | queue | prefill.", choices=("load", "queue", "prefill")),
            Field("done", "int", "Bytes (load), requests ahead (queue) or tokens (prefill)."),
            Field("total", "int", "Bytes or tokens in all; 0 for queue."),
            Field("cached", "int", "Prompt tokens that came from the cache.", 0),
        ),
    ),
)

METHODS = (
    Method(
        "hello",
        "Opens the conversation; must be the first call.",
        (
            Field("level", "int", "Highest protocol level that the client speaks.", LEVEL, 1),
            Field("client", "str", "Name and version of the client, for `status`.", ""),
            Field("tenant", "str", "Narrows the caller's cache and privacy to this name, within its uid.", ""),
        ),
        (
            Field("level", "int", "Level that both speak."),
            Field("version", "str", "Of the daemon."),
            Field("instance", "str", "Id of this run of the daemon."),
            Field("tenant", "str", "Whose cache and requests this connection may see."),
            Field("role", "str", "user | operator."),
            Field("limits", "map", "frame_bytes, nesting, requests (at once on a connection)."),
            Field("methods", "list[str]", "Methods of this daemon."),
        ),
    ),
    Method(
        "chat",
        "Answers a conversation with the model's own chat template.",
        (
            MODEL,
            Field("messages", "list[Message]", "Maps of role (system | user | assistant | tool) and content (text)."),
            *SAMPLING,
        ),
        ANSWER,
        ("text", "progress"),
    ),
    Method(
        "complete",
        "Continues a prompt as it is.",
        (MODEL, Field("prompt", "str|list[int]", "Text, or token ids."), *SAMPLING),
        ANSWER,
        ("text", "progress"),
    ),
    Method(
        "tokenize",
        "Text to token ids.",
        (
            MODEL,
            Field("text", "str", "The text."),
            Field("special", "bool", "Read the names of control tokens as those tokens.", False),
            Field("bos", "bool", "Begin as the model wants prompts to begin.", False),
            Field("pieces", "bool", "Also tell each token's bytes.", False),
        ),
        (
            Field("tokens", "list[int]", "The ids."),
            Field("pieces", "list[bytes]", "Bytes of each token, if asked for.", None),
        ),
    ),
    Method(
        "detokenize",
        "Token ids to text; bytes that are no UTF-8 become U+FFFD.",
        (
            MODEL,
            Field("tokens", "list[int]", "The ids."),
            Field("special", "bool", "Show control tokens by name.", True),
        ),
        (Field("text", "str", "The text."),),
    ),
    Method(
        "template",
        "The prompt that `chat` would send to the model.",
        (MODEL, Field("messages", "list[Message]", "As for chat.")),
        (Field("prompt", "str", "The text."), Field("tokens", "list[int]", "Its ids.")),
    ),
    Method(
        "models",
        "The models that can be named.",
        (),
        (
            Field(
                "models",
                "list[map]",
                "name, path, bytes, architecture, parameters, quantisation, context, default, "
                "state (here | loading | loaded).",
            ),
        ),
    ),
    Method(
        "status",
        "What the daemon is doing. A user sees its own requests, an operator everybody's metadata; nobody a prompt.",
        (),
        (
            Field("version", "str", "Of the daemon."),
            Field("instance", "str", "Id of this run."),
            Field("pid", "int", "Of the daemon."),
            Field("uptime_s", "float", "Since its start."),
            Field("socket", "map", "path, mode, group, and what is not as it should be."),
            Field("engine", "map", "state, pid, device, isa, threads, restarts."),
            Field("models", "list[map]", "Loaded ones: name, memory by owner (bytes), context, since."),
            Field("requests", "list[map]", "id, client, model, phase, prompt, generated (tokens), age_s."),
        ),
    ),
    Method(
        "cancel",
        "Ends a running request of this connection; its own response is then the error `cancelled`.",
        (Field("id", "int", "The request's id."),),
        (Field("cancelled", "bool", "False: it had ended already."),),
    ),
    Method(
        "api",
        "This table, as data.",
        (),
        (Field("api", "map", "level, compatible, methods, notifications, errors."),),
    ),
)  # fmt: skip

BY_NAME = {method.name: method for method in METHODS}


def check(method: Method, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters, complete with defaults. LuceError: unknown, missing, or of the wrong type or range."""
    known = {f.name for f in method.params}
    for name in params:
        if name not in known:
            close = difflib.get_close_matches(str(name), sorted(known), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise LuceError(
                "unknown_parameter", f"{method.name} has no parameter {name!r}{hint}", {"parameter": str(name)}
            )
    values = {}
    for f in method.params:
        if f.name in params and params[f.name] is not None:
            values[f.name] = _checked(method, f, params[f.name])
        elif f.required:
            raise LuceError("missing_parameter", f"{method.name} needs the parameter {f.name!r}", {"parameter": f.name})
        else:
            values[f.name] = f.default
    return values


def _checked(method: Method, f: Field, value: Any) -> Any:
    def bad(why: str) -> LuceError:
        return LuceError("bad_parameter", f"{method.name}: {f.name} {why}", {"parameter": f.name})

    if f.type == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not _TYPES[f.type](value):
        raise bad(f"must be {f.type}, not {type(value).__name__}")
    if isinstance(value, float) and value != value:
        raise bad("must be a number, not NaN")
    if f.low is not None and value < f.low:
        raise bad(f"must be at least {f.low}, not {value}")
    if f.high is not None and value > f.high:
        raise bad(f"must be at most {f.high}, not {value}")
    if f.choices and value not in f.choices:
        raise bad(f"must be one of {', '.join(f.choices)}, not {value!r}")
    return value


def _is_int(v: object) -> bool:
    return isinstance(v, int) and not isinstance(v, bool)


def _is_list_of(check_one: Any) -> Any:
    return lambda v: isinstance(v, list) and all(check_one(x) for x in v)


def _is_str(v: object) -> bool:
    return isinstance(v, str)


_TYPES: dict[str, Any] = {
    "str": _is_str,
    "int": _is_int,
    "float": lambda v: isinstance(v, float),
    "bool": lambda v: isinstance(v, bool),
    "bytes": lambda v: isinstance(v, bytes),
    "map": lambda v: isinstance(v, dict),
    "list[str]": _is_list_of(_is_str),
    "list[int]": _is_list_of(_is_int),
    "str|list[int]": lambda v: _is_str(v) or _is_list_of(_is_int)(v),
    "map[int,float]": lambda v: (
        isinstance(v, dict)
        and all(_is_int(k) and isinstance(x, (int, float)) and not isinstance(x, bool) for k, x in v.items())
    ),
    "list[Message]": _is_list_of(lambda m: isinstance(m, dict)),
}
