// What the optimizer steps share: the gradient of a row, functions of float64, tables in the arithmetic type and back.
//
// A step is one kernel, a warp a row: lane l has columns l, l + 32 and so on. What all lanes know of a row (its number, the steps it
// sat out, the factors of those) each computes for itself. Row arrays are written by lane 0 after __syncwarp, when all have read.
// The arithmetic is spelled out in sparsekit/_protocol.py.
#include "reduce.cuh"

static const u32 ALL_LANES = 0xffffffffu;
static const int WARPS = 8;  // of a block
static const int REST_EVERY = 16;  // steps of a replay between looks at whether the rest is too small to matter

enum Flags { FLUSH = 1, MAXIMIZE = 2, LAZY = 4, DECAYED = 8, EXACT = 16, ROWWISE = 32, AT_RANDOM = 64, NESTEROV = 128 };

// The arithmetic type of parameters P with states S.
template <typename P, typename S> struct Real { typedef float type; };
template <typename P> struct Real<P, double> { typedef double type; };
template <typename S> struct Real<double, S> { typedef double type; };
template <> struct Real<double, double> { typedef double type; };

// To the arithmetic type, which a pointer carries; of a scalar of float64 that is a rounding.
template <typename A> __device__ __forceinline__ float real(A a, float*) { return to_float(a); }
template <typename A> __device__ __forceinline__ double real(A a, double*) { return to_double(a); }

__device__ __forceinline__ float negative(float a) { return __uint_as_float(__float_as_uint(a) ^ 1u << 31); }
__device__ __forceinline__ double negative(double a) { return __longlong_as_double(__double_as_longlong(a) ^ 1ll << 63); }
template <typename T> __device__ __forceinline__ T larger(T a, T b) { return is_nan(b) || less(a, b) ? b : a; }
template <typename T> __device__ __forceinline__ bool is_zero(T a) { return to_double(a) == 0; }

__device__ __forceinline__ double power(double x, i64 n) {
  double r = 1;
  for (; n > 0; n >>= 1) {
    if (n & 1) r = mul(r, x);
    x = mul(x, x);
  }
  return r;
}

__device__ __forceinline__ double exponential(double x) {  // x <= 0
  if (x < -800) x = -800;
  const double n = floor(add(mul(x, 1.4426950408889634), 0.5));
  const double y = sub(sub(x, mul(n, 0.693147180369123816490)), mul(n, 1.90821492927058770002e-10));
  double s = 1;
  for (int i = 13; i > 0; i--) s = add(1.0, divide(mul(s, y), (double)i));
  return n > 0 ? mul(2.0, s) : mul(s, power(0.5, (i64)-n));
}

// Of step s in row s - 1: (lr, logarithm of all decay up to and including it, largest lr so far).
struct History {
  const double* row;
  __device__ double lr(i64 s) const { return row[3 * (s - 1)]; }
  __device__ double largest(i64 s) const { return row[3 * (s - 1) + 2]; }
  __device__ double decay(i64 s) const { return s > 0 ? row[3 * (s - 1) + 1] : 0; }
  __device__ double factor(i64 first, i64 last) const { return exponential(sub(decay(last), decay(first))); }  // of first + 1 ... last
};

// The entries of a gradient, sorted by row.
template <typename P> struct Gradient {
  const u64* word;
  i64 position_bits;
  const i64 *start, *runs, *rows;
  const P* values;
  i64 width;
  const typename Wide<P>::type* partial;

  __device__ Run run(i64 r) const { return {word, position_bits ? ~0ull >> (64 - position_bits) : 0, start[r], start[r + 1]}; }
  // V elements of a row's gradient from column c on: summed, rounded to P as coalesce would, then in the arithmetic type.
  template <int V, typename T> __device__ Pack<T, V> sum(const Run& run, i64 c, bool maximize, T*) const {
    const auto total = reduce_run<Sum, V>(run, values, width, c, partial);
    Pack<T, V> g;
#pragma unroll
    for (int v = 0; v < V; v++) {
      const T x = real(narrow(total.at[v], (P*)nullptr), (T*)nullptr);
      g.at[v] = maximize ? negative(x) : x;
    }
    return g;
  }
};

