// What the native drivers of the Task Bench patterns share: the patterns, the task with its checks, the kernel, and the protocol.
//
// A driver reads one graph a line, "PATTERN WIDTH STEPS ITERATIONS", runs it, checks it, and answers with its seconds in one line. It ends
// at the end of its input, and ends with an error when a task has found an input that is not the one that its pattern names. Called as
// `DRIVER --deps PATTERN WIDTH STEP` it prints the inputs of each task of that row, so that a test can compare them with those of
// src/taskbench/pattern.rs.
#pragma once

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>

// As in src/taskbench/pattern.rs and src/taskbench/board.rs.
enum { MOST_COLUMNS = 64, MOST_PERIODS = 6, RADIX = 5, RANDOM_PERIOD = 4, VERSIONS = 8 };

static inline void fail(const char *what) {
  fprintf(stderr, "error: %s\n", what);
  exit(1);
}

static inline double now_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// ---- patterns

typedef enum {
  TRIVIAL,
  NO_COMM,
  STENCIL_1D,
  STENCIL_1D_PERIODIC,
  DOM,
  TREE,
  FFT,
  ALL_TO_ALL,
  NEAREST,
  SPREAD,
  RANDOM_NEAREST,
  RANDOM_SPREAD,
  PATTERNS
} Pattern;

static const char *const pattern_names[PATTERNS] = {
    "trivial", "no_comm",    "stencil_1d", "stencil_1d_periodic", "dom",            "tree",
    "fft",     "all_to_all", "nearest",    "spread",              "random_nearest", "random_spread"};

typedef struct {
  Pattern pattern;
  uint32_t width, steps;
  uint64_t iterations;
} Graph;

// The columns whose outputs a task reads, ascending.
typedef struct {
  uint32_t count;
  uint32_t columns[MOST_COLUMNS];
} Inputs;

