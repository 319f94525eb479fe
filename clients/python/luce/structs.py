"""The maps with named fields that requests, results and notifications are made of."""

from __future__ import annotations

from .fields import Field, Type

TYPES = (
    Type("Message", "One message of a conversation.", (
        Field("role", "str", "Who says it.", choices=("system", "user", "assistant", "tool")),
        Field("content", "str", "The text."),
    )),
    Type("Choice", "One answer.", (
        Field("index", "int", "0 up to n - 1."),
        Field("text", "str", "The whole text; never half a code point, and nothing of a stop string."),
        Field("finish", "str", "stop: the model or a stop string ended it. length: max_tokens or the context did.",
              choices=("stop", "length")),
        Field("tokens", "list[int]", "The token ids that the text came from."),
        Field("logprobs", "list[Logprob]", "One for each token, if asked for.", None),
    )),
    Type("Logprob", "How likely a token was, before temperature and the other sampling parameters.", (
        Field("id", "int", "The token."),
        Field("bytes", "bytes", "What it adds to the text; may be part of a code point."),
        Field("logprob", "float", "Natural logarithm of its probability."),
        Field("top", "list[Logprob]", "The k most likely tokens here, best first; these have no `top`.", None),
    )),
    Type("Usage", "Counts of tokens, over all answers of the request.", (
        Field("prompt", "int", "Of the prompt."),
        Field("cached", "int", "Of the prompt, those that were in the cache."),
        Field("generated", "int", "Of the answers."),
        Field("drafted", "int", "Proposed by speculation."),
        Field("accepted", "int", "Of the drafted, those that the model confirmed."),
    )),
    Type("Timings", "Seconds.", (
        Field("queue_s", "float", "Waiting for other requests."),
        Field("load_s", "float", "Waiting for the model."),
        Field("prefill_s", "float", "Reading the prompt."),
        Field("decode_s", "float", "From the first generated token to the last."),
        Field("total_s", "float", "From the arrival of the request to its end."),
    )),
    Type("Limits", "What a connection may do; more is the error too_large or busy.", (
        Field("frame_bytes", "int", "Bytes of one frame."),
        Field("nesting", "int", "Arrays and maps inside each other, the frame's own array included."),
        Field("items", "int", "Items in all the arrays and maps of one frame; a key and its value are two."),
        Field("requests", "int", "Requests that run at once."),
    )),
    Type("Model", "A model file that can be named.", (
        Field("name", "str", "What to say as `model`."),
        Field("path", "str", "Of its (first) file."),
        Field("bytes", "int", "Size of its files."),
        Field("architecture", "str", "As the file says it."),
        Field("quantisation", "str", "The type of most of its weights."),
        Field("parameters", "int", "Number of weights."),
        Field("context", "int", "Most tokens that it was trained for."),
        Field("default", "bool", "Whether an empty `model` means this one."),
        Field("state", "str", "Whether it is in memory.", choices=("here", "loading", "loaded")),
        Field("problem", "str", "Why it cannot be used; empty: it can."),
        Field("aliases", "list[str]", "Other names that are its own."),
        Field("settings", "map", "What the daemon's configuration sets for this model, by name; empty: nothing."),
    )),
    Type("Socket", "Where the daemon listens.", (
        Field("path", "str", "Of the socket."),
        Field("mode", "str", "Its permissions, octal."),
        Field("group", "str", "Who may connect, beside the owner; empty: nobody."),
        Field("problem", "str", "What is not as it should be; empty: nothing."),
    )),
    Type("Engine", "The process that owns the device.", (
        Field("state", "str", "What it is doing.", choices=("starting", "ready", "stopped", "failed")),
        Field("pid", "int", "Its process.", None),
        Field("device", "str", "What it computes on.", None),
        Field("isa", "str", "The instruction set that its kernels use.", None),
        Field("threads", "int", "Of its kernels.", None),
        Field("restarts", "int", "Times that it was started again."),
        Field("last_failure", "str", "How it ended the last time; empty: it has not."),
    )),
    Type("Loaded", "A model in memory.", (
        Field("name", "str", "Of the model."),
        Field("memory", "map[str,int]", "Bytes by owner: weights, kv, ..."),
        Field("context", "int", "Most tokens of a request, its answer included."),
        Field("since", "float", "When it was loaded, in Unix time."),
    )),
    Type("Running", "A request that has not ended.", (
        Field("id", "int", "On its connection."),
        Field("client", "str", "As its hello said."),
        Field("model", "str", "Who answers."),
        Field("phase", "str", "How far it is.", choices=("load", "queue", "prefill", "decode")),
        Field("prompt", "int", "Tokens of the prompt."),
        Field("generated", "int", "Tokens of the answers so far."),
        Field("age_s", "float", "Seconds since it came."),
    )),
)  # fmt: skip
