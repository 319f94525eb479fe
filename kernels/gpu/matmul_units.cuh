// matmul_units.cuh: packed weights (pack.cuh) in the registers of a warp.
#pragma once

#include "matmul.cuh"

namespace luce {

// Of 32 values of a row: value = scale * (code - zero) + min, with two scales and minima where a span is 16.
struct Scale {
  float scale[2], min[2];
};

LUCE_DEVICE float half_of(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// d, which is an F16, times byte i of a word less `zero`: exact. With the byte in it a float is 2^15 more.
template <int zero = 0>
LUCE_DEVICE float times_byte(float d, uint32_t word, int i) {
  return fmaf(__uint_as_float(__byte_perm(word, 0x47000000u, 0x7404 | i << 4)), d, -(32768.0f + zero) * d);
}

// The codes of one unit.
template <int type>
struct UnitCodes {
  using P = Packing<type>;
  static constexpr int kHigh = P::high_words > 0 ? P::high_words : 1;

  uint32_t low[P::low_words], high[kHigh];

  // From shared memory.
  LUCE_DEVICE void read(const uint8_t *unit, int lane) {
    take(unit, lane, low);
    if constexpr (P::high_words > 0) take(unit + P::low_words * 4 * kLanes, lane, high);
  }

  // The four registers of block b of 32 values.
  LUCE_DEVICE void registers(int b, uint32_t (&a)[4]) const {
    constexpr uint32_t kOnes = 0x01010101u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (P::low_bits == 8) {
        a[i] = low[4 * b + i];
      } else if constexpr (P::low_bits == 4) {
        a[i] = low[2 * b + i / 2] >> (i % 2 * 4) & 15 * kOnes;
      } else {
        a[i] = low[b] >> 2 * i & 3 * kOnes;
      }
      if constexpr (P::high_bits == 2) a[i] |= (high[b] >> 2 * i & 3 * kOnes) << P::low_bits;
      if constexpr (P::high_bits == 1) a[i] |= (high[b / 2] >> (b % 2 * 4 + i) & kOnes) << P::low_bits;
    }
  }

 private:
  template <int n>
  LUCE_DEVICE static void take(const uint8_t *from, int lane, uint32_t (&words)[n]) {
    if constexpr (n % 4 == 0) {
#pragma unroll
      for (int i = 0; i < n; i += 4) {
        const uint4 w = *reinterpret_cast<const uint4 *>(from + word_offset(n, i, lane));
        words[i] = w.x, words[i + 1] = w.y, words[i + 2] = w.z, words[i + 3] = w.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        words[i] = *reinterpret_cast<const uint32_t *>(from + word_offset(n, i, lane));
      }
    }
  }
};

// Of d, m and four bytes of scales and minima, those of blocks t (h = 0) and t + 4 (h = 1).
template <int type>
LUCE_DEVICE Scale scale_of(float d, float m, uint32_t sub, int h) {
  using P = Packing<type>;
  if constexpr (!P::is_super) return {{d, d}, {m, m}};
  if constexpr (P::f.span == 32) return {{times_byte(d, sub, h), 0}, {times_byte(m, sub, 2 + h), 0}};
  if constexpr (P::subs_are_nibbles) {
    const uint32_t low = sub & 0x0F0F0F0Fu, high = sub >> 4 & 0x0F0F0F0Fu;
    return {{times_byte(d, low, 2 * h), times_byte(d, low, 2 * h + 1)},
            {times_byte(m, high, 2 * h), times_byte(m, high, 2 * h + 1)}};
  }
  return {{times_byte<128>(d, sub, 2 * h), times_byte<128>(d, sub, 2 * h + 1)}, {0, 0}};
}

// HalfCodes are signed bytes. Those of a type whose codes count `zero` too much have their highest bit as the sign, and
// so are 1 << code_shift times what they stand for. GroupScales are as much smaller: the same bits as from codes less
// `zero`, but for products too small to be normal numbers.
template <int type>
constexpr int code_shift = Packing<type>::f.zero == 0 ? 0 : 8 - Packing<type>::f.bits;

// The scales of a group of 256 values in shared memory that a lane wants: of rows g and g + 8, of all blocks. Block r
// of half h is block 4h + r.
template <int type>
struct GroupScales {
  using P = Packing<type>;
  static constexpr int kWords = P::is_super ? 1 : P::f.mins ? 8 : 4;
  static constexpr float kUnit = 1.0f / (1 << code_shift<type>);

  uint32_t d[2][kWords], sub[2][4];

  LUCE_DEVICE void read(const uint8_t *group, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane / 4 + 8 * i;
      if constexpr (P::is_super) {
        const uint8_t *scales = group + P::code_bytes;
        d[i][0] = P::f.mins ? *reinterpret_cast<const uint32_t *>(scales + 4 * row)
                            : *reinterpret_cast<const uint16_t *>(scales + 2 * row);
        const uint4 s = *reinterpret_cast<const uint4 *>(scales + kTileRows * P::d_bytes + 16 * row);
        sub[i][0] = s.x, sub[i][1] = s.y, sub[i][2] = s.z, sub[i][3] = s.w;
      } else {
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          constexpr int kOfUnit = kWords / 4;
          const uint8_t *scales = group + j / kOfUnit * P::bytes + P::code_bytes;
          d[i][j] = reinterpret_cast<const uint32_t *>(scales + P::d_bytes * row)[j % kOfUnit];
        }
      }
    }
  }

  LUCE_DEVICE Scale of(int i, int r, int h) const {
    if constexpr (P::is_super) {
      return scale_of<type>(half_of(d[i][0] & 0xFFFF) * kUnit, half_of(d[i][0] >> 16), sub[i][r], h);
    } else if constexpr (P::f.mins) {
      const uint32_t word = h == 0 ? d[i][r] : d[i][4 + r];
      return scale_of<type>(half_of(word & 0xFFFF), half_of(word >> 16), 0, 0);
    } else {
      const uint32_t word = h == 0 ? d[i][r / 2] : d[i][2 + r / 2];
      return scale_of<type>(half_of(word >> 16 * (r % 2) & 0xFFFF) * kUnit, 0, 0, 0);
    }
  }
};

