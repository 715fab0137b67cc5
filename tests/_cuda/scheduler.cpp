// Runs the blocks of a launch one after another, each thread of a block as a fiber of this one OS thread.
//
// A thread runs until it waits or leaves; then the next is chosen by the launch's order. This is a deterministic schedule that
// CUDA allows; orders and preemption make others.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <algorithm>
#include <vector>
#include "launch.h"

const Launch* launch;
Thread* running;
u32 block_serial, block_number, epoch, first_serial;
static std::vector<u32> block_order;
u32 number_of(u32 serial) { return block_order[serial - first_serial]; }

extern "C" {
const Place* gpu_place;
alignas(4096) u8 gpu_shared[512 << 10];
i64 gpu_jumps_left;
}
static const i64 MOST_JUMPS = 100'000'000;

// ---- fibers: makecontext begins one, setjmp and longjmp switch, which saves the system call of swapcontext

static const size_t STACK = 256 << 10;
struct Fiber {
  jmp_buf state;
  u8* stack;
  bool begun;
};
static Fiber main_fiber = {{}, nullptr, true}, *current = &main_fiber;
static std::vector<Fiber*> fibers, idle;

static void fiber_body();

static Fiber* idle_fiber() {
  if (idle.empty()) {
    Fiber* fiber = new Fiber();
    fiber->stack = (u8*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(fiber->stack, 4096, PROT_NONE);  // an overflow ends the process rather than spoil memory
    fibers.push_back(fiber);
    return fiber;
  }
  Fiber* fiber = idle.back();
  idle.pop_back();
  return fiber;
}

static void resume(Fiber* next) {
  Fiber* self = current;
  if (next == self) return;
  current = next;
  if (_setjmp(self->state)) return;  // resumed
  if (next->begun) _longjmp(next->state, 1);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = next->stack;
  context.uc_stack.ss_size = STACK;
  makecontext(&context, fiber_body, 0);
  next->begun = true;
  setcontext(&context);
}

bool on_own_stack(u64 address, u32 size) {
  const u64 offset = address - u64(current->stack);
  return offset < STACK && offset + size <= STACK;
}

// ---- failure: the launch ends, its fibers are left where they are and begin anew

static std::string report;
static bool failed;

void fail(const char* format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  report = text;
  failed = true;
  for (Fiber* fiber : fibers) fiber->begun = false;
  current = &main_fiber;
  _longjmp(main_fiber.state, 1);
}
extern "C" void gpu_fail(const char* what, Site site) {
  fail("%s, thread %u of block %u\n  site %u", what, running->number, block_number, site);
}

// ---- choosing the next thread

static u64 random_state;
u32 random_below(u32 end) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return u32(random_state >> 32) % end;
}

static std::vector<Thread> threads;
static u32 live;
static std::vector<u64> ready_bits;  // a bit for each thread that can run

static void set_ready(Thread& thread) {
  thread.state = READY;
  ready_bits[thread.number / 64] |= 1ull << thread.number % 64;
}
static void set_waiting(State state, Site site) {
  running->state = state;
  running->site = site;
  ready_bits[running->number / 64] &= ~(1ull << running->number % 64);
}

static Thread* next_from(u32 number) {  // the first that can run, from this one on
  for (u32 word = number / 64; word < ready_bits.size(); word++) {
    u64 bits = ready_bits[word];
    if (word == number / 64) bits &= ~0ull << number % 64;
    if (bits) return &threads[word * 64 + __builtin_ctzll(bits)];
  }
  return nullptr;
}
static Thread* pick() {
  if (launch->order == FORWARD) return next_from(0);
  if (launch->order == RANDOM) {
    Thread* thread = next_from(random_below(u32(threads.size())));
    return thread ? thread : next_from(0);
  }
  for (size_t word = ready_bits.size(); word-- > 0;) {
    if (ready_bits[word]) return &threads[word * 64 + 63 - __builtin_clzll(ready_bits[word])];
  }
  return nullptr;
}

static void fail_deadlock() {
  u32 at_barrier = 0, in_warp = 0;
  Site barrier_site = 0, warp_site = 0;
  for (const Thread& thread : threads) {
    if (thread.state == AT_BARRIER) at_barrier++, barrier_site = thread.site;
    if (thread.state == IN_WARP) in_warp++, warp_site = thread.site;
  }
  std::string sites;
  if (at_barrier) sites += "\n  barrier, site " + std::to_string(barrier_site);
  if (in_warp) sites += "\n  warp, site " + std::to_string(warp_site);
  fail("deadlock in block %u: %u threads wait in __syncthreads, %u for lanes of their warp, %zu have left%s", block_number, at_barrier,
       in_warp, threads.size() - live, sites.c_str());
}

