// The Task Bench patterns as OpenMP tasks with `depend` clauses. Compiled twice: by gcc for libgomp and by clang for libomp.
//
// OMP_NUM_THREADS chooses the threads. One of them makes the tasks and then works on them.
#include "taskbench.h"

static void make_task(uint64_t step, uint32_t column) {
  uint32_t count;
  const uint32_t *inputs = inputs_at(step, column, &count);
  Slot *writes = slot_of(step, column);
  if (count == 0) {
#pragma omp task depend(out : *writes) firstprivate(step, column)
    run_task(step, column);
    return;
  }
#pragma omp task depend(iterator(k = 0 : count), in : *slot_of(step - 1, inputs[k])) depend(out : *writes) \
    firstprivate(step, column)
  run_task(step, column);
}

static double run(void) {
  double seconds = 0;
#pragma omp parallel
#pragma omp single
  {
    const double start = now_seconds();
    for (uint64_t step = 0; step < graph.steps; step++) {
      const uint32_t width = row_width(graph.pattern, graph.width, step);
      for (uint32_t column = 0; column < width; column++) make_task(step, column);
    }
#pragma omp taskwait
    seconds = now_seconds() - start;
  }
  return seconds;
}

int main(int argc, char **argv) {
  begin(argc, argv);
  while (read_graph()) {
    prepare();
    const double seconds = run();
    verify(0, graph.width);
    answer(seconds);
  }
  return 0;
}
