// oneTBB's flow graph: one node an operation, an edge from each operation that another must come after. The graph is built and run
// within the clock, as an engine analyses and runs; the run alone is a second figure.
//
// TBB_THREADS chooses the threads.
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>

#include <deque>
#include <vector>

#include "bench.h"

namespace flow = oneapi::tbb::flow;
using Node = flow::continue_node<flow::continue_msg>;

static RandomOp *random_sequence;

// What has used a variable last.
struct Variable {
  Node *writer = nullptr;
  std::vector<Node *> readers;
};

// A graph that is built in program order.
struct Program {
  flow::graph graph;
  std::deque<Node> nodes;
  std::vector<Node *> roots;
  std::vector<Variable> variables = std::vector<Variable>(INDEPENDENT_VARIABLES);

  // Adds an operation, which `body` runs, behind what has used the same variables.
  template <typename Body>
  void add(const uint32_t *reads, uint32_t count, int64_t write, Body body) {
    nodes.emplace_back(graph, [body](const flow::continue_msg &) { body(); });
    Node &node = nodes.back();
    bool waits = false;
    const auto after = [&](Node *before) {
      if (!before || before == &node) return;
      flow::make_edge(*before, node);
      waits = true;
    };
    for (uint32_t k = 0; k < count; k++) {
      Variable &variable = variables[reads[k]];
      after(variable.writer);
      variable.readers.push_back(&node);
    }
    if (write >= 0) {
      Variable &variable = variables[(size_t)write];
      after(variable.readers.empty() ? variable.writer : nullptr);
      for (Node *reader : variable.readers) after(reader);
      variable.readers.clear();
      variable.writer = &node;
    }
    if (!waits) roots.push_back(&node);
  }

  void run() {
    for (Node *root : roots) root->try_put(flow::continue_msg());
    graph.wait_for_all();
  }
};

using AddOp = void (*)(Program &, size_t);

static void chain_op(Program &program, size_t) {
  program.add(nullptr, 0, 0, [] { operation(&written[0]); });
}

static void independent_op(Program &program, size_t i) {
  const size_t variable = i % INDEPENDENT_VARIABLES;
  program.add(nullptr, 0, (int64_t)variable, [variable] { operation(&written[variable]); });
}

static void fan_op(Program &program, size_t i) {
  const uint32_t read = 0;
  if (i % ROUND) {
    program.add(&read, 1, -1, [] { operation(nullptr); });
  } else {
    program.add(nullptr, 0, 0, [] { operation(&written[0]); });
  }
}

static void random_op(Program &program, size_t i) {
  const RandomOp &op = random_sequence[i];
  const uint32_t write = op.write;
  program.add(op.reads, op.count, write, [write] { operation(&written[write]); });
}

static void irregular_op(Program &program, size_t i) {
  const RandomOp &op = random_sequence[i];
  const uint32_t write = op.write, steps = steps_of(i);
  program.add(op.reads, op.count, write, [write, steps] {
    work(steps);
    operation(&written[write]);
  });
}

// Builds and runs `ops` operations; returns the time of both, and of the run, an operation.
static void measure(AddOp op, size_t ops, double *all, double *run) {
  const double start = now_ns();
  auto *program = new Program;
  for (size_t i = 0; i < ops; i++) op(*program, i);
  const double built = now_ns();
  program->run();
  const double end = now_ns();
  *all = (end - start) / (double)ops;
  *run = (end - built) / (double)ops;
  delete program;
  verify(ops, op == fan_op ? (ops + ROUND - 1) / ROUND : ops);
}

static void round_trips(size_t warm_up, size_t trips) {
  double *ns = (double *)zeroed(trips, sizeof *ns);
  flow::graph graph;
  Node node(graph, [](const flow::continue_msg &) { operation(&written[0]); });
  for (size_t trip = 0; trip < warm_up + trips; trip++) {
    const double start = now_ns();
    node.try_put(flow::continue_msg());
    graph.wait_for_all();
    if (trip >= warm_up) ns[trip - warm_up] = now_ns() - start;
  }
  verify(warm_up + trips, warm_up + trips);
  report_latency(ns, trips);
}

int main(int argc, char **argv) {
  if (argc != 4) fail("called as: onetbb WORKLOAD WARM_UP COUNT");
  const char *workload = argv[1], *chosen = getenv("TBB_THREADS");
  const size_t warm_up = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10);
  const size_t most = chosen ? strtoull(chosen, NULL, 10) : 2;
  oneapi::tbb::global_control control(oneapi::tbb::global_control::max_allowed_parallelism, most);

  AddOp op = nullptr;
  if (!strcmp(workload, "chain") || !strcmp(workload, "latency")) op = chain_op;
  if (!strcmp(workload, "independent")) op = independent_op;
  if (!strcmp(workload, "random")) op = random_op;
  if (!strcmp(workload, "irregular")) op = irregular_op;
  if (!strcmp(workload, "fan")) op = fan_op;
  if (!op) fail("the workloads are chain, independent, random, irregular, fan and latency");
  random_sequence = random_ops(op == random_op || op == irregular_op ? count : 0);

  if (!strcmp(workload, "latency")) {
    round_trips(warm_up, count);
  } else {
    const size_t ops_each = op == fan_op ? ROUND : 1;
    double all, run;
    measure(op, warm_up * ops_each, &all, &run);
    measure(op, count * ops_each, &all, &run);
    report("ns_per_op", all);
    report("ns_per_op_run_only", run);
  }
  return 0;
}
