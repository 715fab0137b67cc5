// Finds accesses outside what the launch was given, misaligned ones, reads of shared memory that was never written, and races.
//
// For each word of 4 bytes that is touched there is a Cell, which remembers the last write and some reads. Two accesses are a race
// where one writes, not both are atomic, and nothing puts one before the other: the same thread, a barrier between them,
// __syncwarp between lanes of one warp, or between blocks __threadfence and an atomic. Shuffles and votes order nothing.
#include <sys/mman.h>
#include <unordered_map>
#include <vector>
#include "launch.h"

struct Event {
  u32 block, epoch, clock;  // block: its serial, 0 for no event
  Site site;
  u16 thread;
  u8 bytes;  // of the cell's four, one bit each
  u8 how;
};
struct Cell {
  Event write, first_read, last_read, foreign_read;  // reads: of two threads of the block, and one of another block
  u32 initialised_by;  // the block that wrote to this cell of shared memory
  u8 initialised;      // which bytes
};

static const u64 PAGE = 4096;
struct Page {
  u64 base;
  u32 launch;           // the last for which `valid` was made
  u64 valid[PAGE / 64];  // bytes that lie in a region, one bit each
  Cell cells[PAGE / 4];
};

static std::unordered_map<u64, Page*> pages;
static const u32 RECENT = 1024;
static Page* recent[RECENT];
static const size_t MOST_PAGES = 8192;  // 32 MB of arrays and 800 MB of this
static u32 launch_number;

// What other blocks have released to the holder of an atomic's address, and what the running block has acquired of another.
struct Release { u32 block, epoch; u16 thread; };
static std::unordered_map<u64, std::vector<Release>> released;
static std::unordered_map<u32, Release> acquired;

void checker_begin_launch() {
  launch_number++;
  released.clear();
  if (pages.size() < MOST_PAGES) return;
  for (auto& entry : pages) munmap(entry.second, sizeof(Page));
  pages.clear();
  for (Page*& page : recent) page = nullptr;
}
void checker_begin_block() { acquired.clear(); }

static void mark_valid(Page* page) {
  page->launch = launch_number;
  for (u64& word : page->valid) word = 0;
  for (u32 i = 0; i < launch->region_count; i++) {
    const Region& region = launch->regions[i];
    const u64 begin = region.begin > page->base ? region.begin - page->base : 0;
    const u64 end = region.end < page->base + PAGE ? region.end - page->base : PAGE;
    if (region.end <= page->base || region.begin >= page->base + PAGE) continue;
    for (u64 at = begin; at < end; at++) page->valid[at / 64] |= 1ull << at % 64;
  }
}

static Page* page_of(u64 address) {
  const u64 number = address / PAGE;
  Page*& slot = recent[number % RECENT];
  if (!slot || slot->base != number * PAGE) {
    Page*& found = pages[number];
    if (!found) {
      // Zeroed on first touch: a page costs what is used of it.
      found = (Page*)mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      found->base = number * PAGE;
    }
    slot = found;
  }
  if (slot->launch != launch_number) mark_valid(slot);
  return slot;
}

static const char* name_of(How how) { return how & ATOMIC_BIT ? "atomic" : how & WRITE ? "write" : "read"; }

static std::string name_of(const Region& region) {
  if (region.argument == SHARED) return "a shared array";
  if (region.argument == CONSTANT) return "a global variable";
  if (region.argument == REACHED) return "an array within reach";
  return "argument " + std::to_string(region.argument);
}

static std::string where(u64 address) {
  for (u32 i = 0; i < launch->region_count; i++) {
    const Region& region = launch->regions[i];
    if (address >= region.begin && address < region.end) return "byte " + std::to_string(address - region.begin) + " of " + name_of(region);
  }
  return "no array";
}

static void fail_out_of_bounds(u64 address, u32 size, How how, Site site) {
  const Region* nearest = nullptr;
  u64 distance = ~0ull;
  bool past = false;
  for (u32 i = 0; i < launch->region_count; i++) {
    const Region& region = launch->regions[i];
    const bool after = address >= region.begin;
    const u64 d = after ? address + size - region.end : region.begin - address;
    if (d >= distance) continue;
    nearest = &region, distance = d, past = after;
  }
  const std::string what = std::string("out of bounds: ") + name_of(how) + " of " + std::to_string(size) + " bytes, thread " +
                           std::to_string(running->number) + " of block " + std::to_string(block_number);
  if (!nearest) fail("%s, in a launch without arrays\n  site %u", what.c_str(), site);
  fail("%s, %s %llu bytes %s %s\n  site %u", what.c_str(), past ? "ends" : "begins", distance, past ? "after the end of" : "before",
       name_of(*nearest).c_str(), site);
}

