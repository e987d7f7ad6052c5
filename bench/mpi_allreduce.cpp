// The counterpart of bench_collectives in MPI: in-place MPI_Allreduce of f32, timed in the same way. Prints JSON lines.
//   mpirun -n 2 build/bench/mpi_allreduce --min 1024 --max 67108864 --seconds 0.5
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, n = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  int64_t min = 1 << 10, max = 64 << 20;
  double seconds = 0.5;
  for (int i = 1; i < argc; ++i) {
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (std::strcmp(argv[i], "--min") == 0 && (min = std::atoll(value)) > 0) ++i;
    else if (std::strcmp(argv[i], "--max") == 0 && (max = std::atoll(value)) > 0) ++i;
    else if (std::strcmp(argv[i], "--seconds") == 0 && (seconds = std::atof(value)) > 0) ++i;
    else {
      if (rank == 0)
        std::fprintf(stderr, "mpi_allreduce: expected --min BYTES, --max BYTES or --seconds S, got %s %s\n", argv[i],
                     value);
      MPI_Finalize();
      return 2;
    }
  }
  for (int64_t bytes = min; bytes <= max; bytes *= 2) {
    const int64_t count = std::max<int64_t>(bytes / 4 / n, 1) * n;
    std::vector<float> data(size_t(count), 0.0f);
    const auto call = [&] { MPI_Allreduce(MPI_IN_PLACE, data.data(), int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    for (int i = 0; i < 3; ++i) call();
    const double start = MPI_Wtime();
    for (int i = 0; i < 3; ++i) call();
    int64_t calls = int64_t(seconds * 3 / std::max(MPI_Wtime() - start, 1e-7));
    MPI_Bcast(&calls, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    std::vector<double> times(size_t(std::clamp<int64_t>(calls, 5, 20000)));
    for (double& us : times) {
      const double begin = MPI_Wtime();
      call();
      us = (MPI_Wtime() - begin) * 1e6;
    }
    std::sort(times.begin(), times.end());
    const double us = times[times.size() / 2], algbw = double(count) * 4 / us / 1e3;
    if (rank == 0) {
      std::printf(
          "{\"bench\": \"collectives\", \"op\": \"all_reduce\", \"how\": \"MPI\", \"ranks\": %d, \"bytes\": %lld, "
          "\"us\": %.2f, \"min_us\": %.2f, \"busbw_gbs\": %.3f, \"n\": %zu}\n",
          n, static_cast<long long>(count * 4), us, times[0], algbw * 2 * (n - 1) / n, times.size());
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
