// The emulator's dense products: fp16 or fp32 operands, fp32 accumulation,
// one rounding at the end, and a summation order that depends on K alone.
//
// dot:   out[b,m,n] = sum_k a[b,m,k] * b[b,n,k]   lanes along k, then Vec::sum
// outer: out[b,m,n] = sum_k a[b,m,k] * b[b,k,n]   lanes along n, k in order
//
// The order of a sum is a function of the form alone, never of the number of
// rows, columns or threads, so a token has the same bits in a batch of one and
// in a batch of five hundred.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <thread>

#include "simd.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace anex {

constexpr int64_t kCacheBytes = 512 * 1024;  // part of L2 that a block of `a` may fill
constexpr int64_t kSerialWork = 32 * 1024;   // below this many products threads do not pay

// Runs body(0..count-1) on the pool and the calling thread; returns when all are done.
void parallel_for(ffi::ThreadPool& pool, int64_t count, bool serial,
                  const std::function<void(int64_t)>& body) {
  int64_t workers = std::min<int64_t>(pool.num_threads(), count);
  if (serial || workers <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  struct State {
    std::atomic<int64_t> next{0}, done{0};
    std::atomic<bool> out_of_memory{false};
  };
  auto state = std::make_shared<State>();
  // A worker that starts late finds no index left and never touches `body`.
  auto work = [state, count, &body] {
    for (int64_t i; (i = state->next.fetch_add(1)) < count;) {
      try {
        body(i);
      } catch (const std::bad_alloc&) {
        state->out_of_memory = true;
      }
      state->done.fetch_add(1, std::memory_order_release);
    }
  };
  for (int64_t w = 1; w < workers; ++w) pool.Schedule(std::function<void()>(work));
  work();
  for (int spins = 0; state->done.load(std::memory_order_acquire) < count; ++spins)
    if (spins > 4096) std::this_thread::yield();
  if (state->out_of_memory) throw std::bad_alloc();
}

// Scratch of the calling thread, kept until it ends (fresh pages cost more than the products of a
// small call) and aligned to a cache line, so that no vector load straddles two.
enum Slot { kTurned, kRowsOfTask, kSlots };

float* scratch(Slot slot, int64_t n) {
  struct Free {
    void operator()(float* p) const { operator delete[](p, std::align_val_t{64}); }
  };
  static thread_local std::unique_ptr<float[], Free> held[kSlots];
  static thread_local int64_t size[kSlots];
  if (size[slot] < n) {
    held[slot].reset();
    held[slot].reset(new (std::align_val_t{64}) float[n]);
    size[slot] = n;
  }
  return held[slot].get();
}

// A tile of R x C sums of the dot form.
template <int R, int C, class A, class B, class O>
inline void dot_tile(const A* a, const B* b, int64_t k, O* out, int64_t stride_m, int64_t stride_n) {
  Vec acc[R][C];
  for (auto& row : acc)
    for (auto& x : row) x = Vec::zero();
  auto step = [&](auto&& load, int64_t i) {
    // One column: memory sets the pace, so ask for the next rows while these are read.
    if constexpr (C == 1)
      for (int r = 0; r < R; ++r) __builtin_prefetch(a + (R + r) * k + i);
    Vec y[C];
    for (int c = 0; c < C; ++c) y[c] = load(b + c * k + i);
    for (int r = 0; r < R; ++r) {
      Vec x = load(a + r * k + i);
      for (int c = 0; c < C; ++c) acc[r][c] = Vec::fma(x, y[c], acc[r][c]);
    }
  };
  int64_t i = 0;
  for (; i + Vec::width <= k; i += Vec::width) step([](auto* p) { return Vec::load(p); }, i);
  if (i < k) step([n = k - i](auto* p) { return load_tail(p, n); }, i);
  constexpr int count = R * C;
  float sums[count];
  for (int j = 0; j + 4 <= count; j += 4) Vec::sum4(&acc[0][0] + j, sums + j);
  for (int j = count / 4 * 4; j < count; ++j) sums[j] = (&acc[0][0])[j].sum();
  for (int j = 0; j < count; ++j) store_one(sums[j], out + j / C * stride_m + j % C * stride_n);
}

// Rows [m0, m1) times columns [n0, n0 + C) with tiles of up to R rows.
template <int R, int C, class A, class B, class O>
inline void dot_rows(const A* a, const B* b, int64_t k, O* out, int64_t sm, int64_t sn, int64_t m0, int64_t m1) {
  for (; m0 + R <= m1; m0 += R) dot_tile<R, C>(a + m0 * k, b, k, out + m0 * sm, sm, sn);
  if constexpr (R > 1)
    if (m0 < m1) dot_rows<R / 2, C>(a, b, k, out, sm, sn, m0, m1);
}

template <int C, class A, class B, class O>
inline void dot_block(const A* a, const B* b, int64_t k, O* out, int64_t sm, int64_t sn, int64_t m0, int64_t m1,
                      int64_t n0, int64_t n1) {
  constexpr int R = C == 1 ? 8 : kRows;
  for (; n0 + C <= n1; n0 += C) dot_rows<R, C>(a, b + n0 * k, k, out + n0 * sn, sm, sn, m0, m1);
  if constexpr (C > 1)
    if (n0 < n1) dot_block<C / 2>(a, b, k, out, sm, sn, m0, m1, n0, n1);
}

// One batch entry of the dot form, split over threads by rows of `a`.
template <class A, class B, class O>
void dot(ffi::ThreadPool& pool, const A* a, const B* b, O* out, int64_t m, int64_t n, int64_t k, int64_t sm,
         int64_t sn) {
  int64_t block = std::max<int64_t>(kRows, kCacheBytes / std::max<int64_t>(1, k * int64_t(sizeof(float))));
  int64_t share = (m + 2 * pool.num_threads() - 1) / (2 * pool.num_threads());
  block = (std::min(block, std::max<int64_t>(share, kRows)) + kRows - 1) / kRows * kRows;
  // Rows that many columns read are widened once: a conversion per use costs a quarter of the speed.
  bool widen = sizeof(A) == 2 && n >= 4 * kCols;
  parallel_for(pool, (m + block - 1) / block, m * n * k < kSerialWork, [&](int64_t i) {
    int64_t m0 = i * block, m1 = std::min(m, m0 + block);
    float* wide = widen ? scratch(kRowsOfTask, (m1 - m0) * k) : nullptr;
    if (widen) {
      convert(a + m0 * k, wide, (m1 - m0) * k);
      dot_block<kCols>(wide, b, k, out + m0 * sm, sm, sn, 0, m1 - m0, 0, n);
    } else {
      dot_block<kCols>(a, b, k, out, sm, sn, m0, m1, 0, n);
    }
  });
}

// A tile of R rows x W vectors of the outer form; `left` < width only in the last vector.
template <int R, int W, class B, class O>
inline void outer_tile(const float* a, const B* b, int64_t k, int64_t n, O* out, int64_t left) {
  Vec acc[R][W];
  for (auto& row : acc)
    for (auto& x : row) x = Vec::zero();
  constexpr int L = Vec::width;
  for (int64_t i = 0; i < k; ++i, b += n) {
    Vec y[W];
    for (int w = 0; w + 1 < W; ++w) y[w] = Vec::load(b + w * L);
    y[W - 1] = left == L ? Vec::load(b + (W - 1) * L) : load_tail(b + (W - 1) * L, left);
    for (int r = 0; r < R; ++r) {
      Vec x = Vec::splat(a[r * k + i]);
      for (int w = 0; w < W; ++w) acc[r][w] = Vec::fma(x, y[w], acc[r][w]);
    }
  }
  for (int r = 0; r < R; ++r, out += n) {
    for (int w = 0; w + 1 < W; ++w) acc[r][w].store(out + w * L);
    if (left == L)
      acc[r][W - 1].store(out + (W - 1) * L);
    else
      store_tail(acc[r][W - 1], out + (W - 1) * L, left);
  }
}

template <int R, class B, class O>
inline void outer_rows(const float* a, const B* b, int64_t k, int64_t n, O* out, int64_t m) {
  constexpr int W = 4, L = Vec::width;
  for (; m >= R; m -= R, a += R * k, out += R * n) {
    int64_t j = 0;
    for (; j + W * L <= n; j += W * L) outer_tile<R, W>(a, b + j, k, n, out + j, L);
    for (; j < n; j += L) outer_tile<R, 1>(a, b + j, k, n, out + j, std::min<int64_t>(L, n - j));
  }
  if constexpr (R > 1)
    if (m > 0) outer_rows<R / 2>(a, b, k, n, out, m);
}

// Copies rows [m0, m1) of a matrix, stored [m, k] or transposed [k, m], to fp32 [rows, k].
template <class A>
void gather_rows(const A* a, bool transposed, int64_t m, int64_t k, int64_t m0, int64_t m1, float* to) {
  if (!transposed) return convert(a + m0 * k, to, (m1 - m0) * k);
  constexpr int64_t tile = 16;
  float row[tile];
  for (int64_t j = m0; j < m1; j += tile) {
    int64_t count = std::min(tile, m1 - j);
    for (int64_t i = 0; i < k; ++i) {
      convert(a + i * m + j, row, count);
      for (int64_t c = 0; c < count; ++c) to[(j - m0 + c) * k + i] = row[c];
    }
  }
}

template <class T>
const T* data_of(ffi::AnyBuffer x) {
  return reinterpret_cast<const T*>(x.untyped_data());
}

// Runs a handler's body; no exception may cross into XLA.
template <class F>
ffi::Error guarded(F&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory for the scratch of a product");
  }
}

