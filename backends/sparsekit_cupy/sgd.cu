// SGD with momentum on the rows that a gradient names, fused with the sum of its duplicates.
#include "optim.cuh"

// By how much of its buffer a row moves in steps last + 1 ... end, until what is left does not show in the sum.
__device__ __forceinline__ double sum_of_sizes(i64 last, i64 end, const History& history, double unit, double momentum, bool lazy,
                                               bool nesterov) {
  double total = 0, weight = 1;
  const double largest = history.largest(end), tail = divide(momentum, sub(1.0, momentum));
  for (i64 s = last + 1; s <= end; s++) {
    weight = mul(weight, momentum);
    const double size = mul(history.lr(s), weight);
    total = add(total, lazy ? mul(size, history.factor(s, end)) : size);
    if (mul(mul(largest, weight), tail) <= mul(unit, total)) break;
  }
  return nesterov ? mul(total, momentum) : total;
}

// In a flush, only the steps that rows sat out, for all rows of the table (`table_rows` of them). Blocks of 8 warps, a warp a row,
// warps loop. Reads each gradient value once, moves each touched row of param and momentum_buffer once in and once out. Writes
// nothing where *bad. Race-free: a row belongs to one warp, a column to one lane, last_step to lane 0, after __syncwarp.
template <typename P, typename S>
__global__ void __launch_bounds__(256, 2) sparsekit_sgd(const u64* __restrict__ word, i64 position_bits, const i64* __restrict__ start,
                                                     const i64* __restrict__ runs, const i64* __restrict__ rows, const int* __restrict__ bad,
                                                     const P* __restrict__ values, i64 width,
                                                     const typename Wide<P>::type* __restrict__ partial, i64 table_rows, P* param,
                                                     S* momentum_buffer, i64* last_step, const double* __restrict__ history_rows,
                                                     const i64* __restrict__ row_numbers, i64 key0, i64 key1, i64 flags, i64 step, double lr,
                                                     double decay, double momentum, double dampening, double weight_decay) {
  typedef typename Real<P, S>::type T;
  T* const as = nullptr;
  const bool flush = flags & FLUSH, lazy = flags & LAZY, nesterov = flags & NESTEROV, at_random = flags & AT_RANDOM;
  const bool exact = flags & EXACT, masked = !(flags & (EXACT | DECAYED)), buffered = momentum_buffer;
  if (!flush && *bad) return;
  const Gradient<P> gradient = {word, position_bits, start, runs, rows, values, width, partial};
  const Table<P> params = {param, width, key0, row_numbers};
  const Table<S> buffers = {momentum_buffer, width, key1, row_numbers};
  const History history = {history_rows};
  const double unit = sizeof(T) == 8 ? 1.0 / (1ll << 53) : 1.0 / (1 << 24);
  const T rate = real(lr, as), kept = real(momentum, as), taken = real(sub(1.0, dampening), as);
  const i64 lane = this_lane(), end = flush ? step : step - 1, count = flush ? table_rows : *runs;
  for (i64 r = this_warp(); r < count; r += all_warps()) {
    const Run run = flush ? Run() : gradient.run(r);
    const i64 row = flush ? r : rows[run.entry(run.first)];
    if (flush && last_step[row] >= step) continue;
    const i64 last = up_to_date(last_step, row, end);
    const bool behind = last < end;
    const T decayed = real(behind && lazy ? history.factor(last, end) : 1.0, as);
    bool moving = false;  // the same for all lanes
    if (behind && buffered && exact) {
      for (i64 c = lane; c < width; c += 32) moving = moving || !is_zero(buffers.load(row, c, as));
      moving = __any_sync(ALL_LANES, moving);
    }
    const T moves = real(moving ? sum_of_sizes(last, end, history, unit, momentum, lazy, nesterov) : 0.0, as);
    const T aged = real(behind && buffered && !masked ? power(momentum, end - last) : 1.0, as);
    for (i64 c = lane; c < width; c += 32) {
      T p = params.load(row, c, as), b = buffered ? buffers.load(row, c, as) : T();
      if (behind) {
        if (lazy) p = mul(p, decayed);
        if (moving) p = sub(p, mul(moves, b));
        if (buffered && !masked) b = mul(b, aged);
      }
      if (!flush) {
        T g = gradient.template sum<1>(run, c, flags & MAXIMIZE, as).at[0];
        if (weight_decay != 0) g = add(g, mul(real(weight_decay, as), p));
        if (decay != 1) p = mul(p, real(decay, as));
        if (buffered) {
          b = step == 1 ? g : add(mul(b, kept), mul(g, taken));
          g = nesterov ? add(g, mul(b, kept)) : b;
        }
        p = sub(p, mul(rate, g));
      }
      params.store(row, c, p, at_random);
      if (buffered) buffers.store(row, c, b, at_random);
    }
    __syncwarp();
    if (lane == 0 && last_step) last_step[row] = step;
  }
}
