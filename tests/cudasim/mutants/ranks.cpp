// Planted bugs in calls of NCCL, with threads and with processes as ranks.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/cudasim/mutants/ranks.h"

namespace mutants {
namespace {

bool as_processes(const std::function<bool(const Rank&)>& body) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) _exit(with_comm(rank, id, body) ? 0 : 1);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good = good && status == 0;
  }
  return good;
}

// All operations, one after the other.
bool all_collectives(const Rank& r, size_t count) {
  const Array x(values_of(r.rank)), out(2 * n);
  const auto holds = [&](size_t begin, size_t end, float value) {
    if (!r.wait()) return false;
    const std::vector<float> got = out.get();
    for (size_t i = begin; i < end; ++i)
      if (got[i] != value) return false;
    return true;
  };
  const int other = 1 - r.rank;
  ncclAllReduce(x, out, count, ncclFloat32, ncclSum, r.comm, r.stream);
  if (!holds(0, n, 3)) return false;
  ncclAllReduce(x, out, n, ncclFloat32, ncclAvg, r.comm, r.stream);
  if (!holds(0, n, 1.5f)) return false;
  ncclBroadcast(x, out, n, ncclFloat32, 1, r.comm, r.stream);
  if (!holds(0, n, 2)) return false;
  ncclReduceScatter(x, out, n, ncclFloat32, ncclMax, r.comm, r.stream);
  if (!holds(0, n, 2)) return false;
  ncclAllGather(x, out, n, ncclFloat32, r.comm, r.stream);
  if (!holds(0, n, 1) || !holds(n, 2 * n, 2)) return false;
  ncclGroupStart();
  ncclSend(x, n, ncclFloat32, other, r.comm, r.stream);
  ncclRecv(out, n, ncclFloat32, other, r.comm, r.stream);
  ncclGroupEnd();
  if (!holds(0, n, float(other + 1))) return false;
  ncclComm_t alone = nullptr;
  ncclResult_t code = ncclCommSplit(r.comm, r.rank, 0, &alone, nullptr);
  const auto is_settled = [&] {
    for (int i = 0; i < 30000 && alone; ++i) {
      ncclCommGetAsyncError(alone, &code);
      if (code != ncclInProgress) break;
      usleep(100);
    }
    return code == ncclSuccess;
  };
  if (!is_settled()) return false;
  ncclAllReduce(x, out, n, ncclFloat32, ncclSum, alone, r.stream);
  if (!is_settled()) return false;
  const bool good = holds(0, n, float(r.rank + 1));
  ncclCommDestroy(alone);
  return good;
}
bool counts_that_differ(bool bug) {
  return as_threads([=](const Rank& r) { return all_collectives(r, bug && r.rank == 1 ? n + 1 : n); });
}
bool counts_that_differ_in_processes(bool bug) {
  return as_processes([=](const Rank& r) { return all_collectives(r, bug && r.rank == 1 ? n + 1 : n); });
}
bool both_send_first(bool bug) {
  return as_threads([=](const Rank& r) {
    const Array x(values_of(r.rank)), out(2 * n);
    const int other = 1 - r.rank;
    if (!bug) ncclGroupStart();
    ncclSend(x, n, ncclFloat32, other, r.comm, r.stream);
    ncclRecv(out, n, ncclFloat32, other, r.comm, r.stream);
    if (!bug) ncclGroupEnd();
    return r.wait();
  });
}
bool a_collective_that_one_rank_leaves_out(bool bug) {
  return as_threads([=](const Rank& r) {
    const Array x(values_of(r.rank));
    if (!bug || r.rank == 0) ncclAllReduce(x, x, n, ncclFloat32, ncclSum, r.comm, r.stream);
    return r.wait();
  });
}
bool two_ranks_on_one_device(bool bug) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      cudaSetDevice(bug ? 0 : rank);
      ncclComm_t comm = nullptr;
      good += ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return good == ranks;
}

// --- mismatched calls ---

enum class Ask { right, order, count, type, operation, root, group, peer, size };
// A sum, a broadcast and a message, and checks of their results.
template <Ask mistake> bool asks(bool bug) {
  return as_threads([=](const Rank& r) {
    const auto is = [=](Ask which) { return bug && r.rank == 1 && mistake == which; };
    const Array x(values_of(r.rank)), sum(2 * n), from(2 * n), got(2 * n);
    const int other = 1 - r.rank;
    const auto add_up = [&] {
      return ncclAllReduce(x, sum, is(Ask::count) ? n / 2 : n, is(Ask::type) ? ncclInt32 : ncclFloat32,
                           is(Ask::operation) ? ncclMax : ncclSum, r.comm, r.stream);
    };
    const auto hand_out = [&] {
      return ncclBroadcast(x, from, n, ncclFloat32, is(Ask::root) ? 0 : 1, r.comm, r.stream);
    };
    is(Ask::order) ? hand_out() : add_up();
    if (!r.wait()) return false;
    is(Ask::order) ? add_up() : hand_out();
    if (!r.wait()) return false;
    ncclGroupStart();
    ncclSend(x, is(Ask::size) ? n / 2 : n, ncclFloat32, is(Ask::peer) ? r.rank : other, r.comm, r.stream);
    ncclRecv(got, n, ncclFloat32, is(Ask::peer) ? r.rank : other, r.comm, r.stream);
    if (!is(Ask::group)) ncclGroupEnd();
    return r.wait() && sum.get()[0] == 3 && from.get()[0] == 2 && got.get()[0] == float(other + 1);
  });
}

