"""What a model's metadata says, checked: sizes, and which cache group each layer keeps its keys in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from luced.errors import ModelError
from luced.gguf.metadata import Metadata
from luced.models.rope import Rope, read_rope
from luced.ops import Routing

MAX_LAYERS = 4096
POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # GGUF's pooling_type


@dataclass(frozen=True)
class Group:
    """Layers whose keys and values have one shape, and live and die together. window 0: they see the whole context."""

    name: str
    window: int
    layers: tuple[int, ...]
    n_head_kv: int
    head_dim: int  # of keys
    head_dim_v: int  # 0: the keys are the values too
    ratio: int = 1  # tokens that a cell stands for
    kept: str = ""  # the type of its cells, whatever is asked for; "": as asked


@dataclass(frozen=True)
class Recurrent:
    """Layers that keep a state of fixed size instead of keys and values: a convolution's last inputs, and the matrices
    of the delta rule, one for each value head."""

    layers: tuple[int, ...]
    n_k: int  # heads of keys
    n_v: int  # and of values
    d_k: int  # values of a key
    d_v: int
    n_taps: int  # of the convolution

    @property
    def n_channels(self) -> int:
        """That the convolution sees: q, k and v."""
        return 2 * self.n_k * self.d_k + self.n_v * self.d_v

    @property
    def state_bytes(self) -> int:
        """Of one sequence, in F32."""
        return 4 * len(self.layers) * ((self.n_taps - 1) * self.n_channels + self.n_v * self.d_v * self.d_k)


@dataclass(frozen=True)
class Spec:
    architecture: str
    n_layer: int
    n_ctx: int  # that the model was trained for
    n_embd: int
    n_vocab: int
    n_heads: tuple[int, ...]  # of each layer
    n_heads_kv: tuple[int, ...]
    head_dim: int  # of queries and keys
    head_dim_v: int
    eps: float
    attention_scale: float
    rope: Rope
    groups: tuple[Group, ...]
    recurrent: Recurrent | None = None
    n_mtp: int = 0  # blocks after the last layer that predict further tokens, for speculation
    rope_window: Rope | None = None  # of the windowed layers, where it differs
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    router_softcap: float = 0.0
    routing: Routing | None = None  # None: without experts
    lenders: Mapping[int, int] | None = None  # of each layer, the one whose keys and values it sees; None: its own
    details: Any = None  # what only its own file reads
    pooling: str = "mean"  # of hidden states into an embedding, where the caller does not say

    def with_windows(self, window: int, windowed: list[bool]) -> Spec:
        """The layers parted into a full and a windowed group."""
        layers = range(self.n_layer)
        full = self.group("full", 0, [i for i in layers if not windowed[i]], self.head_dim, self.head_dim_v)
        near = self.group("window", window, [i for i in layers if windowed[i]], self.head_dim, self.head_dim_v)
        return replace(self, groups=full + near)

    def group(self, name: str, window: int, layers: list[int], head_dim: int, head_dim_v: int) -> tuple[Group, ...]:
        """The group of these layers; none if there are none. ModelError: they have no common shape."""
        n_heads = {self.n_heads_kv[i] for i in layers}
        if len(n_heads) > 1:
            raise ModelError("unsupported_model", f"{name} layers with {sorted(n_heads)} key heads are not supported")
        return tuple(Group(name, window, tuple(layers), n, head_dim, head_dim_v) for n in n_heads)


def read_spec(m: Metadata, n_vocab: int, routing: Routing | None = None) -> Spec:
    """The keys that all architectures share. ModelError: missing, of a wrong type, or a contradiction."""
    arch = m.str("general.architecture")
    n_embd = _positive(m, f"{arch}.embedding_length")
    n_layer = _positive(m, f"{arch}.block_count", MAX_LAYERS)
    n_heads = m.counts(f"{arch}.attention.head_count", n_layer)
    n_heads_kv = n_heads
    if f"{arch}.attention.head_count_kv" in m:
        n_heads_kv = m.counts(f"{arch}.attention.head_count_kv", n_layer)
    for n, n_kv in zip(n_heads, n_heads_kv, strict=True):
        if not 0 < n_kv <= n or n % n_kv:
            raise m.bad(f"{n} heads cannot share {n_kv} key heads")
    head_dim = m.count(f"{arch}.attention.key_length", n_embd // n_heads[0])
    n_ctx = _positive(m, f"{arch}.context_length")
    spec = Spec(
        architecture=arch,
        n_layer=n_layer,
        n_ctx=n_ctx,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_heads=tuple(n_heads),
        n_heads_kv=tuple(n_heads_kv),
        head_dim=head_dim,
        head_dim_v=m.count(f"{arch}.attention.value_length", head_dim),
        eps=m.float(f"{arch}.attention.layer_norm_rms_epsilon"),
        attention_scale=m.float(f"{arch}.attention.scale", 0.0) or head_dim**-0.5,
        rope=read_rope(m, arch, head_dim, n_ctx),
        groups=(),
        routing=routing,
        pooling=POOLINGS.get(m.count(f"{arch}.pooling_type", 1), "mean"),
    )
    if routing is None and m.count(f"{arch}.expert_count", 0):
        raise ModelError("unsupported_model", f"{arch} with experts is not supported")
    if not m.bool(f"{arch}.attention.causal", True):
        raise ModelError("unsupported_model", f"{arch} without a causal mask is not supported")
    m.count(f"{arch}.vocab_size", n_vocab)
    m.counts(f"{arch}.feed_forward_length", n_layer, 0)  # the shapes of the weights say it
    # Layers of several shapes are for their architecture to part into groups.
    return spec.with_windows(0, [False] * n_layer) if len(set(n_heads_kv)) == 1 else spec


def read_pattern(m: Metadata, arch: str, n_layer: int, period: int, full: int = -1) -> list[bool]:
    """Which layers have a window: those that the file lists, or all but one of each period: the last, or `full`."""
    pattern = m.get(f"{arch}.attention.sliding_window_pattern", period)
    if isinstance(pattern, list):
        return m.bools(f"{arch}.attention.sliding_window_pattern", n_layer)
    pattern = m.count(f"{arch}.attention.sliding_window_pattern", period)
    return [i % pattern != full % pattern for i in range(n_layer)]


def _positive(m: Metadata, key: str, most: int = (1 << 31) - 1) -> int:
    value = m.count(key)
    if not 0 < value <= most:
        raise m.bad(f"{key} is {value}")
    return value
