// OpenMP tasks with `depend` clauses, one task an operation. Compiled twice: by gcc for libgomp and by clang for libomp.
//
// OMP_NUM_THREADS chooses the threads. One of them makes the tasks and then works on them.
#include "bench.h"

// What the dependences are on: the addresses count, nothing is stored here.
static char variables[INDEPENDENT_VARIABLES];

static RandomOp *random_sequence;

static void chain_op(size_t i) {
  (void)i;
#pragma omp task depend(inout : variables[0])
  operation(&written[0]);
}

static void independent_op(size_t i) {
  const size_t variable = i % INDEPENDENT_VARIABLES;
#pragma omp task depend(out : variables[variable]) firstprivate(variable)
  operation(&written[variable]);
}

static void fan_op(size_t i) {
  if (i % ROUND) {
#pragma omp task depend(in : variables[0])
    operation(NULL);
  } else {
#pragma omp task depend(out : variables[0])
    operation(&written[0]);
  }
}

static void work_and_count(uint32_t steps, uint32_t write) {
  if (steps) work(steps);
  operation(&written[write]);
}

// An operation of the random sequence, which works for so many steps.
static void random_task(size_t i, uint32_t steps) {
  const RandomOp *op = &random_sequence[i];
  const uint32_t write = op->write, *reads = op->reads;
  switch (op->count) {
    case 1:
#pragma omp task depend(in : variables[reads[0]]) depend(out : variables[write]) firstprivate(steps, write)
      work_and_count(steps, write);
      break;
    case 2:
#pragma omp task depend(in : variables[reads[0]], variables[reads[1]]) depend(out : variables[write]) \
    firstprivate(steps, write)
      work_and_count(steps, write);
      break;
    default:
#pragma omp task depend(in : variables[reads[0]], variables[reads[1]], variables[reads[2]]) \
    depend(out : variables[write]) firstprivate(steps, write)
      work_and_count(steps, write);
      break;
  }
}

static void random_op(size_t i) { random_task(i, 0); }

static void irregular_op(size_t i) { random_task(i, steps_of(i)); }

static double ns_per_op(void (*op)(size_t), size_t ops) {
  const double start = now_ns();
  for (size_t i = 0; i < ops; i++) op(i);
#pragma omp taskwait
  const double ns = (now_ns() - start) / (double)ops;
  uint64_t writes = ops;
  if (op == fan_op) writes = (ops + ROUND - 1) / ROUND;
  verify(ops, writes);
  return ns;
}

static void round_trips(size_t warm_up, size_t trips) {
  double *ns = (double *)zeroed(trips, sizeof *ns);
  for (size_t trip = 0; trip < warm_up + trips; trip++) {
    const double start = now_ns();
    chain_op(trip);
#pragma omp taskwait
    if (trip >= warm_up) ns[trip - warm_up] = now_ns() - start;
  }
  verify(warm_up + trips, warm_up + trips);
  report_latency(ns, trips);
}

int main(int argc, char **argv) {
  if (argc != 4) fail("called as: openmp WORKLOAD WARM_UP COUNT");
  const char *workload = argv[1];
  const size_t warm_up = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10);

  void (*op)(size_t) = NULL;
  if (!strcmp(workload, "chain") || !strcmp(workload, "latency")) op = chain_op;
  if (!strcmp(workload, "independent")) op = independent_op;
  if (!strcmp(workload, "random")) op = random_op;
  if (!strcmp(workload, "irregular")) op = irregular_op;
  if (!strcmp(workload, "fan")) op = fan_op;
  if (!op) fail("the workloads are chain, independent, random, irregular, fan and latency");
  random_sequence = random_ops(op == random_op || op == irregular_op ? count : 0);

#pragma omp parallel
#pragma omp single
  {
    if (!strcmp(workload, "latency")) {
      round_trips(warm_up, count);
    } else {
      const size_t ops_each = op == fan_op ? ROUND : 1;
      ns_per_op(op, warm_up * ops_each);
      report("ns_per_op", ns_per_op(op, count * ops_each));
    }
  }
  return 0;
}
