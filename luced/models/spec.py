"""What a model's metadata says, checked: sizes, rope, and which cache group each layer keeps its keys in."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from luced.errors import ModelError
from luced.gguf.metadata import Metadata

POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # GGUF's pooling_type


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: every kind of scaling ends in a table of frequencies and a magnitude."""

    n_rot: int
    base: float
    factor: float = 1.0  # positions are divided by it
    yarn: bool = False
    n_ctx_original: int = 0
    attention_factor: float = 1.0

    @property
    def magnitude(self) -> float:
        """Multiplies cosine and sine; YaRN (arXiv 2309.00071) grows it with the factor."""
        return self.attention_factor * (1 + 0.1 * math.log(self.factor) if self.yarn and self.factor > 1 else 1)

    def frequencies(self, divisors: list[float] | None = None) -> list[float]:
        """n_rot / 2 angles per position; `divisors` is the file's rope_freqs (llama 3)."""
        plain = [self.base ** (-2 * i / self.n_rot) for i in range(self.n_rot // 2)]
        if divisors is not None:
            plain = [f / d for f, d in zip(plain, divisors, strict=True)]
        if not self.yarn:
            return [f / self.factor for f in plain]
        low = max(0, math.floor(self._turns_at(32)))
        high = min(self.n_rot - 1, math.ceil(self._turns_at(1)))
        keep = [1 - min(1, max(0, (i - low) / max(0.001, high - low))) for i in range(len(plain))]
        return [f * k + f / self.factor * (1 - k) for f, k in zip(plain, keep, strict=True)]

    def _turns_at(self, turns: float) -> float:
        """The pair that makes this many turns within the original context."""
        return self.n_rot * math.log(self.n_ctx_original / (turns * 2 * math.pi)) / (2 * math.log(self.base))


@dataclass(frozen=True)
class Group:
    """Layers whose keys and values live and die together. window 0: they see the whole context."""

    name: str
    window: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Spec:
    architecture: str
    n_layer: int
    n_ctx: int  # that the model was trained for
    n_embd: int
    n_ff: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    head_dim: int  # of queries and keys
    head_dim_v: int
    eps: float
    attention_scale: float
    rope: Rope
    groups: tuple[Group, ...]
    rope_window: Rope | None = None  # of the windowed layers, where it differs
    final_softcap: float = 0.0
    pooling: str = "mean"  # of hidden states into an embedding, where the caller does not say

    def with_windows(self, window: int, windowed: list[bool]) -> Spec:
        """The layers parted into a full and a windowed group."""
        layers = range(self.n_layer)
        full = Group("full", 0, tuple(i for i in layers if not windowed[i]))
        near = Group("window", window, tuple(i for i in layers if windowed[i]))
        return replace(self, groups=tuple(g for g in (full, near) if g.layers))


def read_spec(m: Metadata, n_vocab: int) -> Spec:
    """The keys that all architectures share. ModelError: missing, of a wrong type, or a contradiction."""
    arch = m.str("general.architecture")
    n_embd = _positive(m, f"{arch}.embedding_length")
    n_head = _positive(m, f"{arch}.attention.head_count")
    n_head_kv = m.int(f"{arch}.attention.head_count_kv", n_head)
    head_dim = m.int(f"{arch}.attention.key_length", n_embd // n_head)
    n_ctx = _positive(m, f"{arch}.context_length")
    spec = Spec(
        architecture=arch,
        n_layer=_positive(m, f"{arch}.block_count"),
        n_ctx=n_ctx,
        n_embd=n_embd,
        n_ff=_positive(m, f"{arch}.feed_forward_length"),
        n_vocab=n_vocab,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        head_dim_v=m.int(f"{arch}.attention.value_length", head_dim),
        eps=m.float(f"{arch}.attention.layer_norm_rms_epsilon"),
        attention_scale=m.float(f"{arch}.attention.scale", 0.0) or head_dim**-0.5,
        rope=read_rope(m, arch, head_dim, n_ctx),
        groups=(),
        pooling=POOLINGS.get(m.int(f"{arch}.pooling_type", 1), "mean"),
    )
    if not 0 < n_head_kv <= n_head or n_head % n_head_kv:
        raise m.bad(f"{n_head} heads cannot share {n_head_kv} key heads")
    if m.int(f"{arch}.expert_count", 0):
        raise ModelError("unsupported_model", f"{arch} with experts is not supported")
    if not m.bool(f"{arch}.attention.causal", True):
        raise ModelError("unsupported_model", f"{arch} without a causal mask is not supported")
    m.int(f"{arch}.vocab_size", n_vocab)
    return spec.with_windows(0, [False] * spec.n_layer)


def read_rope(m: Metadata, arch: str, head_dim: int, n_ctx: int) -> Rope:
    kind = m.str(f"{arch}.rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise ModelError("unsupported_model", f"rope scaling {kind!r} is not supported")
    factor = m.float(f"{arch}.rope.scaling.factor", m.float(f"{arch}.rope.scale_linear", 1.0))
    n_rot = m.int(f"{arch}.rope.dimension_count", head_dim)
    base = m.float(f"{arch}.rope.freq_base", 10000.0)
    if n_rot % 2 or not 0 < n_rot <= head_dim or factor <= 0 or base <= 1:
        raise m.bad(f"rope of {n_rot} dimensions, base {base}, factor {factor} on heads of {head_dim}")
    m.bool(f"{arch}.rope.scaling.finetuned", False)
    return Rope(
        n_rot,
        base,
        factor if kind != "none" else 1.0,
        kind == "yarn",
        m.int(f"{arch}.rope.scaling.original_context_length", n_ctx),
        m.float(f"{arch}.rope.scaling.attn_factor", 1.0),
    )


def _positive(m: Metadata, key: str) -> int:
    value = m.int(key)
    if not 0 < value < 1 << 31:
        raise m.bad(f"{key} is {value}")
    return value
