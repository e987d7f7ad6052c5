// Planted bugs in graphs that contain collectives, with threads as ranks.
#include "tests/cudasim/mutants/ranks.h"

namespace mutants {
namespace {

// x -> y; on a stream beside it, the sum of y over ranks (or, by message, the other rank's y); -> z. Replayed twice.
template <bool by_message = false> bool records(Bug bug) {
  return in_all_policies([=] {
    ncclUniqueId more;
    ncclGetUniqueId(&more);
    return as_threads([=](const Rank& r) {
      const Array x(values_of(r.rank)), y(2 * n), z(2 * n), theirs(2 * n);
      const Streams s;
      const cudaStream_t beside = s.first, other = s.second;
      const auto copy = [&](const Array& to, const Array& from) {
        cudaMemcpyAsync(to, from, 2 * n * sizeof(float), cudaMemcpyDeviceToDevice, r.stream);
      };
      const auto record = [&](ncclRedOp_t op, cudaGraphExec_t* exec) {
        bool good = cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeRelaxed) == cudaSuccess;
        behind(beside, r.stream, s.ready);
        copy(y, x);
        if (!bug("producer")) behind(beside, r.stream, s.ready);
        const cudaStream_t on = bug("outside") ? other : beside;
        const auto exchange = [&] {
          ncclGroupStart();
          ncclSend(y, 2 * n, ncclFloat32, 1 - r.rank, r.comm, on);
          ncclRecv(theirs, 2 * n, ncclFloat32, 1 - r.rank, r.comm, on);
          return ncclGroupEnd();
        };
        const ncclResult_t code = by_message ? exchange() : ncclAllReduce(y, y, 2 * n, ncclFloat32, op, r.comm, on);
        good = good && (code == ncclSuccess || code == ncclInProgress) && r.settles();
        cudaEventRecord(s.finished, beside);
        if (bug("asked")) good = good && cudaEventQuery(s.finished) == cudaSuccess;
        const bool early = !bug("consumer") && !bug("join");
        if (early) cudaStreamWaitEvent(r.stream, s.finished, 0);
        copy(z, by_message ? theirs : y);
        if (bug("consumer")) cudaStreamWaitEvent(r.stream, s.finished, 0);
        if (bug("communicator")) {
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
      const ncclRedOp_t second = bug.mistake == "swapped" ? ncclSum : ncclMax;
      bool good = record(bug("order") && swaps ? second : ncclSum, &graphs[0]) &&
                  record(bug("order") && swaps ? ncclSum : second, &graphs[1]);
      const auto replay = [&](int i) {
        good = good && cudaGraphLaunch(graphs[i], r.stream) == cudaSuccess && r.is_done(3000);
        const float wanted = by_message ? values_of(1 - r.rank)[0] : i == 0 || second == ncclSum ? 3 : 2;
        good = good && z.get()[0] == wanted && z.get()[2 * n - 1] == wanted;
      };
      for (const int i : {0, 1, 0}) replay(i);
      if (bug("swapped")) replay(swaps ? 1 : 0);
      if (bug("called") && swaps) {
        ncclAllReduce(y, y, 2 * n, ncclFloat32, ncclSum, r.comm, r.stream);
        good = good && r.is_done(3000);
      } else if (good) {
        replay(0);
      }
      if (good) cudaDeviceSynchronize();
      for (cudaGraphExec_t graph : graphs)
        if (graph) cudaGraphExecDestroy(graph);
      if (!good) ncclCommAbort(r.comm);  // only after the graphs with its collectives are destroyed
      r.failed = !good;
      return good;
    });
  });
}

const Cases cases{
    {"recorded: collective on a stream outside", records, "outside"},
    {"recorded: messages on a stream outside", records<true>, "outside"},
    {"recorded: message not behind what it sends", records<true>, "producer"},
    {"recorded: received memory used beside the message", records<true>, "consumer"},
    {"recorded: messages that nothing waits for", records<true>, "join"},
    {"recorded: collective not behind its input", records, "producer"},
    {"recorded: result used beside the collective", records, "consumer"},
    {"recorded: collective that nothing waits for", records, "join"},
    {"recorded: event of the graph asked", records, "asked"},
    {"recorded: communicator made inside", records, "communicator"},
    {"recorded: collectives in another order", records, "order"},
    {"recorded: one rank replays, one calls", records, "called"},
    {"recorded: graphs in another order", records, "swapped"},
};

}  // namespace
}  // namespace mutants
