// Groups over MPI. This is one process of `mpirun -n N test_mpi CASE`; it prints its error and exits with 1, or prints
// nothing.
#include <cstdio>
#include <cstring>

#include "dist/control.h"
#include "extensions/mpi_groups/mpi_groups.h"
#include "tests/dist/group_body.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

Tensor ones(int64_t n, DType dtype = f32) { return Tensor::from(std::vector<float>(size_t(n), 1.f), {n}).to(dtype); }

void run(const std::string& name) {
  if (name == "url") init("tcp://127.0.0.1:1?rank=0&world_size=1", "mpi");
  if (name == "rendezvous") init(Rendezvous{}, "mpi");
  if (name == "unknown") init(Rendezvous{}, "gloo");
  ProcessGroup& g = init("env://", name == "auto" ? "auto" : "mpi");
  const int rank = g.rank();
  guard([&] {
    if (std::strcmp(g.engine(), "mpi") != 0) throw Error("expected the mpi engine");
    if (name == "body" || name == "auto") return check_group(g, {.schedules = false});
    if (name == "count") g.all_reduce(ones(rank == 2 ? 9 : 8), {.tag = "w1"});
    if (name == "dtype") g.all_reduce(ones(8, rank == 2 ? i32 : f32), {.tag = "w1"});
    if (name == "gather") g.gather(rank == 0 ? ones(6) : Tensor(), ones(rank == 2 ? 3 : 2), 0);
    if (name == "message")
      rank == 1   ? (void)g.send(ones(8), 2, {.tag = "a"})
      : rank == 2 ? (void)g.receive(ones(9), 1, {.tag = "a"})
                  : (void)0;
    if (name == "throw" && rank == 1) throw Error("bad sample 17");
    if (name == "left" && rank == 1) return;
    if (name == "receive" && rank < 2) g.receive(ones(8), 1 - rank, {.tag = rank == 0 ? "a" : "b"});
    if (name == "algorithm") g.all_reduce(ones(8), {.algorithm = Algorithm::ring});
    if (name == "kill" && rank == 1) std::abort();
    g.barrier();
  });
}

}  // namespace

int main(int argc, char** argv) {
  dist::use_mpi();
  try {
    run(argc > 1 ? argv[1] : "body");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
