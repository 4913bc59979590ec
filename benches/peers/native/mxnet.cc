// MXNet 1.9.1: the dependency engine of its Python wheel, without Python.
//
// The C API pushes functions, but makes no variables and waits for none; that is done through the engine's class, whose
// table of virtual functions is declared here as far as it is used. Nothing of MXNet's headers is needed.
//
// Settings: `push` (one call of the C API an operation), `bulk:N` (the same, and the engine runs up to N as one),
// `prebuilt` (operators made before the clock starts, then pushed). MXNET_ENGINE_TYPE and MXNET_CPU_WORKER_NTHREADS
// choose the engine and its workers.
#include <unistd.h>

#include <string>
#include <vector>

#include "bench.h"

extern "C" {
typedef void (*SyncFunction)(void *run_context, void *parameter);
int MXEnginePushSync(SyncFunction, void *parameter, void (*deleter)(void *), void *context, void *reads, int read_count,
                     void *writes, int write_count, const void *property, int priority, const char *name);
int MXEngineSetBulkSize(int size, int *before);
const char *MXGetLastError();
}

// Names and layouts as in the wheel.
namespace mxnet {

struct Context {
  int32_t device_type = 1, device_id = 0;  // the CPU
};

struct Variable;
struct Operator;

// An argument of asynchronous functions: more than 16 bytes, so passed in memory.
struct RunContext {
  Context context;
  void *stream, *auxiliary_stream;
  bool is_bulk;
};

struct OnComplete {
  void (*call)(void *engine, void *parameter, const void *error);
  void *engine, *parameter;
};

// A std::function as the wheel's C++ library (before GCC 5) laid it out: its invoker takes arguments by value, where
// that of today takes references, so it is built by hand.
struct Function {
  void *data[2];
  bool (*manage)(void *target, const void *source, int what);
  void (*invoke)(const void *data, RunContext, OnComplete);
};

// The virtual functions in the order of version 1.9.1, as far as the last one used.
struct Engine {
  static Engine *Get();
  virtual void NotifyShutdown();
  virtual void Stop();
  virtual void Start();
  virtual Variable *NewVariable();
  virtual Operator *NewOperator(Function *, const std::vector<Variable *> &reads, const std::vector<Variable *> &writes,
                                int property, const char *name, bool wait);
  virtual void DeleteOperator(Operator *);
  virtual void Push(Operator *, Context, int priority, bool profiling);
  virtual void PushAsync(Function *, Context, const std::vector<Variable *> &, const std::vector<Variable *> &, int, int,
                         const char *, bool);
  virtual void DeleteVariable(void *, Context, Variable *);
  virtual void WaitForVar(Variable *);
  virtual void WaitForAll();
};

}  // namespace mxnet

namespace {

using namespace mxnet;

Engine *engine;
Context cpu;
Variable *variables[INDEPENDENT_VARIABLES];

void run_pushed(void *, void *parameter) { operation(static_cast<Count *>(parameter)); }

void run_prebuilt(const void *data, RunContext, OnComplete complete) {
  operation(*static_cast<Count *const *>(data));
  complete.call(complete.engine, complete.parameter, nullptr);
}

// Clones and has nothing to destroy.
bool manage(void *target, const void *source, int what) {
  const int clone = 2;
  if (what == clone) memcpy(target, source, sizeof(Function::data));
  return false;
}

// One operation: what it reads and the one variable that it writes, if any.
struct Op {
  uint32_t reads[RANDOM_READS];
  int read_count;
  int write;
  uint32_t steps;
};

Count *count_of(const Op &op) { return op.write < 0 ? nullptr : &written[op.write]; }

void run_irregular(void *, void *parameter) {
  const Op &op = *static_cast<const Op *>(parameter);
  work(op.steps);
  operation(count_of(op));
}

void push(const Op &op) {
  static const int normal = 0;
  Variable *reads[RANDOM_READS], *write = op.write < 0 ? nullptr : variables[op.write];
  for (int k = 0; k < op.read_count; k++) reads[k] = variables[op.reads[k]];
  const SyncFunction function = op.steps ? run_irregular : run_pushed;
  void *parameter = op.steps ? static_cast<void *>(const_cast<Op *>(&op)) : count_of(op);
  if (MXEnginePushSync(function, parameter, nullptr, &cpu, reads, op.read_count, &write, op.write >= 0, &normal, 0,
                       nullptr))
    fail(MXGetLastError());
}

Operator *prebuild(const Op &op) {
  std::vector<Variable *> reads, writes;
  for (int k = 0; k < op.read_count; k++) reads.push_back(variables[op.reads[k]]);
  if (op.write >= 0) writes.push_back(variables[op.write]);
  Function function = {{count_of(op), nullptr}, manage, run_prebuilt};
  return engine->NewOperator(&function, reads, writes, 0, "operation", false);
}

// A workload: the operation of a number. `distinct` operations are all there are; then they come again.
struct Workload {
  std::vector<Op> distinct;
  std::vector<Operator *> prebuilt;