// A left-to-right sum in blocks of 32, of blocks of 32, and so on, fed one value at a time.
struct Tree {
  static const int LEVELS = 6;  // 32**6 values, each of 32 columns: a row of 2**35, more than any memory holds
  double level[LEVELS];
  __device__ void push(double x, i64 number) {  // number: how many came before
#pragma unroll
    for (int l = 0; l < LEVELS; l++) {
      const int filled = (int)(number >> 5 * l & 31);
      level[l] = filled ? add(level[l], x) : x;
      if (filled < BLOCK - 1) return;
      x = level[l];
    }
  }
  __device__ double result(i64 number) {  // number > 0: how many came
    double x;
    bool open = false;
#pragma unroll
    for (int l = 0; l < LEVELS; l++) {
      if (!(number >> 5 * l & 31)) continue;
      x = open ? add(level[l], x) : level[l];
      open = true;
    }
    return x;
  }
};

// The mean over a row of squares in float64, by the contract's tree: 32 columns at a time are one of its blocks.
struct MeanOfSquares {
  Tree tree;
  i64 blocks = 0;
  // All lanes together; lanes beyond the row bring anything.
  template <typename T> __device__ void push(T g, i64 columns) {
    const double x = to_double(g), square = mul(x, x);
    double total = __shfl_sync(ALL_LANES, square, 0);
    for (int lane = 1; lane < 32 && lane < columns; lane++) total = add(total, __shfl_sync(ALL_LANES, square, lane));
    tree.push(total, blocks++);
  }
  __device__ double mean(i64 width) { return divide(tree.result(blocks), (double)width); }
};

// 64 bits that look drawn at random: the finaliser of splitmix64, for an element of a table.
__device__ __forceinline__ u64 drawn(i64 key, i64 position) {
  u64 z = (u64)key + (u64)(position + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}

// To one of the two neighbours in 16 bits, the nearer the likelier.
__device__ __forceinline__ BFloat16 narrow_at_random(float x, u64 bits, BFloat16*) {
  if (is_nan(x)) return narrow(x, (BFloat16*)nullptr);
  return {(u16)((__float_as_uint(x) + (u32)(bits >> 48)) >> 16)};
}
__device__ __forceinline__ Half narrow_at_random(float x, u64 bits, Half*) {
  const u32 pattern = __float_as_uint(x), magnitude = pattern & 0x7fffffffu;
  u32 half;
  if (magnitude > 0x7f800000u) half = 0x7e00;
  else if (magnitude >= 0x47800000u) half = 0x7c00;  // 65536 and more
  else if (magnitude >= 0x38800000u) half = (magnitude - 0x38000000u + (u32)(bits >> 51)) >> 13;
  else {
    const float units = mul(__uint_as_float(magnitude), 16777216.0f);  // of the subnormals, 2**-24
    const u32 whole = (u32)units;
    const float chance = mul((float)(bits >> 40), 1.0f / 16777216.0f);
    half = whole + (less(chance, sub(units, (float)whole)) ? 1 : 0);
  }
  return {(u16)(half | (pattern >> 16 & 0x8000u))};
}

// One table of a step, (n, width) of type S.
template <typename S> struct Table {
  S* at;
  i64 width;
  i64 key;  // for rounding at random
  const i64* row_numbers;  // or null

  template <typename T> __device__ T load(i64 row, i64 c, T*) const { return real(at[row * width + c], (T*)nullptr); }
  template <typename T> __device__ void store(i64 row, i64 c, T x, bool at_random) const {
    round(at + row * width + c, x, at_random, row, c);
  }

 private:
  template <typename N, typename T> __device__ void round(N* to, T x, bool at_random, i64 row, i64 c) const {
    if (at_random) *to = narrow_at_random(to_float(x), drawn(key, (row_numbers ? row_numbers[row] : row) * width + c), to);
    else *to = narrow(to_float(x), to);
  }
  template <typename T> __device__ void round(float* to, T x, bool, i64, i64) const { *to = to_float(x); }
  template <typename T> __device__ void round(double* to, T x, bool, i64, i64) const { *to = to_double(x); }
};

__device__ __forceinline__ i64 this_warp() { return (i64)blockIdx.x * WARPS + (threadIdx.x >> 5); }
__device__ __forceinline__ i64 all_warps() { return (i64)gridDim.x * WARPS; }
__device__ __forceinline__ i64 this_lane() { return threadIdx.x & 31; }

// The step as of which a row is up to date, within 0 ... end.
__device__ __forceinline__ i64 up_to_date(const i64* last_step, i64 row, i64 end) {
  if (!last_step) return end;
  const i64 last = last_step[row];
  return last < 0 ? 0 : last > end ? end : last;
}