// --- two communicators of the same ranks ---

enum class Two { right, order, streams };
template <Two mistake> bool two_communicators(bool bug) {
  ncclUniqueId more;
  ncclGetUniqueId(&more);
  return as_threads([=](const Rank& r) {
    return with_comm(r.rank, more, [&](const Rank& second) {
      const Array x(values_of(r.rank)), one(2 * n), two(2 * n);
      cudaDeviceSynchronize();
      // Order: both collectives are on one stream, so they must have the same order on every rank. Streams: the second
      // collective, on its own stream, reads the result of the first.
      const cudaStream_t after = mistake == Two::streams ? second.stream : r.stream;
      const auto first = [&] { return ncclAllReduce(x, one, n, ncclFloat32, ncclSum, r.comm, r.stream); };
      const auto then = [&] {
        return ncclAllReduce(mistake == Two::streams ? one : x, two, n, ncclFloat32, ncclSum, second.comm, after);
      };
      const bool swaps = bug && mistake == Two::order && r.rank == 1;
      const auto settled = [](const Rank& c) {
        ncclResult_t code = ncclInProgress;
        for (int i = 0; i < 20000 && code == ncclInProgress; ++i) ncclCommGetAsyncError(c.comm, &code);
        return code == ncclSuccess;
      };
      swaps ? then() : first();
      if (!settled(swaps ? second : r)) return false;
      if (mistake == Two::streams && !bug) {
        cudaEvent_t made = nullptr;
        cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
        cudaEventRecord(made, r.stream);
        cudaStreamWaitEvent(after, made, 0);
        cudaEventDestroy(made);
      }
      swaps ? first() : then();
      if (!settled(swaps ? r : second)) return false;
      const bool good = second.wait() && r.wait() && one.get()[0] == 3;
      return good && two.get()[0] == (mistake == Two::streams ? 6 : 3);
    });
  });
}

// --- buffers ---

enum class Place { right, offset, total, producer, reused };
// All-gather in place, then reduce-scatter.
template <Place mistake> bool places(bool bug) {
  const auto is = [=](Place which) { return bug && mistake == which; };
  fake::set_policy(fake::Policy::lazy);
  return as_threads([&](const Rank& r) {
    const Array x(values_of(r.rank)), all(2 * n), half(n);
    cudaStream_t producer = nullptr;
    cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking);
    cudaMemsetAsync(all, 0, 2 * n * sizeof(float), producer);
    // In place: the rank's own part is at its final offset.
    float* const own = all + (is(Place::offset) ? 0 : size_t(r.rank) * n);
    cudaMemcpyAsync(own, x, n * sizeof(float), cudaMemcpyDeviceToDevice, producer);
    if (!is(Place::producer)) cudaStreamSynchronize(producer);
    ncclAllGather(own, all, n, ncclFloat32, r.comm, r.stream);
    if (!r.wait()) return false;
    if (ncclReduceScatter(all, half, is(Place::total) ? 2 * n : n, ncclFloat32, ncclSum, r.comm, r.stream) ==
        ncclInvalidArgument)
      return false;
    if (is(Place::reused)) cudaMemsetAsync(all, 0, 2 * n * sizeof(float), producer);
    if (is(Place::reused)) cudaStreamSynchronize(producer);
    if (!r.wait()) return false;
    const std::vector<float> got = half.get(), gathered = all.get();
    cudaStreamDestroy(producer);
    return got[0] == 2 * float(r.rank + 1) && (is(Place::reused) || (gathered[0] == 1 && gathered[n] == 2));
  });
}

// --- messages in both directions, as between pipeline stages ---

