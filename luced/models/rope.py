"""Rotary position embedding, as the metadata asks for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from luced.errors import ModelError
from luced.gguf.metadata import Metadata


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: every kind of scaling ends in a table of frequencies and a magnitude."""

    n_rot: int
    base: float
    factor: float = 1.0  # positions are divided by it
    yarn: bool = False
    n_ctx_original: int = 0
    attention_factor: float = 1.0
    yarn_magnitude: float = 0.0  # 0: as the factor has it
    beta_fast: float = 32.0  # turns within the original context from which on YaRN leaves a frequency as it is
    beta_slow: float = 1.0  # and below which it divides it by the factor

    @property
    def magnitude(self) -> float:
        """Multiplies cosine and sine; YaRN (arXiv 2309.00071) grows it with the factor."""
        if self.yarn_magnitude:
            return self.yarn_magnitude
        return self.attention_factor * (1 + 0.1 * math.log(self.factor) if self.yarn and self.factor > 1 else 1)

    def frequencies(self, divisors: list[float] | None = None) -> list[float]:
        """n_rot / 2 angles per position; `divisors` is the file's rope_freqs (llama 3)."""
        plain = [self.base ** (-2 * i / self.n_rot) for i in range(self.n_rot // 2)]
        if divisors is not None:
            plain = [f / d for f, d in zip(plain, divisors, strict=True)]
        if not self.yarn:
            return [f / self.factor for f in plain]
        low = max(0, math.floor(self._turns_at(self.beta_fast)))
        high = min(self.n_rot - 1, math.ceil(self._turns_at(self.beta_slow)))
        keep = [1 - min(1, max(0, (i - low) / max(0.001, high - low))) for i in range(len(plain))]
        return [f * k + f / self.factor * (1 - k) for f, k in zip(plain, keep, strict=True)]

    def _turns_at(self, turns: float) -> float:
        """The pair that makes this many turns within the original context."""
        return self.n_rot * math.log(self.n_ctx_original / (turns * 2 * math.pi)) / (2 * math.log(self.base))


def read_rope(m: Metadata, arch: str, head_dim: int, n_ctx: int) -> Rope:
    """A factor of no named kind is linear. yarn_attn_factor, where the file has it, is the magnitude itself, as in HF;
    llama.cpp does not read it."""
    kind = m.str(f"{arch}.rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise ModelError("unsupported_model", f"rope scaling {kind!r} is not supported")
    factor = m.float(f"{arch}.rope.scaling.factor", m.float(f"{arch}.rope.scale_linear", 1.0))
    n_rot = m.count(f"{arch}.rope.dimension_count", head_dim)
    base = m.float(f"{arch}.rope.freq_base", 10000.0)
    if n_rot % 2 or not 0 < n_rot <= head_dim or factor <= 0 or base <= 1:
        raise m.bad(f"rope of {n_rot} dimensions, base {base}, factor {factor} on heads of {head_dim}")
    m.bool(f"{arch}.rope.scaling.finetuned", False)
    scaling = f"{arch}.rope.scaling"
    magnitude = m.float(f"{scaling}.yarn_attn_factor", 0.0)
    beta_fast, beta_slow = m.float(f"{scaling}.yarn_beta_fast", 32.0), m.float(f"{scaling}.yarn_beta_slow", 1.0)
    if magnitude < 0 or not 0 < beta_slow <= beta_fast:
        raise m.bad(f"YaRN of magnitude {magnitude} between {beta_slow} and {beta_fast} turns")
    if m.float(f"{scaling}.yarn_ext_factor", 1.0) not in (1.0, -1.0):  # -1: as the kind of scaling has it
        raise ModelError("unsupported_model", "YaRN with an extrapolation factor is not supported")
    return Rope(
        n_rot,
        base,
        factor if kind != "none" else 1.0,
        kind == "yarn",
        m.count(f"{arch}.rope.scaling.original_context_length", n_ctx),
        m.float(f"{scaling}.attn_factor", 1.0),
        magnitude,
        beta_fast,
        beta_slow,
    )