static void run(Thread* thread) {
  running = thread;
  gpu_place = &thread->place;
  if (thread->state == NEW) {
    thread->state = READY;
    thread->fiber = idle_fiber();
  }
  resume(thread->fiber);
}
void yield() {
  run(pick());
}
static void wait(State state, Site site) {
  set_waiting(state, site);
  Thread* next = pick();
  if (!next) fail_deadlock();
  run(next);
}

// ---- barriers

static struct {
  u32 waiting, count;
  Site site;
} barrier;
static u32 barrier_results[3];

static void open_barrier() {
  barrier_results[COUNT] = barrier.count;
  barrier_results[ALL] = barrier.count == barrier.waiting;
  barrier_results[ANY] = barrier.count > 0;
  barrier = {};
  epoch++;
  for (Thread& thread : threads) set_ready(thread);
}
extern "C" u32 gpu_barrier(Reduction reduction, bool predicate, Site site) {
  if (barrier.waiting && barrier.site != site)
    fail("divergent barrier: thread %u of block %u is at another __syncthreads than the threads before it\n  site %u\n  before, site %u",
         running->number, block_number, site, barrier.site);
  if (live < threads.size())
    fail("divergent barrier: __syncthreads where %zu threads of block %u have left the kernel\n  site %u", threads.size() - live,
         block_number, site);
  barrier.site = site;
  barrier.count += predicate;
  barrier.waiting++;
  if (barrier.waiting == live) {
    open_barrier();
    yield();
  } else {
    wait(AT_BARRIER, site);
  }
  return barrier_results[reduction];
}

// ---- the warp

struct Exchange {
  u32 operation, mask, arrived;  // mask 0: free
  Site site;
  u64 values[32];
};
struct Warp {
  u32 live;
  Exchange exchanges[32];  // lanes may be divided into as many groups
};
static std::vector<Warp> warps;
static const u32 SYNC = 1000;  // the operation of __syncwarp

static Exchange& exchange_of(Warp& warp, u32 operation, u32 mask, Site site) {
  const u32 me = 1u << running->place.lane;
  Exchange* free = nullptr;
  for (Exchange& exchange : warp.exchanges) {
    if (!exchange.mask) {
      if (!free) free = &exchange;
    } else if (exchange.mask & me) {
      if (exchange.mask == mask && exchange.operation == operation) return exchange;
      fail("wrong mask: thread %u of block %u calls a warp operation with mask %08x, but lanes that count on it wait with mask %08x or "
           "in another operation\n  site %u\n  before, site %u",
           running->number, block_number, mask, exchange.mask, site, exchange.site);
    } else if (exchange.mask & mask) {
      fail("wrong mask: thread %u of block %u calls a warp operation with mask %08x, but some of its lanes wait with mask %08x\n"
           "  site %u\n  before, site %u",
           running->number, block_number, mask, exchange.mask, site, exchange.site);
    }
  }
  *free = {operation, mask, 0, site, {}};
  return *free;
}

// After __syncwarp each of these lanes has seen what any of them had seen or done.
static void join_clocks(Thread* lanes, u32 mask) {
  u32 joined[32] = {};
  for (u32 lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    for (u32 i = 0; i < 32; i++) joined[i] = std::max(joined[i], lanes[lane].seen[i]);
    joined[lane] = ++lanes[lane].clock;
  }
  for (u32 lane = 0; lane < 32; lane++) {
    if (mask >> lane & 1) memcpy(lanes[lane].seen, joined, sizeof joined);
  }
}

