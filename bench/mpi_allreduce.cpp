// The counterpart of bench_collectives in MPI: in-place MPI_Allreduce of f32, timed in the same way. Prints JSON lines.
//   mpirun -n 2 build/bench/mpi_allreduce --min 1024 --max 67108864 --seconds 0.5
#include <mpi.h>

#include <cstdio>

#include "bench/program.h"

namespace {

void measure(int64_t min, int64_t max, double seconds) {
  int rank = 0, n = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  for (int64_t bytes = min; bytes <= max; bytes *= 2) {
    const int64_t count = std::max<int64_t>(bytes / 4 / n, 1) * n;
    std::vector<float> data(size_t(count), 0.0f);
    const auto call = [&] { MPI_Allreduce(MPI_IN_PLACE, data.data(), int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    const auto thrice = [&] {
      for (int i = 0; i < 3; ++i) call();
    };
    thrice();
    int64_t calls = int64_t(seconds * 3 / std::max(bench::seconds_of(thrice), 1e-7));
    MPI_Bcast(&calls, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    std::vector<double> times(size_t(std::clamp<int64_t>(calls, 5, 20000)));
    for (double& us : times) us = 1e6 * bench::seconds_of(call);
    const double us = bench::median(times), algbw = double(count) * 4 / us / 1e3;
    if (rank != 0) continue;
    std::printf(
        "{\"bench\": \"collectives\", \"op\": \"all_reduce\", \"how\": \"MPI\", \"ranks\": %d, \"bytes\": %lld, "
        "\"us\": %.2f, \"min_us\": %.2f, \"busbw_gbs\": %.3f, \"n\": %zu}\n",
        n, static_cast<long long>(count * 4), us, *std::min_element(times.begin(), times.end()),
        algbw * 2 * (n - 1) / n, times.size());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int64_t min = 1 << 10, max = 64 << 20;
  double seconds = 0.5;
  bench::Program app("Speed of MPI_Allreduce");
  app.add_option("--min", min, "smallest size in bytes")->check(CLI::PositiveNumber);
  app.add_option("--max", max, "largest size in bytes")->check(CLI::PositiveNumber);
  app.add_option("--seconds", seconds, "about this long for each size")->check(CLI::PositiveNumber);
  return app.run(argc, argv, [&] {
    MPI_Init(&argc, &argv);
    measure(min, max, seconds);
    MPI_Finalize();
  });
}
