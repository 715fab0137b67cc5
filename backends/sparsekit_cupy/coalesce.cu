// The values of coalesce: each run of equal coordinates reduced to one row.
#include "reduce.cuh"

// out (runs, width) from values (n, width). 2-D blocks: x goes over packs of V columns, y over runs; the grid's x over runs, its y
// over columns; both loop. Reads each value once (runs of more than 32 entries from partial instead) and 8 bytes a word for each
// thread in x; writes each result once. Race-free: each thread has its own elements of out.
template <typename T, typename Op, int V>
__global__ void __launch_bounds__(256, 2) sparsekit_reduce(const u64* __restrict__ word, i64 position_bits, const i64* __restrict__ start,
                                                        i64 runs, const T* __restrict__ values, i64 width,
                                                        const typename Wide<T>::type* __restrict__ partial, T* __restrict__ out) {
  const u64 position_mask = position_bits ? ~0ull >> (64 - position_bits) : 0;
  for (i64 r = (i64)blockIdx.x * blockDim.y + threadIdx.y; r < runs; r += (i64)gridDim.x * blockDim.y) {
    const Run run = {word, position_mask, start[r], start[r + 1]};
    for (i64 c = ((i64)blockIdx.y * blockDim.x + threadIdx.x) * V; c < width; c += (i64)gridDim.y * blockDim.x * V) {
      const auto total = reduce_run<Op, V>(run, values, width, c, partial);
      Pack<T, V> rounded;
#pragma unroll
      for (int v = 0; v < V; v++) rounded.at[v] = narrow(Op::end(total.at[v], run.last - run.first), (T*)nullptr);
      store<V>(out + r * width + c, rounded);
    }
  }
}
