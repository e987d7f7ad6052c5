// Planted bugs in calls of NCCL, with threads and with processes as ranks.
#include <sys/wait.h>
#include <unistd.h>

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
  return holds(0, n, float(other + 1));
}
bool counts_differ(Bug bug) {
  const auto body = [=](const Rank& r) { return all_collectives(r, bug && r.rank == 1 ? n + 1 : n); };
  return bug.mistake == "processes" ? as_processes(body) : as_threads(body);
}
bool a_collective_that_one_rank_skips(Bug bug) {
  return as_threads([=](const Rank& r) {
    const Array x(values_of(r.rank));
    if (!bug || r.rank == 0) ncclAllReduce(x, x, n, ncclFloat32, ncclSum, r.comm, r.stream);
    return r.wait();
  });
}
bool two_ranks_on_one_device(Bug bug) {
  return as_threads([](const Rank&) { return true; }, bug);
}

// --- mismatched calls ---

// A sum, a broadcast and a message, and checks of their results.
bool asks(Bug bug) {
  return as_threads([=](const Rank& r) {
    const auto is = [=](std::string_view which) { return r.rank == 1 && bug(which); };
    const Array x(values_of(r.rank)), sum(2 * n), from(2 * n), got(2 * n);
    const int other = 1 - r.rank;
    const auto add_up = [&] {
      return ncclAllReduce(x, sum, is("count") ? n / 2 : n, is("type") ? ncclInt32 : ncclFloat32,
                           is("operation") ? ncclMax : ncclSum, r.comm, r.stream);
    };
    const auto hand_out = [&] { return ncclBroadcast(x, from, n, ncclFloat32, is("root") ? 0 : 1, r.comm, r.stream); };
    is("order") ? hand_out() : add_up();
    if (!r.wait()) return false;
    is("order") ? add_up() : hand_out();
    if (!r.wait()) return false;
    if (!bug("both_first")) ncclGroupStart();
    ncclSend(x, is("size") ? n / 2 : n, ncclFloat32, is("peer") ? r.rank : other, r.comm, r.stream);
    ncclRecv(got, n, ncclFloat32, is("peer") ? r.rank : other, r.comm, r.stream);
    if (!is("group") && !bug("both_first")) ncclGroupEnd();
    return r.wait() && sum.get()[0] == 3 && from.get()[0] == 2 && got.get()[0] == float(other + 1);
  });
}

// --- two communicators of the same ranks ---

bool two_communicators(Bug bug) {
  ncclUniqueId more;
  ncclGetUniqueId(&more);
  return as_threads([=](const Rank& r) {
    return with_comm(r.rank, more, [&](const Rank& second) {
      const Array x(values_of(r.rank)), one(2 * n), two(2 * n);
      const Streams s;
      cudaDeviceSynchronize();
      // Order: both collectives are on one stream, so they must have the same order on every rank. Streams: the second
      // collective, on its own stream, reads the result of the first.
      const cudaStream_t after = bug.mistake == "streams" ? second.stream : r.stream;
      const auto first = [&] { return ncclAllReduce(x, one, n, ncclFloat32, ncclSum, r.comm, r.stream); };
      const auto then = [&] {
        return ncclAllReduce(bug.mistake == "streams" ? one : x, two, n, ncclFloat32, ncclSum, second.comm, after);
      };
      const bool swaps = bug("order") && r.rank == 1;
      swaps ? then() : first();
      if (!(swaps ? second : r).settles()) return false;
      if (bug.mistake == "streams" && !bug) behind(after, r.stream, s.ready);
      swaps ? first() : then();
      if (!(swaps ? r : second).settles()) return false;
      const bool good = second.wait() && r.wait() && one.get()[0] == 3;
      return good && two.get()[0] == (bug.mistake == "streams" ? 6 : 3);
    });
  });
}

// --- buffers ---

