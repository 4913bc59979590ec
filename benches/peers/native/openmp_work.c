// Work of OpenMP for a process that runs an engine, too: a loop that is divided among all threads of OpenMP, which takes some milliseconds.
#include <stdint.h>

// About as long as a part of a large product.
#define PIECES 64
#define STEPS 20000

uint64_t openmp_work(uint64_t rounds) {
  uint64_t total = 0;
  for (uint64_t round = 0; round < rounds; round++) {
#pragma omp parallel for reduction(+ : total)
    for (uint64_t piece = 0; piece < PIECES; piece++) {
      volatile uint64_t sum = piece;
      for (uint64_t step = 0; step < STEPS; step++) sum = (sum << 5 | sum >> 59) ^ step;
      total += sum;
    }
  }
  return total;
}
