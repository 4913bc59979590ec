// StarPU: tasks over data handles that hold nothing, one call of starpu_task_insert an operation.
//
// STARPU_NCPU chooses the workers, STARPU_LIMIT_MAX_SUBMITTED_TASKS how many tasks may pend.
#include <starpu.h>

#include "bench.h"

static starpu_data_handle_t handles[INDEPENDENT_VARIABLES];

static void run(void *buffers[], void *writes) {
  (void)buffers;
  operation((Count *)writes);
}

// What an operation of the irregular workload is given.
typedef struct {
  Count *writes;
  uint32_t steps;
} Work;

static void run_irregular(void *buffers[], void *argument) {
  const Work *given = (const Work *)argument;
  work(given->steps);
  run(buffers, given->writes);
}

enum { MOST_HANDLES = RANDOM_READS + 1 };

// The kinds of operations: what each does to its handles, in order.
static struct starpu_codelet update = {.cpu_funcs = {run}, .nbuffers = 1, .modes = {STARPU_RW}};
static struct starpu_codelet write_one = {.cpu_funcs = {run}, .nbuffers = 1, .modes = {STARPU_W}};
static struct starpu_codelet read_one = {.cpu_funcs = {run}, .nbuffers = 1, .modes = {STARPU_R}};
static struct starpu_codelet reads_and_write[RANDOM_READS] = {
    {.cpu_funcs = {run}, .nbuffers = 2, .modes = {STARPU_R, STARPU_W}},
    {.cpu_funcs = {run}, .nbuffers = 3, .modes = {STARPU_R, STARPU_R, STARPU_W}},
    {.cpu_funcs = {run}, .nbuffers = 4, .modes = {STARPU_R, STARPU_R, STARPU_R, STARPU_W}},
};

static struct starpu_codelet irregular[RANDOM_READS] = {
    {.cpu_funcs = {run_irregular}, .nbuffers = 2, .modes = {STARPU_R, STARPU_W}},
    {.cpu_funcs = {run_irregular}, .nbuffers = 3, .modes = {STARPU_R, STARPU_R, STARPU_W}},
    {.cpu_funcs = {run_irregular}, .nbuffers = 4, .modes = {STARPU_R, STARPU_R, STARPU_R, STARPU_W}},
};

typedef struct {
  struct starpu_codelet *codelet;
  Count *writes;
  // Of the irregular workload; what a task is given is not copied.
  Work *work;
  uint32_t variables[MOST_HANDLES];
} Op;

static RandomOp *random_sequence;

static Op chain_op(size_t i) {
  (void)i;
  return (Op){&update, &written[0], NULL, {0}};
}

static Op independent_op(size_t i) {
  const uint32_t variable = i % INDEPENDENT_VARIABLES;
  return (Op){&write_one, &written[variable], NULL, {variable}};
}

static Op random_op(size_t i) {
  const RandomOp *random = &random_sequence[i];
  Op op = {&reads_and_write[random->count - 1], &written[random->write], NULL, {0}};
  memcpy(op.variables, random->reads, sizeof random->reads);
  op.variables[random->count] = random->write;
  return op;
}

static Work *works;

static Op irregular_op(size_t i) {
  Op op = random_op(i);
  op.codelet = &irregular[random_sequence[i].count - 1];
  op.work = &works[i];
  *op.work = (Work){op.writes, steps_of(i)};
  return op;
}

static Op fan_op(size_t i) {
  return i % ROUND ? (Op){&read_one, NULL, NULL, {0}} : (Op){&write_one, &written[0], NULL, {0}};
}

// Hands an operation over, and waits for it if asked to.
static void insert(Op op, int wait) {
  struct starpu_codelet *codelet = op.codelet;
  const enum starpu_data_access_mode *modes = codelet->modes;
  starpu_data_handle_t h[MOST_HANDLES];
  for (int k = 0; k < codelet->nbuffers; k++) h[k] = handles[op.variables[k]];
  void *argument = op.work ? (void *)op.work : (void *)op.writes;
#define LAST STARPU_CL_ARGS_NFREE, argument, op.work ? sizeof(Work) : sizeof(Count), STARPU_TASK_SYNCHRONOUS, wait, 0
  int refused = 0;
  switch (codelet->nbuffers) {
    case 1: refused = starpu_task_insert(codelet, modes[0], h[0], LAST); break;
    case 2: refused = starpu_task_insert(codelet, modes[0], h[0], modes[1], h[1], LAST); break;
    case 3: refused = starpu_task_insert(codelet, modes[0], h[0], modes[1], h[1], modes[2], h[2], LAST); break;
    case 4:
      refused = starpu_task_insert(codelet, modes[0], h[0], modes[1], h[1], modes[2], h[2], modes[3], h[3], LAST);
      break;
  }
#undef LAST
  if (refused) fail("a task was refused");
}

static double ns_per_op(Op (*op_of)(size_t), size_t ops) {
  const double start = now_ns();
  for (size_t i = 0; i < ops; i++) insert(op_of(i), 0);
  starpu_task_wait_for_all();
  const double ns = (now_ns() - start) / (double)ops;
  uint64_t writes = 0;
  for (size_t i = 0; i < ops; i++) writes += op_of(i).writes != NULL;
  verify(ops, writes);
  return ns;
}

static void round_trips(size_t warm_up, size_t trips) {
  double *ns = (double *)zeroed(trips, sizeof *ns);
  for (size_t trip = 0; trip < warm_up + trips; trip++) {
    const double start = now_ns();
    insert(chain_op(trip), 1);
    if (trip >= warm_up) ns[trip - warm_up] = now_ns() - start;
  }
  verify(warm_up + trips, warm_up + trips);
  report_latency(ns, trips);
}

int main(int argc, char **argv) {
  if (argc != 4) fail("called as: starpu WORKLOAD WARM_UP COUNT");
  const char *workload = argv[1];
  const size_t warm_up = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10);

  Op (*op_of)(size_t) = NULL;
  if (!strcmp(workload, "chain") || !strcmp(workload, "latency")) op_of = chain_op;
  if (!strcmp(workload, "independent")) op_of = independent_op;
  if (!strcmp(workload, "random")) op_of = random_op;
  if (!strcmp(workload, "irregular")) op_of = irregular_op;
  if (!strcmp(workload, "fan")) op_of = fan_op;
  if (!op_of) fail("the workloads are chain, independent, random, irregular, fan and latency");
  random_sequence = random_ops(op_of == random_op || op_of == irregular_op ? count : 0);
  works = (Work *)zeroed(op_of == irregular_op ? count : 0, sizeof *works);

  if (starpu_init(NULL)) fail("StarPU did not start");
  for (int i = 0; i < INDEPENDENT_VARIABLES; i++) starpu_void_data_register(&handles[i]);
  if (!strcmp(workload, "latency")) {
    round_trips(warm_up, count);
  } else {
    const size_t ops_each = op_of == fan_op ? ROUND : 1;
    ns_per_op(op_of, warm_up * ops_each);
    report("ns_per_op", ns_per_op(op_of, count * ops_each));
  }
  for (int i = 0; i < INDEPENDENT_VARIABLES; i++) starpu_data_unregister(handles[i]);
  starpu_shutdown();
  return 0;
}