// Of an event of this launch.
static bool happened_before(const Event& event) {
  if (event.block == block_serial) {
    if (event.thread == running->number || event.epoch < epoch) return true;
    return event.thread / 32 == running->number / 32 && event.clock < running->seen[event.thread % 32];
  }
  const auto found = acquired.find(event.block);
  if (found == acquired.end()) return false;
  const Release& release = found->second;
  return event.epoch < release.epoch || (event.epoch == release.epoch && event.thread == release.thread);
}

static void check_order(const Event& before, u8 bytes, How how, u64 address, Site site, u32 since) {
  if (!(before.bytes & bytes) || before.block < since) return;
  const bool ordered = happened_before(before) || (how & before.how & ATOMIC_BIT);
  if (ordered && !((how | before.how) & CACHED_BIT)) return;
  fail("%s: %s by thread %u of block %u and %s by thread %u of block %u, at %s\n  site %u\n  before, site %u",
       ordered ? "a read-only load (const __restrict__) of what this launch writes" : "race", name_of(How(before.how)), before.thread,
       number_of(before.block), name_of(how), running->number, block_number, where(address).c_str(), site, before.site);
}

static void note_read(Cell& cell, const Event& event) {
  if (cell.first_read.block != event.block) {
    if (cell.first_read.block >= first_serial) cell.foreign_read = cell.first_read;
    cell.first_read = event;
    cell.last_read = Event();
  } else if (cell.first_read.thread == event.thread && cell.first_read.bytes == event.bytes) {
    cell.first_read = event;
  } else {
    cell.last_read = event;
  }
}

static void check_cell(Cell& cell, u8 bytes, How how, u64 address, Site site, bool shared) {
  const bool writes = how & WRITE;
  const u32 since = shared ? block_serial : first_serial;  // blocks before have nothing to do with this memory
  check_order(cell.write, bytes, how, address, site, since);
  if (writes) {
    check_order(cell.first_read, bytes, how, address, site, since);
    check_order(cell.last_read, bytes, how, address, site, since);
    check_order(cell.foreign_read, bytes, how, address, site, since);
  }
  if (shared) {
    const u8 initialised = cell.initialised_by == block_serial ? cell.initialised : 0;
    if ((how & READ) && (initialised & bytes) != bytes)
      fail("uninitialised: %s of shared memory that this block never wrote, thread %u of block %u, at %s\n  site %u", name_of(how),
           running->number, block_number, where(address).c_str(), site);
    if (writes) {
      cell.initialised = initialised | bytes;
      cell.initialised_by = block_serial;
    }
  }
  const Event event = {block_serial, epoch, running->clock, site, u16(running->number), bytes, u8(how)};
  if (writes) cell.write = event;
  else note_read(cell, event);
}

void checker_atomic(u64 address) {
  if (released.empty() && !running->fenced) return;
  for (const Release& release : released[address]) {
    if (release.block != block_serial) acquired[release.block] = release;
  }
  if (running->fenced) released[address].push_back({block_serial, epoch, u16(running->number)});
}

static void check_memory(u64 address, u32 size, How how, Site site) {
  Page* page = page_of(address);
  const u64 offset = address % PAGE;
  const bool aligned = address % size == 0;
  const u64 all = (1ull << size) - 1;
  if (!aligned || (page->valid[offset / 64] >> offset % 64 & all) != all) {
    if (on_own_stack(address, size)) return;
    if (!aligned) fail("misaligned: %s of %u bytes at %s\n  site %u", name_of(how), size, where(address).c_str(), site);
    fail_out_of_bounds(address, size, how, site);
  }
  const bool shared = address - u64(gpu_shared) < launch->shared_bytes;
  if (size < 4) return check_cell(page->cells[offset / 4], u8(all << offset % 4), how, address, site, shared);
  for (u32 at = 0; at < size; at += 4) check_cell(page->cells[(offset + at) / 4], 15, how, address + at, site, shared);
}

extern "C" void gpu_access(u64 address, u32 size, How how, Site site) {
  if (launch->preempt && random_below(launch->preempt) == 0) yield();
  check_memory(address, size, how, site);
  if (how & ATOMIC_BIT) checker_atomic(address);
}
extern "C" void gpu_local_access(u64 address, u32 size, Site site) {
  if (!on_own_stack(address, size)) fail("out of bounds: outside of local memory, thread %u of block %u\n  site %u", running->number, block_number, site);
}
