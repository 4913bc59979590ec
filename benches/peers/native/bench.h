// What the native drivers share: a clock, the random workload, counts that prove that the work was done, and output.
//
// Readable as C and as C++. A driver is called as `DRIVER WORKLOAD WARM_UP COUNT`, and some take a setting besides; the
// counts are operations, rounds of fan, or round trips of latency. It prints one line of JSON a metric,
// ["name", "unit", value], and ends with an error, and without a figure, when what ran is not what was asked for.
#pragma once

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// The sizes of the workloads, as in the crate streamvm-benches.
enum { INDEPENDENT_VARIABLES = 1024, RANDOM_VARIABLES = 256, RANDOM_READS = 3, READERS = 64, ROUND = READERS + 1 };

static inline double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static inline void fail(const char *what) {
  fprintf(stderr, "error: %s\n", what);
  exit(1);
}

// Zeroed memory, whole cache lines.
static inline void *zeroed(size_t count, size_t size) {
  const size_t line = 64, bytes = (count * size + line - 1) / line * line;
  void *memory = aligned_alloc(line, bytes ? bytes : line);
  if (!memory) fail("out of memory");
  return memset(memory, 0, bytes);
}

// ---- the random workload: the same operations as src/workloads/generate.rs of streamvm-benches

typedef struct {
  uint32_t reads[RANDOM_READS];
  uint32_t count;
  uint32_t write;
} RandomOp;

// xorshift64 (Marsaglia 2003), without its 16 low bits.
static inline uint32_t random_below(uint64_t *state, uint64_t bound) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return (uint32_t)((*state >> 16) % bound);
}

static inline RandomOp *random_ops(size_t count) {
  uint64_t state = 0x9E3779B97F4A7C15u;
  RandomOp *ops = (RandomOp *)zeroed(count, sizeof(RandomOp));
  for (size_t i = 0; i < count; i++) {
    RandomOp *op = &ops[i];
    op->write = random_below(&state, RANDOM_VARIABLES);
    const uint32_t wanted = 1 + random_below(&state, RANDOM_READS);
    while (op->count < wanted) {
      const uint32_t read = random_below(&state, RANDOM_VARIABLES);
      int taken = read == op->write;
      for (uint32_t k = 0; k < op->count; k++) taken |= op->reads[k] == read;
      if (!taken) op->reads[op->count++] = read;
    }
  }
  return ops;
}

// ---- the irregular workload: as in src/workloads/generate.rs of streamvm-benches

enum { STEPS = 500 };

// How many steps the operation of a number works: 1 to 9 times what takes about a microsecond; mixed as
// MurmurHash3 ends.
static inline uint32_t steps_of(size_t op) {
  uint32_t mixed = (uint32_t)op + 1;
  mixed = (mixed ^ mixed >> 16) * 0x85EBCA6Bu;
  mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35u;
  return (1 + (mixed ^ mixed >> 16) % 9) * STEPS;
}

static inline void work(uint32_t steps) {
  uint64_t state = steps | 1;
  for (uint32_t i = 0; i < steps; i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
  }
  // The compiler keeps it.
  __asm__ volatile("" : : "r"(state));
}

// ---- counts: what the operations do, about 1 ns each

// A line each, so that two workers do not fight over one.
typedef struct {
  uint64_t value;
  char padding[56];
} Count;

enum { THREADS = 64 };
static Count ran_by_thread[THREADS];
static Count written[INDEPENDENT_VARIABLES];
static int threads;
static __thread Count *mine;

static inline void count_op(void) {
  if (!mine) {
    const int thread = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
    if (thread >= THREADS) fail("more threads than there are counts; raise THREADS");
    mine = &ran_by_thread[thread];
  }
  mine->value++;
}

// The operation: counts itself, and adds one to what it writes, if anything. That is a plain addition: two writers of
// one variable at a time would lose some.
static inline void operation(Count *writes) {
  count_op();
  if (writes) writes->value++;
}

// Ends the program unless just so many operations ran and wrote since the last call.
static inline void verify(uint64_t ops, uint64_t writes) {
  uint64_t ran = 0, wrote = 0;
  for (int i = 0; i < THREADS; i++) ran += ran_by_thread[i].value;
  for (int i = 0; i < INDEPENDENT_VARIABLES; i++) wrote += written[i].value;
  if (ran != ops || wrote != writes) {
    fprintf(stderr,
            "error: %" PRIu64 " operations ran and %" PRIu64 " writes are there, not %" PRIu64 " and %" PRIu64
            ": a fault of the driver or of the peer\n",
            ran, wrote, ops, writes);
    exit(1);
  }
  memset(ran_by_thread, 0, sizeof ran_by_thread);
  memset(written, 0, sizeof written);
}

// ---- output

static inline void report(const char *metric, double ns) {
  printf("[\"%s\", \"ns\", %.3f]\n", metric, ns);
}

static int compare_doubles(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static inline void report_latency(double *ns, size_t count) {
  qsort(ns, count, sizeof *ns, compare_doubles);
  report("median", ns[count / 2]);
  report("p99", ns[count * 99 / 100]);
}