// Calls f with a pointer of the buffer's element type.
template <class F>
ffi::Error with_type(ffi::AnyBuffer x, F&& f) {
  if (x.element_type() == ffi::DataType::F16) return f(data_of<uint16_t>(x));
  if (x.element_type() == ffi::DataType::F32) return f(data_of<float>(x));
  return ffi::Error::InvalidArgument("operands must be fp16 or fp32");
}

// Leading dimensions are batches: equal, or absent (1) in an operand that repeats.
struct Shape {
  int64_t batch = 1, rows, cols;
  explicit Shape(ffi::AnyBuffer x) {
    auto d = x.dimensions();
    rows = d[d.size() - 2], cols = d[d.size() - 1];
    for (size_t i = 0; i + 2 < d.size(); ++i) batch *= d[i];
  }
  int64_t step() const { return batch == 1 ? 0 : rows * cols; }
};

ffi::Error dot_call(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, bool b_is_kn,
                    ffi::Result<ffi::AnyBuffer> out) {
  Shape sa(a), sb(b), so(*out);
  int64_t k = sa.cols, m = so.rows, n = so.cols;
  return with_type(a, [&](auto* pa) {
    return with_type(b, [&](auto* pb) {
      return with_type(*out, [&](auto* po_const) {
        using O = std::remove_const_t<std::remove_pointer_t<decltype(po_const)>>;
        auto* po = const_cast<O*>(po_const);
        // Many rows of `a` read each column of `b`: widen (and turn) it once.
        bool widen = b_is_kn || (sizeof(*pb) == 2 && m > kRows);
        float* wide = widen ? scratch(kTurned, n * k) : nullptr;
        for (int64_t i = 0; i < so.batch; ++i, po += m * n) {
          auto* ai = pa + i * sa.step();
          auto* bi = pb + i * sb.step();
          if (!widen && m < n) {  // threads share the longer side; the sums are the same
            dot(pool, bi, ai, po, n, m, k, 1, n);
            continue;
          }
          if (!widen) {
            dot(pool, ai, bi, po, m, n, k, n, 1);
            continue;
          }
          int64_t chunk = 32;
          parallel_for(pool, (n + chunk - 1) / chunk, n * k < kSerialWork, [&](int64_t c) {
            int64_t n0 = c * chunk, n1 = std::min(n, n0 + chunk);
            gather_rows(bi, b_is_kn, n, k, n0, n1, wide + n0 * k);
          });
          dot(pool, ai, wide, po, m, n, k, n, 1);
        }
        return ffi::Error::Success();
      });
    });
  });
}