  void run(size_t count) const {
    size_t next = 0;
    for (size_t i = 0; i < count; i++) {
      if (prebuilt.empty())
        push(distinct[next]);
      else
        engine->Push(prebuilt[next], cpu, 0, false);
      if (++next == distinct.size()) next = 0;
    }
  }

  uint64_t writes(size_t count) const {
    uint64_t writes = 0;
    for (size_t i = 0; i < count; i++) writes += distinct[i % distinct.size()].write >= 0;
    return writes;
  }
};

std::vector<Op> ops_of(const std::string &name, size_t count) {
  std::vector<Op> ops;
  if (name == "chain" || name == "latency") {
    ops.push_back({{}, 0, 0, 0});
  } else if (name == "independent") {
    for (int i = 0; i < INDEPENDENT_VARIABLES; i++) ops.push_back({{}, 0, i, 0});
  } else if (name == "random" || name == "irregular") {
    const RandomOp *random = random_ops(count);
    for (size_t i = 0; i < count; i++) {
      Op op = {{}, static_cast<int>(random[i].count), static_cast<int>(random[i].write), 0};
      memcpy(op.reads, random[i].reads, sizeof op.reads);
      if (name == "irregular") op.steps = steps_of(i);
      ops.push_back(op);
    }
  } else if (name == "fan") {
    ops.push_back({{}, 0, 0, 0});
    for (int i = 0; i < READERS; i++) ops.push_back({{0}, 1, -1, 0});
  } else {
    fail("the workloads are chain, independent, random, irregular, fan and latency");
  }
  return ops;
}

double ns_per_op(const Workload &workload, size_t ops) {
  const double start = now_ns();
  workload.run(ops);
  engine->WaitForAll();
  const double ns = (now_ns() - start) / static_cast<double>(ops);
  verify(ops, workload.writes(ops));
  return ns;
}

// Waiting for the variable is what a program does that needs one result.
void round_trips(const Workload &workload, size_t warm_up, size_t trips) {
  std::vector<double> ns;
  for (size_t trip = 0; trip < warm_up + trips; trip++) {
    const double start = now_ns();
    workload.run(1);
    engine->WaitForVar(variables[0]);
    if (trip >= warm_up) ns.push_back(now_ns() - start);
  }
  verify(warm_up + trips, warm_up + trips);
  report_latency(ns.data(), ns.size());
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 5) fail("called as: mxnet WORKLOAD WARM_UP COUNT SETTING");
  const std::string name = argv[1], setting = argv[4];
  const size_t warm_up = strtoull(argv[2], nullptr, 10), count = strtoull(argv[3], nullptr, 10);

  engine = mxnet::Engine::Get();
  for (Variable *&variable : variables) variable = engine->NewVariable();
  Workload workload = {ops_of(name, count), {}};
  if (setting.rfind("bulk:", 0) == 0) {
    int before;
    if (MXEngineSetBulkSize(atoi(setting.c_str() + 5), &before)) fail(MXGetLastError());
  } else if (setting == "prebuilt") {
    for (const Op &op : workload.distinct) workload.prebuilt.push_back(prebuild(op));
  } else if (setting != "push") {
    fail("the settings are push, bulk:N and prebuilt");
  }

  if (name == "latency") {
    round_trips(workload, warm_up, count);
  } else {
    const size_t ops_each = name == "fan" ? ROUND : 1;
    ns_per_op(workload, warm_up * ops_each);
    report("ns_per_op", ns_per_op(workload, count * ops_each));
  }
  // The library's own exit handlers wait for threads of Python's that are not there.
  fflush(stdout);
  _exit(0);
}