// The end of splitmix64 (Steele, Lea and Flood 2014).
static inline uint64_t mixed(uint64_t set, uint64_t column, uint64_t other) {
  uint64_t x = (set << 32 | column << 16 | other) + 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// After how many steps the inputs of a column repeat.
static inline uint32_t period_of(Pattern pattern, uint32_t width) {
  uint32_t bits = 0;
  switch (pattern) {
    case FFT:
      while ((1u << bits) < width) bits++;
      return bits ? bits : 1;
    case SPREAD:
    case RANDOM_NEAREST:
    case RANDOM_SPREAD:
      return RANDOM_PERIOD;
    default:
      return 1;
  }
}

// How many tasks a row has: the columns from 0 on.
static inline uint32_t row_width(Pattern pattern, uint32_t width, uint64_t step) {
  if (pattern == DOM) return step < width ? (uint32_t)step + 1 : width;
  if (pattern == TREE) return step < 31 && (1u << step) < width ? 1u << step : width;
  return width;
}

// The inputs of a column, where the row before is complete.
static inline Inputs inputs_of(Pattern pattern, uint32_t width, uint32_t set, uint32_t column) {
  uint8_t is_input[MOST_COLUMNS] = {0};
  const uint32_t radix = RADIX < width ? RADIX : width;
  const int64_t at = column, last = (int64_t)width - 1;
  const int64_t first_near = at - RADIX / 2 < 0 ? 0 : at - RADIX / 2, last_near = at + RADIX / 2 > last ? last : at + RADIX / 2;
  switch (pattern) {
    case TRIVIAL:
      break;
    case NO_COMM:
      is_input[at] = 1;
      break;
    case STENCIL_1D:
      for (int64_t other = at - 1; other <= at + 1; other++)
        if (other >= 0 && other <= last) is_input[other] = 1;
      break;
    case STENCIL_1D_PERIODIC:
      is_input[(column + width - 1) % width] = is_input[column] = is_input[(column + 1) % width] = 1;
      break;
    case DOM:
      is_input[at] = 1;
      if (at > 0) is_input[at - 1] = 1;
      break;
    case TREE:
      is_input[at / 2] = 1;
      break;
    case FFT:
      is_input[at] = 1;
      if (at - (1 << set) >= 0) is_input[at - (1 << set)] = 1;
      if (at + (1 << set) <= last) is_input[at + (1 << set)] = 1;
      break;
    case ALL_TO_ALL:
      memset(is_input, 1, width);
      break;
    case NEAREST:
      for (int64_t other = first_near; other <= last_near; other++) is_input[other] = 1;
      break;
    case SPREAD:
      for (uint32_t k = 0; k < radix; k++) is_input[(column + k * width / radix + (k ? set : 0)) % width] = 1;
      break;
    case RANDOM_NEAREST:
      for (int64_t other = first_near; other <= last_near; other++) is_input[other] = mixed(set, column, (uint64_t)other) >> 63;
      break;
    case RANDOM_SPREAD:
      for (uint32_t k = 0; k < radix; k++) is_input[(mixed(set, column, k) >> 32) % width] = 1;
      break;
    case PATTERNS:
      fail("there is no such pattern");
  }
  Inputs inputs = {0};
  for (uint32_t other = 0; other < width; other++)
    if (is_input[other]) inputs.columns[inputs.count++] = other;
  return inputs;
}

// ---- the graph that runs: its inputs, and what its tasks have written

static Graph graph;
static uint32_t period;
static Inputs table[MOST_PERIODS][MOST_COLUMNS];

// The pair that a task writes, on a cache line of its own. A column has VERSIONS of them, which its tasks write in turn.
typedef struct {
  uint64_t step, column;
  char padding[48];
} Slot;

static Slot slots[VERSIONS][MOST_COLUMNS] __attribute__((aligned(64)));

enum { EMPTY = UINT32_MAX };

static inline Slot *slot_of(uint64_t step, uint32_t column) { return &slots[step % VERSIONS][column]; }

static inline const uint32_t *inputs_at(uint64_t step, uint32_t column, uint32_t *count) {
  if (step == 0) {
    *count = 0;
    return NULL;
  }
  const Inputs *inputs = &table[(step - 1) % period][column];
  const uint32_t before = row_width(graph.pattern, graph.width, step - 1);
  uint32_t there = inputs->count;
  // Columns ascend, so what the row before lacks comes last.
  while (there > 0 && inputs->columns[there - 1] >= before) there--;
  *count = there;
  return inputs->columns;
}

static inline void check(const Slot *slot, uint64_t step, uint64_t column, uint64_t reader_step, uint64_t reader_column) {
  const uint64_t found_step = __atomic_load_n(&slot->step, __ATOMIC_RELAXED);
  const uint64_t found_column = __atomic_load_n(&slot->column, __ATOMIC_RELAXED);
  if (found_step == step && found_column == column) return;
  fprintf(stderr,
          "error: the task (step %" PRIu64 ", column %" PRIu64 ") found the output of (%" PRIu64 ", %" PRIu64
          ") where that of (%" PRIu64 ", %" PRIu64 ") belongs: a fault of the driver or of the peer\n",
          reader_step, reader_column, found_step, found_column, step, column);
  exit(1);
}

// Checks that the slot which a task writes holds what the task VERSIONS rows before has left.
static inline void check_previous(uint64_t step, uint32_t column) {
  const int written = step >= VERSIONS && column < row_width(graph.pattern, graph.width, step - VERSIONS);
  check(slot_of(step, column), written ? step - VERSIONS : EMPTY, written ? column : EMPTY, step, column);
}

// ---- the kernel

// 32 doubles, each multiplied and added to once an iteration: 64 floating-point operations. Eight vectors hide the latency of the unit.
typedef double Vector __attribute__((vector_size(32)));

static inline __attribute__((always_inline)) double multiply_and_add(uint64_t iterations, double seed) {
  const Vector a = {0.5, 0.5, 0.5, 0.5}, b = {1, 1, 1, 1};
  Vector v0 = a * seed, v1 = v0 + b, v2 = v1 + b, v3 = v2 + b, v4 = v3 + b, v5 = v4 + b, v6 = v5 + b, v7 = v6 + b;
  for (uint64_t i = 0; i < iterations; i++) {
    v0 = v0 * a + b, v1 = v1 * a + b, v2 = v2 * a + b, v3 = v3 * a + b;
    v4 = v4 * a + b, v5 = v5 * a + b, v6 = v6 * a + b, v7 = v7 * a + b;
  }
  v0 = ((v0 + v1) + (v2 + v3)) + ((v4 + v5) + (v6 + v7));
  return v0[0] + v0[1] + v0[2] + v0[3];
}

static double plain_kernel(uint64_t iterations, double seed) { return multiply_and_add(iterations, seed); }

static double (*kernel)(uint64_t, double) = plain_kernel;

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static double avx2_kernel(uint64_t iterations, double seed) {
  return multiply_and_add(iterations, seed);
}
#endif

static inline void choose_kernel(void) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) kernel = avx2_kernel;
#endif
}