enum class Both { right, one_stream, early, reused, freed };
// Rank 0 sends values and receives answers; both ranks post receives before later sends.
template <Both mistake> bool both_ways(bool bug) {
  const auto is = [=](Both which) { return bug && mistake == which; };
  fake::set_policy(fake::Policy::lazy);
  ncclUniqueId more;
  ncclGetUniqueId(&more);
  return as_threads([&](const Rank& there) {
    return with_comm(there.rank, more, [&](const Rank& second) {
      const Rank& back = is(Both::one_stream) ? there : second;
      const int other = 1 - there.rank;
      cudaStream_t maker = nullptr;
      cudaEvent_t made = nullptr;
      cudaStreamCreateWithFlags(&maker, cudaStreamNonBlocking);
      cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
      const Array source(values_of(there.rank));
      float* values = nullptr;
      cudaMallocAsync(reinterpret_cast<void**>(&values), n * sizeof(float), maker);
      cudaMemsetAsync(values, 0, n * sizeof(float), maker);
      cudaStreamSynchronize(maker);
      cudaMemcpyAsync(values, source, n * sizeof(float), cudaMemcpyDeviceToDevice, maker);
      cudaEventRecord(made, maker);
      for (const Rank* way : {&there, &second})
        if (!is(Both::early)) cudaStreamWaitEvent(way->stream, made, 0);
      const Array first(n), then(n);
      const auto settled = [](const Rank& c) {
        ncclResult_t code = ncclInProgress;
        for (int i = 0; i < 20000 && code == ncclInProgress; ++i) ncclCommGetAsyncError(c.comm, &code);
        return code == ncclSuccess;
      };
      const auto send = [&](const Rank& way) {
        ncclSend(values, n, ncclFloat32, other, way.comm, way.stream);
        return settled(way);
      };
      const auto receive = [&](const Array& to, const Rank& way) {
        ncclRecv(to, n, ncclFloat32, other, way.comm, way.stream);
        return settled(way);
      };
      // Two messages each way. Each rank posts its second receive before the send that the other one waits for.
      const bool put = there.rank == 0 ? send(there) && receive(first, back) && receive(then, back) && send(there)
                                       : receive(first, there) && receive(then, there) && send(back) && send(back);
      if (!put) return false;
      if (is(Both::reused)) cudaMemsetAsync(values, 0, n * sizeof(float), maker);
      if (is(Both::freed)) cudaFreeAsync(values, maker);
      if (is(Both::reused) || is(Both::freed)) cudaStreamSynchronize(maker);
      if (!there.wait() || !back.wait()) return false;
      if (!is(Both::freed)) cudaFreeAsync(values, maker);
      const float expected = float(other + 1);
      const bool good = first.get()[n - 1] == expected && then.get()[n - 1] == expected;
      cudaEventDestroy(made);
      cudaStreamDestroy(maker);
      return good;
    });
  });
}

enum class Known { right, left_out, size, mixed, offset, early, freed, late, plain };

// Windows: symmetric memory, summed in place.
template <Known mistake> bool windows(bool bug) {
  std::atomic<bool> closed{false};
  return as_threads([&](const Rank& r) {
    const auto is = [=](Known which, int rank = 1) { return bug && mistake == which && r.rank == rank; };
    const std::vector<float> values = values_of(r.rank);
    constexpr size_t bytes = 8192;
    void *data = nullptr, *other = nullptr;
    ncclWindow_t window = nullptr;
    if (is(Known::plain)) cudaMalloc(&data, bytes);
    else ncclMemAlloc(&data, bytes);
    cudaMalloc(&other, bytes);
    bool good = true;
    if (!is(Known::left_out)) {
      const size_t wanted = is(Known::size) ? bytes / 2 : bytes;
      const ncclResult_t code = ncclCommWindowRegister(r.comm, data, wanted, &window, NCCL_WIN_COLL_SYMMETRIC);
      good = (code == ncclSuccess || code == ncclInProgress) && r.wait() && window;
    }
    float* const place = static_cast<float*>(is(Known::mixed) ? other : data) + (is(Known::offset) ? n : 0);
    if (good) {
      cudaMemcpyAsync(place, values.data(), n * sizeof(float), cudaMemcpyHostToDevice, r.stream);
      cudaStreamSynchronize(r.stream);
      for (int k = 0; k < 20000 && is(Known::early, 0) && !closed; ++k) usleep(100);  // the sum is still pending
      ncclAllReduce(place, place, n, ncclFloat32, ncclSum, r.comm, r.stream);
      if (is(Known::early)) good = ncclCommWindowDeregister(r.comm, window) == ncclSuccess, closed = true;
      good = r.wait() && good;
    }
    std::vector<float> sum(n);
    if (good) cudaMemcpy(sum.data(), place, n * sizeof(float), cudaMemcpyDeviceToHost);
    good = good && sum[0] == 3 && sum[n - 1] == 3;
    if (is(Known::freed)) good = ncclMemFree(data) == ncclSuccess && good;
    if (is(Known::late)) good = ncclCommDestroy(r.comm) == ncclSuccess && good;
    if (good && !is(Known::early)) good = ncclCommWindowDeregister(r.comm, window) == ncclSuccess;
    if (good && !is(Known::freed)) ncclMemFree(data);
    cudaFree(other);
    return good;
  });
}

