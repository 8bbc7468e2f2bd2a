// One float vector per instruction set, with the loads the kernels need.
//
// `Vec` holds `width` fp32 lanes.  Halves are IEEE fp16 in a uint16_t.  Every
// set multiplies and adds in one rounding (fma), so a sum has the same value
// for the same lane width; `sum` adds the lanes in a fixed order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace anex {

#if defined(__AVX512F__)

struct Vec {
  static constexpr int width = 16;
  __m512 v;
  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Vec splat(float x) { return {_mm512_set1_ps(x)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  float sum() const {
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v),
                                _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  // Four sums at once, each in the order of `sum`, with half the shuffles.
  static void sum4(const Vec* x, float* to) {
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(x[0].v, x[1].v, 0x44), _mm512_shuffle_f32x4(x[0].v, x[1].v, 0xEE));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(x[2].v, x[3].v, 0x44), _mm512_shuffle_f32x4(x[2].v, x[3].v, 0xEE));
    __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    q = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4E));
    q = _mm512_add_ps(q, _mm512_permute_ps(q, 0xB1));
    _mm512_mask_compressstoreu_ps(to, 0x1111, q);
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
};
constexpr int kRows = 4, kCols = 6;

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct Vec {
  static constexpr int width = 8;
  __m256 v;
  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static Vec splat(float x) { return {_mm256_set1_ps(x)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  float sum() const {
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  static void sum4(const Vec* x, float* to) {
    for (int i = 0; i < 4; ++i) to[i] = x[i].sum();
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(uint16_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
};
constexpr int kRows = 3, kCols = 4;

#elif defined(__aarch64__)

struct Vec {
  static constexpr int width = 4;
  float32x4_t v;
  static Vec zero() { return {vdupq_n_f32(0)}; }
  static Vec load(const float* p) { return {vld1q_f32(p)}; }
  static Vec load(const uint16_t* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
  static Vec splat(float x) { return {vdupq_n_f32(x)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
  float sum() const { return vaddvq_f32(v); }
  static void sum4(const Vec* x, float* to) {
    for (int i = 0; i < 4; ++i) to[i] = x[i].sum();
  }
  void store(float* p) const { vst1q_f32(p, v); }
  void store(uint16_t* p) const { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
};
constexpr int kRows = 4, kCols = 6;

#else

inline float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, body = h & 0x7fff, bits;
  if (body >= 0x7c00) {
    bits = sign | 0x7f800000 | (body & 0x3ff) << 13;
  } else {  // scale by an exact power of two, which also handles subnormals
    float x;
    uint32_t shifted = body << 13;
    std::memcpy(&x, &shifted, 4);
    x *= 0x1p112f;
    std::memcpy(&bits, &x, 4);
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline uint16_t float_to_half(float x) {  // round to nearest even, subnormals kept
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  uint16_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000) {  // below the smallest normal half: let fp32 addition round
    float magic = 0.5f, y;
    std::memcpy(&y, &bits, 4);
    y += magic;
    std::memcpy(&bits, &y, 4);
    return sign | uint16_t(bits - 0x3f000000);
  }
  return sign | uint16_t((bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13);
}

struct Vec {
  static constexpr int width = 4;
  float v[4];
  static Vec zero() { return {{0, 0, 0, 0}}; }
  static Vec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static Vec load(const uint16_t* p) {
    return {{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])}};
  }
  static Vec splat(float x) { return {{x, x, x, x}}; }
  static Vec fma(Vec a, Vec b, Vec c) {
    Vec r;
    for (int i = 0; i < 4; ++i) r.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
    return r;
  }
  float sum() const { return (v[0] + v[2]) + (v[1] + v[3]); }
  static void sum4(const Vec* x, float* to) {
    for (int i = 0; i < 4; ++i) to[i] = x[i].sum();
  }
  void store(float* p) const { std::memcpy(p, v, sizeof v); }
  void store(uint16_t* p) const {
    for (int i = 0; i < 4; ++i) p[i] = float_to_half(v[i]);
  }
};
constexpr int kRows = 2, kCols = 4;

#endif

// The last, partial vector of a row: missing lanes are zero.
template <class T>
inline Vec load_tail(const T* p, int64_t n) {
  T padded[Vec::width] = {};
  std::memcpy(padded, p, n * sizeof(T));
  return Vec::load(padded);
}

template <class T>
inline void store_tail(Vec x, T* p, int64_t n) {
  T padded[Vec::width];
  x.store(padded);
  std::memcpy(p, padded, n * sizeof(T));
}

// Stores one value, rounded to nearest even where T is fp16.
inline void store_one(float x, float* p) { *p = x; }
inline void store_one(float x, uint16_t* p) {
#if defined(__F16C__)
  *p = uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  __fp16 h = __fp16(x);
  std::memcpy(p, &h, 2);
#else
  *p = float_to_half(x);
#endif
}

// Converts n elements between fp32 and fp16, in any of the four directions.
template <class From, class To>
inline void convert(const From* from, To* to, int64_t n) {
  int64_t i = 0;
  for (; i + Vec::width <= n; i += Vec::width) Vec::load(from + i).store(to + i);
  if (i < n) store_tail(load_tail(from + i, n - i), to + i, n - i);
}

}  // namespace anex