ffi::Error outer_call(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, bool a_is_km,
                      ffi::Result<ffi::AnyBuffer> out) {
  Shape sa(a), sb(b), so(*out);
  int64_t k = sb.rows, m = so.rows, n = so.cols;
  int64_t block = 24, blocks = (m + block - 1) / block;
  return with_type(a, [&](auto* pa) {
    return with_type(b, [&](auto* pb) {
      return with_type(*out, [&](auto* po_const) {
        using O = std::remove_const_t<std::remove_pointer_t<decltype(po_const)>>;
        auto* po = const_cast<O*>(po_const);
        bool serial = so.batch * m * n * k < kSerialWork;
        bool widen = sizeof(*pb) == 2 && m >= 4 * kRows;
        float* wide = widen ? scratch(kTurned, sb.batch * k * n) : nullptr;
        if (widen)
          parallel_for(pool, sb.batch * k, sb.batch * k * n < kSerialWork,
                       [&](int64_t row) { convert(pb + row * n, wide + row * n, n); });
        parallel_for(pool, so.batch * blocks, serial, [&](int64_t task) {
          int64_t i = task / blocks, m0 = task % blocks * block, m1 = std::min(m, m0 + block);
          float* rows = scratch(kRowsOfTask, (m1 - m0) * k);
          gather_rows(pa + i * sa.step(), a_is_km, m, k, m0, m1, rows);
          O* to = po + (i * m + m0) * n;
          if (widen)
            outer_rows<kRows>(rows, wide + i * sb.step(), k, n, to, m1 - m0);
          else
            outer_rows<kRows>(rows, pb + i * sb.step(), k, n, to, m1 - m0);
        });
        return ffi::Error::Success();
      });
    });
  });
}

ffi::Error guarded_dot(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, bool b_is_kn,
                       ffi::Result<ffi::AnyBuffer> out) {
  return guarded([&] { return dot_call(pool, a, b, b_is_kn, out); });
}

ffi::Error guarded_outer(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, bool a_is_km,
                         ffi::Result<ffi::AnyBuffer> out) {
  return guarded([&] { return outer_call(pool, a, b, a_is_km, out); });
}

}  // namespace anex

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(anex_dot, anex::guarded_dot,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Attr<bool>("b_is_kn")
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(anex_outer, anex::guarded_outer,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Attr<bool>("a_is_km")
                                  .Ret<ffi::AnyBuffer>());
#pragma GCC visibility pop

// Whether this processor has the instructions that the build chose (see setup.py).
extern "C" __attribute__((visibility("default"))) int anex_runs_here() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}
