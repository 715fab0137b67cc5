// The contract's order of a sum (sparsekit/_protocol.py), as coalesce and the optimizer steps share it.
//
// Runs of up to 32 entries are reduced by the thread that needs the result. Longer ones beforehand: cut into chunks of 1024 = 32 * 32
// entries, each reduced to one row of `partial` by sparsekit_reduce_chunks, and those rows to one by sparsekit_join_chunks.
#include "common.cuh"

static const int BLOCK = 32;
static const i64 CHUNK = BLOCK * BLOCK;

template <typename W> __device__ __forceinline__ Complex<W> add(Complex<W> a, Complex<W> b) { return {add(a.re, b.re), add(a.im, b.im)}; }
template <typename W> __device__ __forceinline__ Complex<W> mul(Complex<W> a, Complex<W> b) {
  return {sub(mul(a.re, b.re), mul(a.im, b.im)), add(mul(a.re, b.im), mul(a.im, b.re))};
}
template <typename W> __device__ __forceinline__ W add(W a, W b) { return (W)(a + b); }  // integers wrap
template <typename W> __device__ __forceinline__ W mul(W a, W b) { return (W)(a * b); }
template <typename W> __device__ __forceinline__ bool less(W a, W b) { return a < b; }
__device__ __forceinline__ bool less(float a, float b) { return to_double(a) < to_double(b); }
template <typename W> __device__ __forceinline__ bool is_nan(W) { return false; }
template <typename W> __device__ __forceinline__ W divide_by(W a, i64 n) { return divide(a, (W)n); }
template <typename W> __device__ __forceinline__ Complex<W> divide_by(Complex<W> a, i64 n) { return {divide_by(a.re, n), divide_by(a.im, n)}; }

// The reductions. min and max propagate NaN.
struct Sum {
  template <typename W> __device__ static W of(W a, W b) { return add(a, b); }
  template <typename W> __device__ static W end(W a, i64) { return a; }
};
struct Mean : Sum {
  template <typename W> __device__ static W end(W a, i64 n) { return divide_by(a, n); }
};
struct Prod : Sum {
  template <typename W> __device__ static W of(W a, W b) { return mul(a, b); }
};
struct Min : Sum {
  template <typename W> __device__ static W of(W a, W b) { return is_nan(a) || less(a, b) ? a : b; }
};
struct Max : Sum {
  template <typename W> __device__ static W of(W a, W b) { return is_nan(a) || less(b, a) ? a : b; }
};

// Which rows of values (n, width) are to be reduced to one: the words first ... last - 1 of a run, see group.cu.
struct Run {
  const u64* word;
  u64 position_mask;
  i64 first, last;
  __device__ i64 entry(i64 i) const { return (i64)(word[i] & position_mask); }
};

// The first row of `partial` that belongs to a long run. No two long runs share a row: a run of n > 32 entries has
// ceil(n / 1024) <= floor(n / 32) chunks, and the next run begins n words later.
__device__ __forceinline__ i64 first_chunk(i64 first) { return first / BLOCK; }

// V columns from column c on of a run, reduced, in the wide type. Reads each entry's values once.
template <typename Op, int V, typename T, typename W>
__device__ __forceinline__ Pack<W, V> reduce_run(const Run& run, const T* __restrict__ values, i64 width, i64 c, const W* __restrict__ partial) {
  Pack<W, V> total;
  const i64 n = run.last - run.first;
  if (n <= BLOCK) {
    Pack<T, V> x = load<V>(values + run.entry(run.first) * width + c);
#pragma unroll
    for (int v = 0; v < V; v++) total.at[v] = widen(x.at[v]);
    for (i64 i = run.first + 1; i < run.last; i++) {
      x = load<V>(values + run.entry(i) * width + c);
#pragma unroll
      for (int v = 0; v < V; v++) total.at[v] = Op::of(total.at[v], widen(x.at[v]));
    }
  } else {
    const W* row = partial + first_chunk(run.first) * width + c;
    for (int v = 0; v < V; v++) total.at[v] = row[v];
  }
  return total;
}

// The run that has a word: start[r] <= at < start[r + 1], of m runs.
__device__ __forceinline__ i64 run_of(const i64* start, i64 m, i64 at) {
  i64 low = 0, high = m;
  while (high - low > 1) {
    const i64 middle = (low + high) / 2;
    if (start[middle] <= at) low = middle;
    else high = middle;
  }
  return low;
}

