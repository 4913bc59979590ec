// The Task Bench patterns over MPI, without a scheduler: each rank owns a block of columns and runs its tasks row by row, in order.
//
// A task sends its output, one message a rank, to the other ranks whose tasks of the next row read it, and does not wait. Before a row, a
// rank waits for all outputs that its tasks of the row read. The number of a column is the tag, and messages of one tag keep their order.
#include <mpi.h>

#include "taskbench.h"

static int rank, ranks;

static uint32_t first_column(int of) { return (uint32_t)((uint64_t)graph.width * (uint64_t)of / (uint64_t)ranks); }

// is_read[set][column][rank]: does a task of that rank read the column's output? Of the set of the row that reads, complete rows.
static uint8_t is_read[MOST_PERIODS][MOST_COLUMNS][MOST_COLUMNS];

static void find_readers(void) {
  memset(is_read, 0, sizeof is_read);
  for (uint32_t set = 0; set < period; set++)
    for (int of = 0; of < ranks; of++)
      for (uint32_t reader = first_column(of); reader < first_column(of + 1); reader++)
        for (uint32_t k = 0; k < table[set][reader].count; k++) is_read[set][table[set][reader].columns[k]][of] = 1;
}

// Whether a task of a rank reads the output of a column of the row before `step`, where rows may still grow.
static int reads(int of, uint64_t step, uint32_t column) {
  const uint32_t here = row_width(graph.pattern, graph.width, step), before = row_width(graph.pattern, graph.width, step - 1);
  if (column >= before) return 0;
  if (here == graph.width) return is_read[(step - 1) % period][column][of];
  for (uint32_t reader = first_column(of); reader < first_column(of + 1) && reader < here; reader++) {
    uint32_t count;
    const uint32_t *inputs = inputs_at(step, reader, &count);
    for (uint32_t k = 0; k < count; k++)
      if (inputs[k] == column) return 1;
  }
  return 0;
}

enum { BYTES = 2 * sizeof(uint64_t) };

// Sends of a row. What was sent lies in a slot until VERSIONS rows later, and is waited for well before.
static MPI_Request sends[MOST_COLUMNS * MOST_COLUMNS], receives[MOST_COLUMNS];
static int pending_sends;

static void receive_row(uint64_t step) {
  int pending = 0;
  for (int from = 0; from < ranks; from++) {
    if (from == rank) continue;
    for (uint32_t column = first_column(from); column < first_column(from + 1); column++)
      if (reads(rank, step, column))
        MPI_Irecv(slot_of(step - 1, column), BYTES, MPI_BYTE, from, (int)column, MPI_COMM_WORLD, &receives[pending++]);
  }
  MPI_Waitall(pending, receives, MPI_STATUSES_IGNORE);
}

static void send(uint64_t step, uint32_t column) {
  for (int to = 0; to < ranks; to++)
    if (to != rank && reads(to, step + 1, column))
      MPI_Isend(slot_of(step, column), BYTES, MPI_BYTE, to, (int)column, MPI_COMM_WORLD, &sends[pending_sends++]);
}

static double run(void) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = now_seconds();
  for (uint64_t step = 0; step < graph.steps; step++) {
    if (step > 0) receive_row(step);
    MPI_Waitall(pending_sends, sends, MPI_STATUSES_IGNORE);
    pending_sends = 0;
    const uint32_t width = row_width(graph.pattern, graph.width, step);
    for (uint32_t column = first_column(rank); column < first_column(rank + 1) && column < width; column++) {
      run_task(step, column);
      if (step + 1 < graph.steps) send(step, column);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return now_seconds() - start;
}

int main(int argc, char **argv) {
  begin(argc, argv);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks > MOST_COLUMNS) fail("there are more ranks than columns");
  for (;;) {
    int more = rank == 0 && read_graph();
    MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (!more) break;
    MPI_Bcast(&graph, sizeof graph, MPI_BYTE, 0, MPI_COMM_WORLD);
    prepare();
    find_readers();
    const double seconds = run();
    verify(first_column(rank), first_column(rank + 1));
    if (rank == 0) answer(seconds);
  }
  MPI_Finalize();
  return 0;
}
