// matmul_units.cuh: packed weights (pack.cuh) in the registers of a warp.
#pragma once

#include "matmul.cuh"

namespace luce {

// Of 32 values of a row: value = d * scale * (code - zero) + m * min, with two scales and minima where a span is 16.
struct Scale {
  float d, m, scale[2], min[2];
};

LUCE_DEVICE float half_of(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// Byte i of a word of scales, a whole number, as a float.
LUCE_DEVICE float byte_of(uint32_t word, int i) {
  return __uint_as_float(0x4B000000u | (word >> i * 8 & 255)) - 8388608.0f;
}
LUCE_DEVICE float nibble_of(uint32_t word, int i) {
  return static_cast<float>(word >> i * 4 & 15);
}

// The codes of one unit.
template <int type>
struct UnitCodes {
  using P = Packing<type>;
  static constexpr int kHigh = P::high_words > 0 ? P::high_words : 1;

  uint32_t low[P::low_words], high[kHigh];

  // From global memory, once.
  LUCE_DEVICE void load(const uint8_t *unit, int lane) {
    take(unit, lane, [](auto *p) { return load_weights(p); });
  }
  // From shared memory.
  LUCE_DEVICE void read(const uint8_t *unit, int lane) {
    take(unit, lane, [](auto *p) { return *p; });
  }

  LUCE_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < P::low_words; ++i) low[i] = 0;
#pragma unroll
    for (int i = 0; i < kHigh; ++i) high[i] = 0;
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
  template <class Load>
  LUCE_DEVICE void take(const uint8_t *unit, int lane, Load load) {
    take_words(unit, lane, low, load);
    if constexpr (P::high_words > 0) take_words(unit + P::low_words * 4 * kLanes, lane, high, load);
  }

  template <int n, class Load>
  LUCE_DEVICE static void take_words(const uint8_t *from, int lane, uint32_t (&words)[n], Load load) {
    if constexpr (n % 4 == 0) {
#pragma unroll
      for (int i = 0; i < n; i += 4) {
        const uint4 w = load(reinterpret_cast<const uint4 *>(from + word_offset(n, i, lane)));
        words[i] = w.x, words[i + 1] = w.y, words[i + 2] = w.z, words[i + 3] = w.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        words[i] = load(reinterpret_cast<const uint32_t *>(from + word_offset(n, i, lane)));
      }
    }
  }
};

// Four bytes of scales and minima, of blocks t (h = 0) and t + 4 (h = 1).
template <int type>
LUCE_DEVICE Scale scale_of(float d, float m, uint32_t sub, int h) {
  using P = Packing<type>;
  Scale s = {d, m, {1, 1}, {1, 1}};
  if constexpr (!P::is_super) return s;
  if constexpr (P::f.span == 32) {
    s.scale[0] = byte_of(sub, h);
    s.min[0] = byte_of(sub, 2 + h);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (P::subs_are_nibbles) {
        s.scale[i] = nibble_of(sub, 2 * (2 * h + i));
        s.min[i] = nibble_of(sub, 2 * (2 * h + i) + 1);
      } else {
        s.scale[i] = byte_of(sub, 2 * h + i) - (P::subs_are_signed ? 128.0f : 0.0f);
      }
    }
  }
  return s;
}

// The scales of one unit for rows g and g + 8: all its blocks.
template <int type>
struct UnitScales {
  using P = Packing<type>;

  uint32_t d[2][P::d_bytes > 4 ? 2 : 1], sub[2][4];

  LUCE_DEVICE void load(const uint8_t *unit, int lane) {
    const uint8_t *scales = unit + P::code_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = lane / 4 + 8 * i;
      if constexpr (P::d_bytes == 2) {
        d[i][0] = *reinterpret_cast<const uint16_t *>(scales + 2 * r);
      } else {
#pragma unroll
        for (int j = 0; j < P::d_bytes / 4; ++j) {
          d[i][j] = load_weights(reinterpret_cast<const uint32_t *>(scales + P::d_bytes * r) + j);
        }
      }
      if constexpr (P::is_super) {
        const uint4 s = load_weights(reinterpret_cast<const uint4 *>(scales + kTileRows * P::d_bytes + 16 * r));
        sub[i][0] = s.x, sub[i][1] = s.y, sub[i][2] = s.z, sub[i][3] = s.w;
      }
    }
  }

  // Of block b of row g + 8 i.
  LUCE_DEVICE Scale of(int i, int b) const {
    if constexpr (P::is_super) {
      return scale_of<type>(half_of(d[i][0] & 0xFFFF), half_of(d[i][0] >> 16), sub[i][b % 4], b / 4);
    } else if constexpr (P::f.mins) {
      return scale_of<type>(half_of(d[i][b] & 0xFFFF), half_of(d[i][b] >> 16), 0, 0);
    } else {
      return scale_of<type>(half_of(d[i][0] >> 16 * b & 0xFFFF), 0, 0, 0);
    }
  }
};

// The scales of a group of 256 values that one lane wants: of rows g and g + 8, of blocks t and t + 4.
template <int type>
struct LaneScales {
  using P = Packing<type>;
  static constexpr int kWords = P::is_super ? 1 : 2;

  uint32_t d[2][kWords], sub[2];

  // From shared memory, where the group lies with n_units of its units.
  LUCE_DEVICE void read(const uint8_t *group, int n_units, int lane) {
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
          d[i][h] = u < n_units ? read_d(scales + P::d_bytes * r + t % 2 * (P::d_bytes / 2)) : 0;
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
