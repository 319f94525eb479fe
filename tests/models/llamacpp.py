"""llama.cpp as an authority: the server that xllamacpp wraps, set to F32 KV and plain attention."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp


class LlamaCpp:
    """A model in llama.cpp, in this process. On one thread: several spin, and on a busy machine that takes minutes."""

    def __init__(self, path: Path, n_ctx: int = 512) -> None:
        p = xllamacpp.CommonParams()
        p.model.path = str(path)
        p.n_ctx = n_ctx
        p.n_parallel = 1
        p.cpuparams.n_threads = 1
        p.warmup = False
        p.verbosity = -1
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._server = xllamacpp.Server(p)

    def tokenize(self, text: str) -> list[int]:
        """Token ids, with the model's own beginning; names of control tokens are read as these."""
        body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
        request = urllib.request.Request(
            f"{self._server.listening_address}/tokenize", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            tokens: list[int] = json.load(response)["tokens"]
        return tokens

    def greedy(self, prompt: list[int], n_tokens: int) -> list[int]:
        """At most n_tokens ids; fewer if the model ends its answer."""
        tokens: list[int] = self._complete(prompt, n_tokens)["__verbose"]["tokens"]
        return tokens

    def logprobs(self, prompt: list[int], n_vocab: int) -> dict[int, float]:
        """Of every token that may come next. The likeliest must be whole UTF-8, or nothing is reported."""
        (first, *_) = self._complete(prompt, 1, n_vocab)["choices"][0]["logprobs"]["content"]
        return {top["id"]: top["logprob"] for top in first["top_logprobs"]}

    def _complete(self, prompt: list[int], n_tokens: int, n_probs: int = 0) -> dict[str, Any]:
        request = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "verbose": True, "return_tokens": True}
        if n_probs:
            request["logprobs"] = n_probs
        reply: dict[str, Any] = self._server.handle_completions(request)
        assert "choices" in reply, reply
        return reply