extern "C" const u64* gpu_exchange(u32 operation, u32 mask, u64 value, Site site) {
  Warp& warp = warps[running->number / 32];
  const u32 me = 1u << running->place.lane;
  mask &= running->place.lanes;
  if (!(mask & me))
    fail("wrong mask: thread %u of block %u calls a warp operation with mask %08x, without itself\n  site %u", running->number,
         block_number, mask, site);
  if (mask & ~warp.live)
    fail("wrong mask: thread %u of block %u calls a warp operation with mask %08x, of which lanes %08x have left the kernel\n  site %u",
         running->number, block_number, mask, mask & ~warp.live, site);
  Exchange& exchange = exchange_of(warp, operation, mask, site);
  exchange.values[running->place.lane] = value;
  exchange.arrived |= me;
  if (exchange.arrived != mask) {
    wait(IN_WARP, site);
    return running->inbox;
  }
  Thread* first = running - running->place.lane;
  if (operation == SYNC) join_clocks(first, mask);
  for (u32 lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    memcpy(first[lane].inbox, exchange.values, sizeof exchange.values);
    set_ready(first[lane]);
  }
  exchange.mask = 0;
  yield();
  return running->inbox;
}
extern "C" void gpu_syncwarp(u32 mask, Site site) { gpu_exchange(SYNC, mask, 0, site); }
extern "C" u32 gpu_activemask() { return 1u << running->place.lane; }  // the least that CUDA promises
extern "C" void gpu_fence() { running->fenced = true; }
extern "C" void gpu_yield() { yield(); }

// ---- the launch

static void leave() {
  running->state = LEFT;
  ready_bits[running->number / 64] &= ~(1ull << running->number % 64);
  live--;
  Warp& warp = warps[running->number / 32];
  const u32 me = 1u << running->place.lane;
  warp.live &= ~me;
  if (barrier.waiting)
    fail("divergent barrier: thread %u of block %u left the kernel while %u others wait in __syncthreads\n  site %u", running->number,
         block_number, barrier.waiting, barrier.site);
  for (const Exchange& exchange : warp.exchanges) {
    if (exchange.mask & me)
      fail("wrong mask: thread %u of block %u left the kernel, but lanes of its warp wait for it with mask %08x\n  site %u",
           running->number, block_number, exchange.mask, exchange.site);
  }
}

static void fiber_body() {
  for (;;) {
    launch->kernel(launch->args);
    leave();
    Thread* next = pick();
    idle.push_back(current);
    if (next) {
      run(next);  // often in this same fiber
    } else {
      if (live) fail_deadlock();
      resume(&main_fiber);
    }
  }
}

static void begin_block(u32 number) {
  block_number = number;
  epoch = 0;
  barrier = {};
  live = u32(threads.size());
  idle = fibers;
  memset(gpu_shared, 0xcd, launch->shared_bytes);
  const u32 *g = launch->grid, *b = launch->block;
  ready_bits.assign((live + 63) / 64, 0);
  for (u32 i = 0; i < live; i++) {
    Thread& thread = threads[i];
    const u32 lanes = std::min(32u, live - i / 32 * 32);
    thread.place = {{i % b[0], i / b[0] % b[1], i / b[0] / b[1]}, {number % g[0], number / g[0] % g[1], number / g[0] / g[1]},
                    {b[0], b[1], b[2]}, {g[0], g[1], g[2]}, i % 32, lanes == 32 ? ~0u : (1u << lanes) - 1};
    thread.number = i;
    set_ready(thread);
    thread.state = NEW;
    thread.clock = 0;
    thread.fenced = false;
    memset(thread.seen, 0, sizeof thread.seen);
    warps[i / 32].live = thread.place.lanes;
  }
  for (Warp& warp : warps) {
    for (Exchange& exchange : warp.exchanges) exchange.mask = 0;
  }
  checker_begin_block();
}

extern "C" int gpu_launch(const Launch* the_launch) {
  launch = the_launch;
  failed = false;
  random_state = 0x9e3779b97f4a7c15ull * (launch->seed + 1ull);
  gpu_jumps_left = MOST_JUMPS;
  threads.resize(launch->block[0] * launch->block[1] * launch->block[2]);
  warps.resize((threads.size() + 31) / 32);
  block_order.resize(size_t(launch->grid[0]) * launch->grid[1] * launch->grid[2]);
  for (u32 i = 0; i < block_order.size(); i++) block_order[i] = launch->order == REVERSE ? u32(block_order.size()) - 1 - i : i;
  if (launch->order == RANDOM)
    for (u32 i = u32(block_order.size()); i > 1; i--) std::swap(block_order[i - 1], block_order[random_below(i)]);
  first_serial = block_serial + 1;
  checker_begin_launch();
  for (u32 number : block_order) {
    block_serial++;
    begin_block(number);
    run(pick());  // comes back when all threads have left, or one has failed
    if (failed) return 1;
  }
  return 0;
}
extern "C" const char* gpu_report() { return report.c_str(); }