// Each chunk of each long run reduced to its row of partial (n / 32 + 1, width). Launched with 2-D blocks: x columns (at most 8)
// by 32 threads; the grid's y goes over tiles of columns. A block looks for the long runs among as many rows of partial as it has
// threads, then takes them one by one. Reads each value of a long run once and start (8 bytes a step of a binary search) for each
// row; writes a wide value for 1024 read. Race-free: a row belongs to one chunk (see first_chunk), a chunk's columns to one block.
template <typename T, typename Op>
__global__ void __launch_bounds__(256, 2) sparsekit_reduce_chunks(const u64* __restrict__ word, i64 n, i64 position_bits,
                                                               const i64* __restrict__ start, const i64* __restrict__ runs,
                                                               const T* __restrict__ values, i64 width,
                                                               typename Wide<T>::type* __restrict__ partial) {
  typedef typename Wide<T>::type W;
  __shared__ W sums[BLOCK][8];
  __shared__ i64 found_first[256], found_row[256];
  __shared__ int found;
  const u64 position_mask = ~0ull >> (64 - position_bits);  // n > 32, so position_bits > 0
  const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
  const i64 m = *runs;
  for (i64 base = (i64)blockIdx.x * threads; base <= n / BLOCK; base += (i64)gridDim.x * threads) {
    if (thread == 0) found = 0;
    __syncthreads();
    // Of the runs that could own a row, the last to begin before word 32 * (row + 1) is the only candidate.
    const i64 row = base + thread;
    const i64 run = run_of(start, m, BLOCK * (row + 1) - 1);
    const i64 first = start[run], length = start[run + 1] - first, chunk = row - first_chunk(first);
    if (length > BLOCK && chunk * CHUNK < length) {
      const int at = atomicAdd(&found, 1);
      found_first[at] = first + chunk * CHUNK;
      found_row[at] = row;
    }
    __syncthreads();
    const int live = found;
    for (int k = 0; k < live; k++) {
      const i64 begin = found_first[k] + (i64)threadIdx.y * BLOCK;
      // The chunk ends with its run: where the key changes, or after 1024 words.
      const u64 key = word[found_first[k]] >> position_bits;
      for (i64 tile = (i64)blockIdx.y * blockDim.x; tile < width; tile += (i64)gridDim.y * blockDim.x) {
        const i64 c = tile + threadIdx.x;
        int length_here = 0;
        W sum = W();
        for (i64 i = begin; i < begin + BLOCK && i < n && word[i] >> position_bits == key; i++) {
          if (c < width) {
            const W x = widen(values[(i64)(word[i] & position_mask) * width + c]);
            sum = length_here ? Op::of(sum, x) : x;
          }
          length_here++;
        }
        sums[threadIdx.y][threadIdx.x] = sum;
        const int blocks = __syncthreads_count(length_here > 0 && threadIdx.x == 0);
        if (threadIdx.y == 0 && c < width) {
          for (int b = 1; b < blocks; b++) sum = Op::of(sum, sums[b][threadIdx.x]);
          partial[found_row[k] * width + c] = sum;
        }
        __syncthreads();  // sums is written anew
      }
    }
    __syncthreads();  // found is written anew
  }
}

// The chunks of each run of more than 1024 entries reduced to the row of its first one. Launched with 2-D blocks: x columns (at most
// 8) by 32 threads; the grid's y goes over tiles of columns, its x over multiples of 1024: of those inside a run the first stands for
// it. Reads and writes little: a row for 1024 entries. Race-free: a run's columns belong to one block, which goes over its rows 1024
// at a time in order and writes one row back after a barrier, never one that is yet to be read.
template <typename T, typename Op>
__global__ void __launch_bounds__(256, 2) sparsekit_join_chunks(const i64* __restrict__ start, const i64* __restrict__ runs, i64 n, i64 width,
                                                             typename Wide<T>::type* partial) {
  typedef typename Wide<T>::type W;
  __shared__ W sums[BLOCK][8];
  const i64 m = *runs;
  for (i64 at = (blockIdx.x + 1) * CHUNK; at < n; at += gridDim.x * CHUNK) {
    const i64 run = run_of(start, m, at), first = start[run], length = start[run + 1] - first;
    if (length <= CHUNK || at - first > CHUNK) continue;  // the same for all threads
    for (i64 tile = (i64)blockIdx.y * blockDim.x; tile < width; tile += (i64)gridDim.y * blockDim.x) {
      const i64 c = tile + threadIdx.x;
      W* const row = partial + first_chunk(first) * width + c;
      for (i64 rows = (length + CHUNK - 1) / CHUNK; rows > 1; rows = (rows + CHUNK - 1) / CHUNK) {
        for (i64 j = 0; j * CHUNK < rows; j++) {
          const i64 begin = j * CHUNK + (i64)threadIdx.y * BLOCK;
          W sum = W();
          for (i64 i = begin; c < width && i < begin + BLOCK && i < rows; i++) sum = i == begin ? row[i * width] : Op::of(sum, row[i * width]);
          sums[threadIdx.y][threadIdx.x] = sum;
          __syncthreads();
          const i64 blocks = (rows - j * CHUNK + BLOCK - 1) / BLOCK;
          if (threadIdx.y == 0 && c < width) {
            for (int b = 1; b < BLOCK && b < blocks; b++) sum = Op::of(sum, sums[b][threadIdx.x]);
            row[j * width] = sum;
          }
          __syncthreads();  // sums is written anew, row is read
        }
      }
    }
  }
}