// ---- the task

// Checks the inputs, computes, and writes the pair of the task.
static inline void run_task(uint64_t step, uint32_t column) {
  uint32_t count;
  const uint32_t *inputs = inputs_at(step, column, &count);
  for (uint32_t k = 0; k < count; k++) check(slot_of(step - 1, inputs[k]), step - 1, inputs[k], step, column);
  check_previous(step, column);
  const double result = kernel(graph.iterations, (double)column);
  // The compiler keeps it.
  __asm__ volatile("" : : "x"(result));
  Slot *slot = slot_of(step, column);
  __atomic_store_n(&slot->step, step, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->column, column, __ATOMIC_RELAXED);
}

// Forgets the graph before: its outputs would pass the checks of this one.
static inline void prepare(void) {
  period = period_of(graph.pattern, graph.width);
  for (uint32_t set = 0; set < period; set++)
    for (uint32_t column = 0; column < graph.width; column++)
      table[set][column] = inputs_of(graph.pattern, graph.width, set, column);
  for (int version = 0; version < VERSIONS; version++)
    for (int column = 0; column < MOST_COLUMNS; column++) slots[version][column].step = slots[version][column].column = EMPTY;
}

// Checks what the last tasks of the columns from `first` to before `end` have left.
static inline void verify(uint32_t first, uint32_t end) {
  for (uint64_t step = graph.steps; step < (uint64_t)graph.steps + VERSIONS; step++)
    for (uint32_t column = first; column < end; column++) check_previous(step, column);
}

// ---- the protocol

static inline Pattern pattern_named(const char *name) {
  for (int pattern = 0; pattern < PATTERNS; pattern++)
    if (!strcmp(pattern_names[pattern], name)) return (Pattern)pattern;
  fail("there is no such pattern");
  return PATTERNS;
}

static inline void check_width(uint32_t width) {
  if (width < 1 || width > MOST_COLUMNS) fail("the width is 1 to 64");
}

// Reads the next graph; 0 at the end of the input.
static inline int read_graph(void) {
  char name[32];
  const int fields = scanf("%31s %" SCNu32 " %" SCNu32 " %" SCNu64, name, &graph.width, &graph.steps, &graph.iterations);
  if (fields == EOF) return 0;
  if (fields != 4) fail("a graph is a line of PATTERN WIDTH STEPS ITERATIONS");
  graph.pattern = pattern_named(name);
  check_width(graph.width);
  return 1;
}

static inline void answer(double seconds) {
  printf("%.9f\n", seconds);
  fflush(stdout);
}

// What a driver does first. Does not return if it was called to print inputs.
static inline void begin(int argc, char **argv) {
  if (argc == 5 && !strcmp(argv[1], "--deps")) {
    graph = (Graph){pattern_named(argv[2]), (uint32_t)strtoul(argv[3], NULL, 10), 0, 0};
    const uint64_t step = strtoull(argv[4], NULL, 10);
    check_width(graph.width);
    prepare();
    for (uint32_t column = 0; column < row_width(graph.pattern, graph.width, step); column++) {
      uint32_t count;
      const uint32_t *inputs = inputs_at(step, column, &count);
      printf("%" PRIu32 ":", column);
      for (uint32_t k = 0; k < count; k++) printf(" %" PRIu32, inputs[k]);
      printf("\n");
    }
    exit(0);
  }
  if (argc != 1) fail("called without arguments, or with --deps PATTERN WIDTH STEP");
  // The program that asks may be killed when a graph takes too long; the driver is not to outlive it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  choose_kernel();
}