// --- sums in pieces ---

enum class Piece { early, unread, first };
// Each half is summed while the other half is being produced; the result is read on the stream that produced the
// values.
template <Piece mistake> bool in_pieces(bool bug) {
  const auto is = [=](Piece which) { return bug && mistake == which; };
  fake::set_policy(fake::Policy::lazy);
  return as_threads([&](const Rank& r) {
    const Array source(values_of(r.rank)), made(std::vector<float>(2 * n)), sum(std::vector<float>(2 * n)), out(2 * n);
    cudaStream_t maker = nullptr;
    cudaEvent_t ready = nullptr, summed = nullptr;
    cudaStreamCreateWithFlags(&maker, cudaStreamNonBlocking);
    for (cudaEvent_t* e : {&ready, &summed}) cudaEventCreateWithFlags(e, cudaEventDisableTiming);
    for (size_t i = 0; i < 2; ++i) {
      const bool early = is(Piece::early) && i == 1;
      if (early) cudaEventRecord(ready, maker);
      cudaMemcpyAsync(made + i * n, source + i * n, n * sizeof(float), cudaMemcpyDeviceToDevice, maker);
      if (!early) cudaEventRecord(ready, maker);
      cudaStreamWaitEvent(r.stream, ready, 0);
      ncclAllReduce(made + i * n, sum + i * n, n, ncclFloat32, ncclSum, r.comm, r.stream);
      ncclResult_t code = ncclInProgress;
      for (int k = 0; k < 20000 && code == ncclInProgress; ++k) ncclCommGetAsyncError(r.comm, &code);
      if (code != ncclSuccess) return false;
      if (i == 0 || !is(Piece::first)) cudaEventRecord(summed, r.stream);
    }
    if (mistake == Piece::early && !r.wait()) return false;
    if (!is(Piece::unread)) cudaStreamWaitEvent(maker, summed, 0);
    cudaMemcpyAsync(out, sum, 2 * n * sizeof(float), cudaMemcpyDeviceToDevice, maker);
    cudaStreamSynchronize(maker);
    const std::vector<float> got = out.get();
    const bool good = r.wait() && got[0] == 3 && got[2 * n - 1] == 3;
    for (const cudaEvent_t e : {ready, summed}) cudaEventDestroy(e);
    cudaStreamDestroy(maker);
    return good;
  });
}

}  // namespace

std::vector<Case> rank_cases() {
  return {
      {"counts that differ", counts_that_differ, every},
      {"counts that differ, in processes", counts_that_differ_in_processes, every},
      {"both ranks send first", both_send_first, every},
      {"a collective that one rank leaves out", a_collective_that_one_rank_leaves_out, every},
      {"two ranks on one device", two_ranks_on_one_device, every},
      {"collectives in another order", asks<Ask::order>, every},
      {"half the count on one rank", asks<Ask::count>, every},
      {"another type of the same size", asks<Ask::type>, every},
      {"another operation", asks<Ask::operation>, every},
      {"another root", asks<Ask::root>, every},
      {"group that is not closed", asks<Ask::group>, every},
      {"message to itself, not the peer", asks<Ask::peer>, every},
      {"message longer than what is received", asks<Ask::size>, every},
      {"two communicators in another order", two_communicators<Two::order>, every},
      {"second communicator not behind the first", two_communicators<Two::streams>, every},
      {"gathered in place at the wrong offset", places<Place::offset>, every},
      {"total for the count of one rank", places<Place::total>, every},
      {"collective before its input is made", places<Place::producer>, every},
      {"input used again before the collective", places<Place::reused>, every},
      {"one stream for both ways, receives ahead", both_ways<Both::one_stream>, every},
      {"message before it is made", both_ways<Both::early>, every},
      {"message made anew before it has gone", both_ways<Both::reused>, every},
      {"message freed before it has gone", both_ways<Both::freed>, every},
      {"window that one rank does not make", windows<Known::left_out>, every},
      {"windows of other sizes", windows<Known::size>, every},
      {"window on one rank, other memory on the other", windows<Known::mixed>, every},
      {"another place in the window", windows<Known::offset>, every},
      {"window closed before the sum is there", windows<Known::early>, every},
      {"memory freed while registered as a window", windows<Known::freed>, every},
      {"communicator destroyed before its window", windows<Known::late>, every},
      {"window of memory that is not NCCL's", windows<Known::plain>, every},
      {"sum of a piece before it is made", in_pieces<Piece::early>, every},
      {"pieces read before their sums", in_pieces<Piece::unread>, every},
      {"reader that waits for the first sum", in_pieces<Piece::first>, every},
  };
}

}  // namespace mutants