// The codes of half h of a group in shared memory.
template <int type>
struct HalfCodes {
  using P = Packing<type>;
  static constexpr int kLow = 2 * P::low_bits, kHigh = P::high_bits > 0 ? 2 * P::high_bits : 1;

  uint32_t low[kLow], high[kHigh];

  LUCE_DEVICE void read(const uint8_t *group, int h, int lane) {
    take(group, h, lane, low);
    if constexpr (P::high_bits > 0) take(group + P::low_words * 4 * kLanes, h, lane, high);
  }

  // The four registers of block r.
  LUCE_DEVICE void registers(int r, uint32_t (&a)[4]) const {
    constexpr uint32_t kOnes = 0x01010101u;
    constexpr int kShift = code_shift<type>, kHighAt = kShift + P::low_bits;
    static_assert(P::f.zero == 0 || 2 * P::f.zero == 1 << P::f.bits);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (P::low_bits == 8) {
        a[i] = low[4 * r + i];
      } else if constexpr (P::low_bits == 4) {
        a[i] = shifted(low[2 * r + i / 2], kShift - i % 2 * 4) & 15 * kOnes << kShift;
      } else {
        a[i] = shifted(low[r], kShift - 2 * i) & 3 * kOnes << kShift;
      }
      constexpr uint32_t kTop = kShift > 0 ? 0x80u * kOnes : 0;
      if constexpr (P::high_bits == 2) a[i] |= shifted(high[r], kHighAt - 2 * i) & 3 * kOnes << kHighAt;
      if constexpr (P::high_bits == 1) a[i] |= shifted(high[r / 2], kHighAt - r % 2 * 4 - i) & kOnes << kHighAt;
      a[i] ^= kTop;
    }
  }

 private:
  LUCE_DEVICE static uint32_t shifted(uint32_t word, int left) { return left >= 0 ? word << left : word >> -left; }

  // The words of a plane, of which a unit has twice as many where it is the whole group, and half as many else.
  template <int n>
  LUCE_DEVICE static void take(const uint8_t *plane, int h, int lane, uint32_t (&words)[n]) {
    constexpr int kUnits = P::is_super ? 1 : 2, kWords = n / kUnits;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const uint8_t *from = plane + (P::is_super ? 0 : (2 * h + u) * P::bytes);
      if constexpr (P::is_super && kWords == 2) {
        const uint2 w = *reinterpret_cast<const uint2 *>(from + 16 * lane + 8 * h);
        words[0] = w.x, words[1] = w.y;
      } else if constexpr (kWords % 4 == 0) {
        if (P::is_super) from += h * kWords * 4 * kLanes;
#pragma unroll
        for (int i = 0; i < kWords; i += 4) {
          const uint4 w = *reinterpret_cast<const uint4 *>(from + i * 4 * kLanes + 16 * lane);
          words[u * kWords + i] = w.x, words[u * kWords + i + 1] = w.y;
          words[u * kWords + i + 2] = w.z, words[u * kWords + i + 3] = w.w;
        }
      } else {
        static_assert(kWords == 1);
        words[u] = *reinterpret_cast<const uint32_t *>(from + 4 * lane);
      }
    }
  }
};

// The scales of a group of 256 values that one lane wants: of rows g and g + 8, of blocks t and t + 4.
template <int type>
struct LaneScales {
  using P = Packing<type>;
  static constexpr int kWords = P::is_super ? 1 : 2;

  uint32_t d[2][kWords], sub[2];

  // From shared memory.
  LUCE_DEVICE void read(const uint8_t *group, int lane) {
    const int t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = lane / 4 + 8 * i;
      if constexpr (P::is_super) {
        const uint8_t *scales = group + P::code_bytes;
        d[i][0] = read_d(scales + P::d_bytes * r);
        sub[i] = *reinterpret_cast<const uint32_t *>(scales + kTileRows * P::d_bytes + 16 * r + 4 * t);
      } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int u = 2 * h + t / 2;
          const uint8_t *scales = group + u * P::bytes + P::code_bytes;
          d[i][h] = read_d(scales + P::d_bytes * r + t % 2 * (P::d_bytes / 2));
        }
      }
    }
  }

  // Of block t + 4 h of row g + 8 i.
  LUCE_DEVICE Scale of(int i, int h, int) const {
    const uint32_t word = d[i][P::is_super ? 0 : h];
    return scale_of<type>(half_of(word & 0xFFFF), P::f.mins ? half_of(word >> 16) : 0.0f, P::is_super ? sub[i] : 0, h);
  }

 private:
  // d alone, or d and m.
  LUCE_DEVICE static uint32_t read_d(const uint8_t *p) {
    if constexpr (P::f.mins) return *reinterpret_cast<const uint32_t *>(p);
    return *reinterpret_cast<const uint16_t *>(p);
  }
};

}  // namespace luce