// All-gather in place, then reduce-scatter.
bool places(Bug bug) {
  fake::set_policy(fake::Policy::lazy);
  return as_threads([&](const Rank& r) {
    const Array x(values_of(r.rank)), all(2 * n), half(n);
    const Streams s;  // the first one makes the input
    cudaMemsetAsync(all, 0, 2 * n * sizeof(float), s.first);
    // In place: the rank's own part is at its final offset.
    float* const own = all + (bug("offset") ? 0 : size_t(r.rank) * n);
    cudaMemcpyAsync(own, x, n * sizeof(float), cudaMemcpyDeviceToDevice, s.first);
    if (!bug("producer")) cudaStreamSynchronize(s.first);
    ncclAllGather(own, all, n, ncclFloat32, r.comm, r.stream);
    if (!r.wait()) return false;
    if (ncclReduceScatter(all, half, bug("total") ? 2 * n : n, ncclFloat32, ncclSum, r.comm, r.stream) ==
        ncclInvalidArgument)
      return false;
    if (bug("reused")) cudaMemsetAsync(all, 0, 2 * n * sizeof(float), s.first);
    if (bug("reused")) cudaStreamSynchronize(s.first);
    if (!r.wait()) return false;
    const std::vector<float> got = half.get(), gathered = all.get();
    return got[0] == 2 * float(r.rank + 1) && (bug("reused") || (gathered[0] == 1 && gathered[n] == 2));
  });
}

// --- messages in both directions, as between pipeline stages ---

// Rank 0 sends values and receives answers; both ranks post receives before later sends.
bool both_ways(Bug bug) {
  fake::set_policy(fake::Policy::lazy);
  ncclUniqueId more;
  ncclGetUniqueId(&more);
  return as_threads([&](const Rank& there) {
    return with_comm(there.rank, more, [&](const Rank& second) {
      const Rank& back = bug("one_stream") ? there : second;
      const int other = 1 - there.rank;
      const Streams s;
      const cudaStream_t maker = s.first;
      const Array source(values_of(there.rank));
      float* values = nullptr;
      cudaMallocAsync(reinterpret_cast<void**>(&values), n * sizeof(float), maker);
      cudaMemsetAsync(values, 0, n * sizeof(float), maker);
      cudaStreamSynchronize(maker);
      cudaMemcpyAsync(values, source, n * sizeof(float), cudaMemcpyDeviceToDevice, maker);
      cudaEventRecord(s.ready, maker);
      for (const Rank* way : {&there, &second})
        if (!bug("early")) cudaStreamWaitEvent(way->stream, s.ready, 0);
      const Array first(n), then(n);
      const auto send = [&](const Rank& way) {
        ncclSend(values, n, ncclFloat32, other, way.comm, way.stream);
        return way.settles();
      };
      const auto receive = [&](const Array& to, const Rank& way) {
        ncclRecv(to, n, ncclFloat32, other, way.comm, way.stream);
        return way.settles();
      };
      // Two messages each way. Each rank posts its second receive before the send that the other one waits for.
      const bool put = there.rank == 0 ? send(there) && receive(first, back) && receive(then, back) && send(there)
                                       : receive(first, there) && receive(then, there) && send(back) && send(back);
      if (!put) return false;
      if (bug("reused")) cudaMemsetAsync(values, 0, n * sizeof(float), maker);
      if (bug("freed")) cudaFreeAsync(values, maker);
      if (bug("reused") || bug("freed")) cudaStreamSynchronize(maker);
      if (!there.wait() || !back.wait()) return false;
      if (!bug("freed")) cudaFreeAsync(values, maker);
      const float expected = float(other + 1);
      return first.get()[n - 1] == expected && then.get()[n - 1] == expected;
    });
  });
}

const Cases cases{
    {"counts that differ", counts_differ},
    {"counts that differ, in processes", counts_differ, "processes"},
    {"both ranks send first", asks, "both_first"},
    {"a collective that one rank leaves out", a_collective_that_one_rank_skips},
    {"two ranks on one device", two_ranks_on_one_device},
    {"collectives in another order", asks, "order"},
    {"half the count on one rank", asks, "count"},
    {"another type of the same size", asks, "type"},
    {"another operation", asks, "operation"},
    {"another root", asks, "root"},
    {"group that is not closed", asks, "group"},
    {"message to itself, not the peer", asks, "peer"},
    {"message longer than what is received", asks, "size"},
    {"two communicators in another order", two_communicators, "order"},
    {"second communicator not behind the first", two_communicators, "streams"},
    {"gathered in place at the wrong offset", places, "offset"},
    {"total for the count of one rank", places, "total"},
    {"collective before its input is made", places, "producer"},
    {"input used again before the collective", places, "reused"},
    {"one stream for both ways, receives ahead", both_ways, "one_stream"},
    {"message before it is made", both_ways, "early"},
    {"message made anew before it has gone", both_ways, "reused"},
    {"message freed before it has gone", both_ways, "freed"},
};

}  // namespace
}  // namespace mutants
