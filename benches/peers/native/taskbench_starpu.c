// The Task Bench patterns as StarPU tasks over data handles that hold nothing, one call of starpu_task_insert a task.
//
// STARPU_NCPU chooses the workers, STARPU_LIMIT_MAX_SUBMITTED_TASKS how many tasks may pend.
#include <starpu.h>

#include "taskbench.h"

static starpu_data_handle_t handles[VERSIONS][MOST_COLUMNS];

// Both fit into the pointer that a task is given.
static void run(void *buffers[], void *argument) {
  (void)buffers;
  const uint64_t task = (uint64_t)(uintptr_t)argument;
  run_task(task / MOST_COLUMNS, task % MOST_COLUMNS);
}

static struct starpu_codelet codelet = {.cpu_funcs = {run}, .nbuffers = STARPU_VARIABLE_NBUFFERS};

static void insert(uint64_t step, uint32_t column) {
  uint32_t count;
  const uint32_t *inputs = inputs_at(step, column, &count);
  struct starpu_data_descr uses[MOST_COLUMNS + 1];
  for (uint32_t k = 0; k < count; k++)
    uses[k] = (struct starpu_data_descr){handles[(step - 1) % VERSIONS][inputs[k]], STARPU_R};
  uses[count] = (struct starpu_data_descr){handles[step % VERSIONS][column], STARPU_W};
  void *argument = (void *)(uintptr_t)(step * MOST_COLUMNS + column);
  const int refused = starpu_task_insert(&codelet, STARPU_DATA_MODE_ARRAY, uses, (int)count + 1, STARPU_CL_ARGS_NFREE,
                                         argument, (size_t)0, 0);
  if (refused) fail("a task was refused");
}

static double run_graph(void) {
  const double start = now_seconds();
  for (uint64_t step = 0; step < graph.steps; step++) {
    const uint32_t width = row_width(graph.pattern, graph.width, step);
    for (uint32_t column = 0; column < width; column++) insert(step, column);
  }
  starpu_task_wait_for_all();
  return now_seconds() - start;
}

int main(int argc, char **argv) {
  begin(argc, argv);
  if (starpu_init(NULL)) fail("StarPU did not start");
  for (int version = 0; version < VERSIONS; version++)
    for (int column = 0; column < MOST_COLUMNS; column++) starpu_void_data_register(&handles[version][column]);
  while (read_graph()) {
    prepare();
    const double seconds = run_graph();
    verify(0, graph.width);
    answer(seconds);
  }
  for (int version = 0; version < VERSIONS; version++)
    for (int column = 0; column < MOST_COLUMNS; column++) starpu_data_unregister(handles[version][column]);
  starpu_shutdown();
  return 0;
}
