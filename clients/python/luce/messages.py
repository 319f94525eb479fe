"""The protocol as data: every method, its parameters, its result, its notifications and their types, in one table.

The daemon checks requests against it, the clients are typed by it, and docs/protocol.md and the `api` method are
generated from it. Shared by daemon and clients; depends on nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .fields import Field, Method, Notification, read_fields
from .structs import TYPES

ROLES = ("inference", "user", "operator")  # each may do what those before it may, and more
TOPICS = ("models", "requests", "degradations")  # of subscribe
LEVEL = 1  # of the protocol; a daemon serves levels COMPATIBLE..LEVEL
COMPATIBLE = 1
MAX_FRAME_BYTES = 16 << 20
MAX_NESTING = 64
MAX_ITEMS = 1 << 21  # in all the arrays and maps of a frame
MAX_NAME_CHARS = 1024
MAX_MESSAGES = 4096
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
KV_TYPE = Field("kv_type", "str[/str]", "Type of the KV cache; two are of keys and of values.", "f16", choices=KV_TYPES)
MODEL = Field("model", "str", "Name of the model; empty: the default model.", "", high=MAX_NAME_CHARS)

DEADLINE = Field("deadline_s", "float", "Seconds from its arrival; then it ends with `deadline`.", None, 0.001, 1e9)
KEEP_ALIVE = Field(
    "keep_alive",
    "duration",
    "How long the model stays in memory after its last request; negative: for ever, 0: not at all. The last one that is"
    " said counts. Absent: as it was, at first what the daemon's configuration says.",
    None,
)

SAMPLING = (
    Field("temperature", "float", "0 is greedy.", 0.8, 0, 100),
    Field("top_k", "int", "Keep the k most likely tokens; 0: all.", 40, 0, 1 << 30),
    Field("top_p", "float", "Keep the most likely tokens that make up this probability.", 0.95, 0, 1),
    Field("min_p", "float", "Drop tokens less likely than this share of the most likely one.", 0.05, 0, 1),
    Field("typical_p", "float", "Keep the tokens of typical information that make up this probability.", 1.0, 0, 1),
    Field("repetition_penalty", "float", "Weakens tokens of prompt and answer; 1: off.", 1.0, 0.01, 100),
    Field("frequency_penalty", "float", "Subtracted for each time the answer has the token.", 0.0, -100, 100),
    Field("presence_penalty", "float", "Subtracted once the answer has the token.", 0.0, -100, 100),
    Field("logit_bias", "map[int,float]", "Added to the logits of tokens, by id (on the wire a string).", {}, 0, 1024),
    Field("seed", "int", "Same seed, same answer. Absent: the daemon draws one and tells it.", None, 0, (1 << 64) - 1),
    Field("logprobs", "int", "Report the log-probability of each token and of the k best.", None, 0, 32),
    Field("max_tokens", "int", "Most tokens to generate; 0 only fills the cache. Absent: what fits.", None, 0),
    Field("stop", "list[str]", "End the answer before one of these: text, or names of control tokens.", [], 0, 32),
    Field("stop_ids", "list[int]", "End the answer at one of these token ids.", [], 0, 32),
    Field("ignore_eos", "bool", "Go on after the model's own end tokens.", False),
    Field("n", "int", "Number of answers.", 1, 1, 64),
    Field("stream", "bool", "Send `text` notifications as the answer grows.", True),
    Field("priority", "str", "Class of the request.", "interactive", choices=("interactive", "agent", "batch")),
    DEADLINE,
    KEEP_ALIVE,
)  # fmt: skip

INFILL_DEFAULTS = {"temperature": 0.0, "max_tokens": 128}  # an editor wants something short, and the same again

ANSWER = (
    Field("model", "str", "The model that answered."),
    Field("choices", "list[Choice]", "The answers, n of them."),
    Field("usage", "Usage", "Counts of tokens."),
    Field("timings", "Timings", "Where the time went."),
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
            Field("phase", "str", "What is waited for.", choices=("load", "queue", "prefill", "restart")),
            Field("done", "int", "Bytes (load), requests ahead (queue), tokens (prefill) or engines lost (restart)."),
            Field("total", "int", "Bytes or tokens in all; 0 for queue and restart."),
            Field("cached", "int", "Prompt tokens that came from the cache.", 0),
        ),
    ),
    Notification(
        "event",
        "Something that a subscription is about. The first one has no topic and says that the subscription holds.",
        (
            Field("id", "int", "The subscription's request."),
            Field("topic", "str", "What it is about; empty: the subscription.", choices=("", *TOPICS)),
            Field("event", "str", "What happened: [5](#5-requests-and-streams) lists them."),
            Field("at", "float", "When, in Unix time."),
            Field("facts", "map", "Names and numbers."),
        ),
    ),
)

METHODS = (
    Method(
        "hello",
        "Opens the conversation; must be the first call.",
        (
            Field("level", "int", "Highest protocol level that the client speaks.", LEVEL, 1),
            Field("client", "str", "Name and version of the client, for `status`.", "", high=100),
            Field("tenant", "str", "Narrows its cache and privacy to this name, within its uid.", "", high=100),
        ),
        (
            Field("level", "int", "Level that both speak."),
            Field("version", "str", "Of the daemon."),
            Field("instance", "str", "Id of this run of the daemon."),
            Field("tenant", "str", "Whose cache and requests this connection may see."),
            Field("role", "str", "What the caller may do.", choices=ROLES),
            Field("limits", "Limits", "What this connection may do."),
            Field("methods", "list[str]", "Methods of this daemon."),
        ),
        role="inference",
    ),
    Method(
        "chat",
        "Answers a conversation with the model's own chat template.",
        (
            MODEL,
            Field("messages", "list[Message]", "The conversation so far.", high=MAX_MESSAGES),
            *SAMPLING,
        ),
        ANSWER,
        ("text", "progress"),
        role="inference",
        computes=True,
    ),
    Method(
        "complete",
        "Continues a prompt as it is.",
        (
            MODEL,
            Field("prompt", "str|list[int]", "Token ids; or text, read as tokenize does with special and bos."),
            *SAMPLING,
        ),
        ANSWER,
        ("text", "progress"),
        role="inference",
        computes=True,
    ),
    Method(
        "infill",
        "What belongs between two texts. Models with tokens for it are asked with those, others through their chat"
        " template, which `degraded` then tells. With max_tokens 0 the prompt is only put into the cache.",
        (
            MODEL,
            Field("prefix", "str", "The text before the cursor."),
            Field("suffix", "str", "The text after it.", ""),
            Field("extra", "list[File]", "Other files that matter. Best first those that change least.", [], 0, 256),
            Field("filename", "str", "Of the text itself.", "", high=MAX_NAME_CHARS),
            *(replace(f, default=INFILL_DEFAULTS.get(f.name, f.default)) for f in SAMPLING),
        ),
        ANSWER,
        ("text", "progress"),
        role="inference",
        computes=True,
    ),
    Method(
        "embed",
        "A vector for each input, made of the model's hidden states.",
        (
            MODEL,
            Field("inputs", "list[str|list[int]]", "Texts, read with bos (see tokenize), or ids.", low=1, high=512),
            Field("pooling", "str", "What is made of the tokens' states: their mean, the last one, or the first (cls)."
                  " Absent: what the model was trained for, or mean.", None, choices=("mean", "last", "cls")),
            Field("normalise", "bool", "Scale each vector to the length 1.", True),
            Field("dimensions", "int", "Keep this many values of each vector. Absent: all.", None, 1),
            Field("priority", "str", "Class of the request.", "interactive", choices=("interactive", "agent", "batch")),
            DEADLINE,
            KEEP_ALIVE,
        ),
        (
            Field("model", "str", "The model that made them."),
            Field("embeddings", "list[list[float]]", "A vector for each input, in order."),
            Field("pooling", "str", "What was made of the tokens' states."),
            Field("usage", "Usage", "Counts of tokens."),
            Field("timings", "Timings", "Where the time went."),
        ),
        ("progress",),
        role="inference",
        computes=True,
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
        role="inference",
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
        role="inference",
    ),
    Method(
        "template",
        "The prompt that `chat` would send to the model.",
        (MODEL, Field("messages", "list[Message]", "As for chat.", high=MAX_MESSAGES)),
        (Field("prompt", "str", "The text."), Field("tokens", "list[int]", "Its ids.")),
        role="inference",
    ),
    Method(
        "models",
        "The models that can be named.",
        (),
        (Field("models", "list[Model]", "All of them."),),
        role="inference",
    ),
    Method(
        "load",
        "Brings a model into memory, or changes how long it stays. Others that nobody uses make room where they must.",
        (
            MODEL,
            Field("n_ctx", "int", "Tokens of context. 0: what it was trained for. Absent: as configured.", None, 0),
            replace(KV_TYPE, doc=f"{KV_TYPE.doc} Absent: as configured.", default=None),
            KEEP_ALIVE,
        ),
        (Field("model", "Loaded", "What is in memory now."), Field("load_s", "float", "Seconds that it took.")),
        ("progress",),
        role="operator",
    ),
    Method(
        "unload",
        "Takes a model out of memory. While requests use it this is the error `busy`, unless it is forced.",
        (MODEL, Field("force", "bool", "End the requests that use it, with the error `cancelled`.", False)),
        (Field("unloaded", "bool", "False: it was not in memory."),),
        role="operator",
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
            Field("socket", "Socket", "Where it listens."),
            Field("inference_socket", "Socket", "Where it listens for inference alone.", None),
            Field("engine", "Engine", "Its engine."),
            Field("models", "list[Loaded]", "The models in memory."),
            Field("requests", "list[Running]", "The requests that the caller may see."),
        ),
    ),
    Method(
        "subscribe",
        "Tells what happens, until it is cancelled: it has no result. A user hears of its own requests, an operator of "
        "everybody's. Who does not read what is sent gets the error `too_slow`.",
        (Field("topics", "list[str]", "What to hear of.", list(TOPICS), 1, len(TOPICS), TOPICS),),
        (),
        ("event",),
    ),
    Method(
        "cancel",
        "Ends a running request of this connection; its own response is then the error `cancelled`.",
        (Field("id", "int", "The request's id."),),
        (Field("cancelled", "bool", "False: it had ended already."),),
        role="inference",
    ),
    Method(
        "api",
        "This table, as data.",
        (),
        (Field("api", "map", "level, compatible, limits, methods, notifications, types, errors."),),
    ),
)  # fmt: skip

BY_NAME = {method.name: method for method in METHODS}


def check(method: Method, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters, complete with defaults. LuceError: unknown, missing, or of the wrong type or range."""
    return read_fields(method.name, method.params, params, TYPES)
