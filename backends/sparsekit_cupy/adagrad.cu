// Adagrad on the rows that a gradient names (Duchi et al. 2011), fused with the sum of its duplicates.
#include "optim.cuh"

// In a flush, only the decay of the steps that rows sat out, for all rows of the table (`table_rows` of them). Blocks of 8 warps, a
// warp a row, warps loop. Reads each gradient value once (twice with a rowwise sum), moves each touched row of param and state_sum
// once in and once out. Writes nothing where *bad. Race-free: a row belongs to one warp, a column to one lane, what there is once a
// row to lane 0, after __syncwarp.
template <typename P, typename S>
__global__ void __launch_bounds__(256, 2) sparsekit_adagrad(const u64* __restrict__ word, i64 position_bits, const i64* __restrict__ start,
                                                         const i64* __restrict__ runs, const i64* __restrict__ rows, const int* __restrict__ bad,
                                                         const P* __restrict__ values, i64 width,
                                                         const typename Wide<P>::type* __restrict__ partial, i64 table_rows, P* param,
                                                         S* state_sum, i64* last_step, const double* __restrict__ history_rows,
                                                         const i64* __restrict__ row_numbers, i64 key0, i64 key1, i64 flags, i64 step,
                                                         double lr, double decay, double eps, double weight_decay) {
  typedef typename Real<P, S>::type T;
  T* const as = nullptr;
  const bool flush = flags & FLUSH, lazy = flags & LAZY, rowwise = flags & ROWWISE, at_random = flags & AT_RANDOM;
  if (!flush && *bad) return;
  const Gradient<P> gradient = {word, position_bits, start, runs, rows, values, width, partial};
  const Table<P> params = {param, width, key0, row_numbers};
  const Table<S> sums = {state_sum, rowwise ? 1 : width, key1, row_numbers};
  const History history = {history_rows};
  const T rate = real(lr, as), e = real(eps, as);
  const i64 lane = this_lane(), end = flush ? step : step - 1, count = flush ? table_rows : *runs;
  for (i64 r = this_warp(); r < count; r += all_warps()) {
    const Run run = flush ? Run() : gradient.run(r);
    const i64 row = flush ? r : rows[run.entry(run.first)];
    if (flush && last_step[row] >= step) continue;
    const i64 last = up_to_date(last_step, row, end);
    const T decayed = real(lazy && last < end ? history.factor(last, end) : 1.0, as);
    const auto caught_up = [&](i64 c) {
      const T p = params.load(row, c, as);
      return lazy && last < end ? mul(p, decayed) : p;
    };
    const auto gradient_of = [&](i64 c, T p) {
      const T g = gradient.template sum<1>(run, c, flags & MAXIMIZE, as).at[0];
      return weight_decay != 0 ? add(g, mul(real(weight_decay, as), p)) : g;
    };
    T row_sum = T();
    if (rowwise && !flush) {
      MeanOfSquares squares;
      for (i64 c = lane; c - lane < width; c += 32) squares.push(c < width ? gradient_of(c, caught_up(c)) : T(), width - (c - lane));
      row_sum = add(sums.load(row, 0, as), real(squares.mean(width), as));
    }
    for (i64 c = lane; c < width; c += 32) {
      T p = caught_up(c);
      if (!flush) {
        const T g = gradient_of(c, p);
        if (decay != 1) p = mul(p, real(decay, as));
        const T sum = rowwise ? row_sum : add(sums.load(row, c, as), mul(g, g));
        p = sub(p, mul(rate, divide(g, add(root(sum), e))));
        if (!rowwise) sums.store(row, c, sum, at_random);
      }
      params.store(row, c, p, at_random);
    }
    __syncwarp();
    if (lane == 0) {
      if (rowwise && !flush && width) sums.store(row, 0, row_sum, at_random);
      if (last_step) last_step[row] = step;
    }
  }
}
