// Planted bugs in graphs that contain collectives, with threads as ranks.
#include "tests/cudasim/mutants/ranks.h"

namespace mutants {
namespace {

/// Waits until NCCL has put the calls on their stream; true if they succeeded.
bool is_settled(const Rank& r) {
  ncclResult_t code = ncclInProgress;
  for (int i = 0; i < 20000 && code == ncclInProgress; ++i) ncclCommGetAsyncError(r.comm, &code);
  return code == ncclSuccess;
}

/// Rank::wait() without its abort.
bool is_done(const Rank& r) {
  ncclResult_t code = ncclSuccess;
  for (int i = 0; i < 3000; ++i) {
    ncclCommGetAsyncError(r.comm, &code);
    if (code != ncclSuccess && code != ncclInProgress) return false;
    if (code == ncclSuccess && cudaStreamQuery(r.stream) == cudaSuccess) return true;
    usleep(100);
  }
  return false;
}

struct Events {
  Events() {
    for (cudaEvent_t& event : all) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  ~Events() {
    for (cudaEvent_t event : all) cudaEventDestroy(event);
  }
  cudaEvent_t all[3];
};

enum class Recording { right, outside, producer, consumer, join, asked, communicator, order, called, swapped };

// x -> y; on a stream beside it, the sum of y over ranks (or, by message, the other rank's y); -> z. Replayed twice.
template <Recording mistake, bool by_message = false> bool records(bool bug) {
  return in_all_policies([=] {
    ncclUniqueId more;
    ncclGetUniqueId(&more);
    return as_threads([=](const Rank& r) {
      const auto is = [=](Recording which) { return bug && mistake == which; };
      const Array x(values_of(r.rank)), y(2 * n), z(2 * n), theirs(2 * n);
      cudaStream_t beside = nullptr, other = nullptr;
      cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking);
      cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
      const Events events;
      const auto behind = [&](cudaStream_t waits, cudaStream_t of, int event) {
        cudaEventRecord(events.all[event], of);
        cudaStreamWaitEvent(waits, events.all[event], 0);
      };
      const auto copy = [&](const Array& to, const Array& from) {
        cudaMemcpyAsync(to, from, 2 * n * sizeof(float), cudaMemcpyDeviceToDevice, r.stream);
      };
      const auto record = [&](ncclRedOp_t op, cudaGraphExec_t* exec) {
        bool good = cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeRelaxed) == cudaSuccess;
        behind(beside, r.stream, 0);
        copy(y, x);
        if (!is(Recording::producer)) behind(beside, r.stream, 1);
        const cudaStream_t on = is(Recording::outside) ? other : beside;
        const auto exchange = [&] {
          ncclGroupStart();
          ncclSend(y, 2 * n, ncclFloat32, 1 - r.rank, r.comm, on);
          ncclRecv(theirs, 2 * n, ncclFloat32, 1 - r.rank, r.comm, on);
          return ncclGroupEnd();
        };
        const ncclResult_t code = by_message ? exchange() : ncclAllReduce(y, y, 2 * n, ncclFloat32, op, r.comm, on);
        good = good && (code == ncclSuccess || code == ncclInProgress) && is_settled(r);
        cudaEventRecord(events.all[2], beside);
        if (is(Recording::asked)) good = good && cudaEventQuery(events.all[2]) == cudaSuccess;
        const bool early = !is(Recording::consumer) && !is(Recording::join);
        if (early) cudaStreamWaitEvent(r.stream, events.all[2], 0);
        copy(z, by_message ? theirs : y);
        if (is(Recording::consumer)) cudaStreamWaitEvent(r.stream, events.all[2], 0);
        if (is(Recording::communicator)) {
          ncclComm_t made = nullptr;
          const ncclResult_t begun = ncclCommInitRankConfig(&made, ranks, more, r.rank, nullptr);
          good = good && (begun == ncclSuccess || begun == ncclInProgress);
        }
        cudaGraph_t graph = nullptr;
        const bool ended = cudaStreamEndCapture(r.stream, &graph) == cudaSuccess;
        good = good && ended && cudaGraphInstantiate(exec, graph, 0) == cudaSuccess;
        if (graph) cudaGraphDestroy(graph);
        return good;
      };
      const bool swaps = r.rank == 1;
      cudaGraphExec_t graphs[2] = {};
      // Two graphs: one computes sums, one maxima. Or both compute sums, so that only the other rank can tell them
      // apart.
      const ncclRedOp_t second = mistake == Recording::swapped ? ncclSum : ncclMax;
      bool good = record(is(Recording::order) && swaps ? second : ncclSum, &graphs[0]) &&
                  record(is(Recording::order) && swaps ? ncclSum : second, &graphs[1]);
      const auto replay = [&](int i) {
        good = good && cudaGraphLaunch(graphs[i], r.stream) == cudaSuccess && is_done(r);
        const float wanted = by_message ? values_of(1 - r.rank)[0] : i == 0 || second == ncclSum ? 3 : 2;
        good = good && z.get()[0] == wanted && z.get()[2 * n - 1] == wanted;
      };
      for (const int i : {0, 1, 0}) replay(i);
      if (is(Recording::swapped)) replay(swaps ? 1 : 0);
      if (is(Recording::called) && swaps) {
        ncclAllReduce(y, y, 2 * n, ncclFloat32, ncclSum, r.comm, r.stream);
        good = good && is_done(r);
      } else if (good) {
        replay(0);
      }
      if (good) cudaDeviceSynchronize();
      for (cudaGraphExec_t graph : graphs)
        if (graph) cudaGraphExecDestroy(graph);
      if (!good) ncclCommAbort(r.comm);  // only after the graphs with its collectives are destroyed
      r.failed = !good;
      cudaStreamDestroy(beside);
      cudaStreamDestroy(other);
      return good;
    });
  });
}

}  // namespace

std::vector<Case> recorded_cases() {
  return {
      {"recorded: collective on a stream outside", records<Recording::outside>, every},
      {"recorded: messages on a stream outside", records<Recording::outside, true>, every},
      {"recorded: message not behind what it sends", records<Recording::producer, true>, every},
      {"recorded: received memory used beside the message", records<Recording::consumer, true>, every},
      {"recorded: messages that nothing waits for", records<Recording::join, true>, every},
      {"recorded: collective not behind its input", records<Recording::producer>, every},
      {"recorded: result used beside the collective", records<Recording::consumer>, every},
      {"recorded: collective that nothing waits for", records<Recording::join>, every},
      {"recorded: event of the graph asked", records<Recording::asked>, every},
      {"recorded: communicator made inside", records<Recording::communicator>, every},
      {"recorded: collectives in another order", records<Recording::order>, every},
      {"recorded: one rank replays, one calls", records<Recording::called>, every},
      {"recorded: graphs in another order", records<Recording::swapped>, every},
  };
}

}  // namespace mutants
