// What the scheduler (scheduler.cpp) and the checker of memory accesses (checker.cpp) know of each other.
#pragma once
#include <string>
#include "runtime.h"

// Memory that the kernel may touch. `argument` is the one that points to it, or one of the names below.
struct Region {
  u64 begin, end;
  i32 argument;
};
enum : i32 { REACHED = -1, SHARED = -2, CONSTANT = -3 };

enum Order : u32 { FORWARD, REVERSE, RANDOM };

struct Launch {
  void (*kernel)(void** args);
  void** args;
  u32 grid[3], block[3];
  const Region* regions;
  u32 region_count;
  u32 shared_bytes;
  u32 order, seed;
  u32 preempt;  // one memory access in so many hands over to another thread; 0: none
};

enum State : u8 { NEW, READY, AT_BARRIER, IN_WARP, LEFT };
struct Fiber;
struct Thread {
  Place place;
  u32 number;  // within its block
  State state;
  Fiber* fiber;
  Site site;     // where it waits
  u32 clock;     // of __syncwarp
  u32 seen[32];  // what the thread has seen of its warp: all that lane i did before this time of i's clock
  bool fenced;
  u64 inbox[32];  // of the last exchange
};

extern const Launch* launch;
extern Thread* running;
extern u32 block_serial;  // blocks are counted through all launches of this process, from 1
extern u32 block_number;  // in the grid
extern u32 epoch;         // barriers that the block has passed
extern u32 first_serial;  // of this launch
u32 number_of(u32 serial);
u32 random_below(u32 end);
void yield();
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

void checker_begin_launch();
void checker_begin_block();
void checker_atomic(u64 address);  // what an atomic tells of other blocks
bool on_own_stack(u64 address, u32 size);
