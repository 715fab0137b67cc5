// What a kernel translated from PTX calls: who it is, checks of its memory accesses, barriers, exchanges within the warp.
// Every kernel is compiled with this header, so it includes no other.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef _Float16 f16;

// A site is a number that stands for a source line, see _ptx.py.
typedef u32 Site;

struct Place {
  u32 tid[3], ctaid[3], ntid[3], nctaid[3], lane;
  u32 lanes;  // those that the warp has, one bit each
};

enum How : u32 {
  READ = 1,
  WRITE = 2,
  ATOMIC_BIT = 4,
  CACHED_BIT = 8,
  ATOMIC = READ | WRITE | ATOMIC_BIT,
  ATOMIC_READ = READ | ATOMIC_BIT,
  ATOMIC_WRITE = WRITE | ATOMIC_BIT,
  READ_ONLY = READ | CACHED_BIT,  // ld.global.nc: may give what was there before the launch
};
enum Reduction : u32 { COUNT, ALL, ANY };

extern "C" {
extern const Place* gpu_place;  // of the running thread
extern u8 gpu_shared[];         // shared memory of the running block
extern i64 gpu_jumps_left;      // backward jumps until the launch is taken to be endless

void gpu_access(u64 address, u32 size, How how, Site site);
void gpu_local_access(u64 address, u32 size, Site site);
void gpu_fence();
u32 gpu_barrier(Reduction reduction, bool predicate, Site site);
void gpu_syncwarp(u32 mask, Site site);
// Gives every lane in the mask the values of all: 32 of them, valid until the thread's next exchange. Lanes exchange with
// those that do the same operation.
const u64* gpu_exchange(u32 operation, u32 mask, u64 value, Site site);
u32 gpu_activemask();
void gpu_yield();
[[noreturn]] void gpu_fail(const char* what, Site site);
}
