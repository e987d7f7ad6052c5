// Process groups over MPI. See mpi_groups.h.
#include "extensions/mpi_groups/mpi_groups.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <tuple>

#include "dist/call_queue.h"
#include "dist/fingerprint.h"
#include "dist/job.h"
#include "dist/process_group.h"
#include "dist/reduce.h"
#include "dist/schedules/writer.h"
#include "dist/shard.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int types = 9, ops = 5;
constexpr int header_tag = 0, data_tag = 1;

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw DistError(Fault::rank_failed, -1,
                  str("[mpi] ", what, " failed: ", std::string(text, size_t(length)), "; fix what mpirun reports"));
}

// The reduction that MPI calls uses our arithmetic, so that f16, bf16, bool and NaN behave the same in every engine.
template <int dtype, int op> void reduce(void* source, void* target, int* count, MPI_Datatype*) {
  reduce_into(DType(dtype), ReduceOp(op), static_cast<std::byte*>(target), static_cast<const std::byte*>(source),
              *count);
}

struct Types {
  MPI_Datatype element[types];
  MPI_Op op[types][ops];

  Types() {
    for (int t = 0; t < types; ++t) {
      check(MPI_Type_contiguous(int(size_of(DType(t))), MPI_BYTE, &element[t]), "MPI_Type_contiguous");
      check(MPI_Type_commit(&element[t]), "MPI_Type_commit");
    }
    make_ops(std::make_integer_sequence<int, types * ops>());
  }
  template <int... i> void make_ops(std::integer_sequence<int, i...>) {
    (check(MPI_Op_create(&reduce<i / ops, i % ops>, 1, &op[i / ops][i % ops]), "MPI_Op_create"), ...);
  }
};
const Types& the_types() {
  static const Types types;  // freed by MPI_Finalize
  return types;
}

void* bytes_of(const Tensor& t) { return t.defined() ? t.raw_data() : nullptr; }

class MpiGroup final : public ProcessGroup {
 public:
  MpiGroup(std::shared_ptr<Job> job, Membership member, MPI_Comm comm)
      : ProcessGroup(member), engine_(std::make_shared<Engine>(std::move(job), std::move(member), comm, traffic_)) {}
  ~MpiGroup() override {
    if (!engine_->job->maker.is_here()) never_destroy(std::move(engine_));
    else if (!engine_->call_queue.idle()) engine_->job->keep(engine_);
  }
  const char* engine() const override { return "mpi"; }
  Control& control() override { return *engine_->job->control; }

 private:
  Work run(Call call, bool async) override;
  std::shared_ptr<ProcessGroup> make_group(Membership member, const std::vector<int>& ranks) override;
  struct Engine : Membership {
    Engine(std::shared_ptr<Job> job_, Membership member, MPI_Comm comm_, std::shared_ptr<Traffic> traffic_)
        : Membership(std::move(member)),
          job(std::move(job_)),
          comm(comm_),
          traffic(std::move(traffic_)),
          call_queue(*job, *this, traffic, [this](Call& call, uint64_t number) { move(call, number); }) {}
    ~Engine() {
      int over = 0;
      MPI_Finalized(&over);
      if (!over && !job->control->failed() && comm != MPI_COMM_WORLD) MPI_Comm_free(&comm);
    }

    int size() const { return int(world_ranks.size()); }
    void move(Call& call, uint64_t number);
    void agree(const Call& call, uint64_t number);
    void collective(const Call& call);
    void messages(const Call& call);
    void wait(std::vector<MPI_Request> requests, const Call& call, std::shared_ptr<const void> memory, int peer,
              uint64_t count = 0, bool is_send = false);

    std::shared_ptr<Job> job;
    MPI_Comm comm;
    std::shared_ptr<Traffic> traffic;
    CallQueue call_queue;  // last: its thread ends before the members it uses
  };

  std::shared_ptr<Engine> engine_;
};

// Waits for requests by polling with a timeout, since MPI itself waits without a limit. After a failure, what MPI may
// still use (the call's tensors, and `memory`) is kept until the process ends.
void MpiGroup::Engine::wait(std::vector<MPI_Request> requests, const Call& call, std::shared_ptr<const void> memory,
                            int peer, uint64_t count, bool is_send) {
  static auto* kept = new std::vector<std::tuple<Call, std::shared_ptr<const void>, std::vector<MPI_Request>>>;
  static std::mutex kept_mutex;
  const auto start = Clock::now();
  auto reported = start;
  try {
    for (int round = 0;; ++round) {
      int done = 0;
      check(MPI_Testall(int(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
      if (done) return;
      if (job->control->failed()) job->control->raise();
      if (round < 200) continue;
      round < 2000 ? (void)sched_yield() : std::this_thread::sleep_for(std::chrono::microseconds(50));
      const auto now = Clock::now();
      if (now - reported > job->control->place().heartbeat) {
        job->control->waits(world_ranks[size_t(peer)], count, is_send);
        reported = now;
      }
      if (now - start > call_queue.timeout_of(call)) {
        throw DistError(
            Fault::timeout, -1,
            str("[", name_of(call.collective), "] waited ", call_queue.timeout_of(call).count(), " s in group ", name,
                " for ", call_queue.activity.collective, "; ", job->control->explain(world_ranks),
                "; see the output of the late ranks, or raise the timeout"));
      }
    }
  } catch (...) {
    const std::lock_guard lock(kept_mutex);
    kept->emplace_back(call, std::move(memory), std::move(requests));
    throw;
  }
}

// Exchanges headers among all ranks before data moves.
void MpiGroup::Engine::agree(const Call& call, uint64_t number) {
  const bool one_sided = call.collective == Collective::gather || call.collective == Collective::scatter;
  // The headers received from all ranks, by rank; after them, the header that this rank sends.
  const auto headers = std::make_shared<std::vector<Header>>(size_t(size() + 1));
  Header& mine = headers->back();
  mine = call_queue.header(call, number);
  const Tensor& part = call.collective == Collective::gather ? call.input : call.output;
  if (one_sided) mine.count = 0;
  if (one_sided) mine.payload = uint64_t(part.numel());
  seal(mine);
  MPI_Request request;
  check(MPI_Iallgather(&mine, sizeof(Header), MPI_BYTE, headers->data(), sizeof(Header), MPI_BYTE, comm, &request),
        "MPI_Iallgather");
  wait({request}, call, headers, (rank + 1) % size());
  for (int r = 0; r < size(); ++r) {
    Header theirs = (*headers)[size_t(r)];
    check_sealed(theirs, world_ranks[size_t(r)]);
    Header own = mine;
    if (one_sided)
      own.payload = rank == call.root ? uint64_t(shard_range(call.count, size(), r).size()) : theirs.payload;
    if (r != rank) check_same(own, theirs, name);
  }
}

void MpiGroup::Engine::collective(const Call& call) {
  const int n = size();
  const int64_t bytes = size_of(call.dtype);
  const auto element = the_types().element[int(call.dtype)];
  const auto op = the_types().op[int(call.dtype)][int(call.op == ReduceOp::mean ? ReduceOp::sum : call.op)];
  auto *input = static_cast<std::byte*>(bytes_of(call.input)), *output = static_cast<std::byte*>(bytes_of(call.output));
  std::vector<int> counts, starts;
  for (int r = 0; r < n && call.count >= 0; ++r) {
    const Range range = shard_range(call.count, n, r);
    counts.push_back(int(range.size()));
    starts.push_back(int(range.begin));
  }
  counts.resize(size_t(n));
  starts.resize(size_t(n));
  const int count = int(std::max<int64_t>(call.count, 0)), own = counts[size_t(rank)], start = starts[size_t(rank)];
  Tensor scratch;
  const void* source = input == output ? MPI_IN_PLACE : input;
  MPI_Request request = MPI_REQUEST_NULL;
  int64_t result = count;  // elements of this rank's result
  switch (call.collective) {
    case Collective::all_reduce:
      check(MPI_Iallreduce(source, output, count, element, op, comm, &request), "MPI_Iallreduce");
      break;
    case Collective::broadcast:
      check(MPI_Ibcast(output, count, element, call.root, comm, &request), "MPI_Ibcast");
      break;
    case Collective::reduce:
      check(
          MPI_Ireduce(rank == call.root ? MPI_IN_PLACE : input, output, count, element, op, call.root, comm, &request),
          "MPI_Ireduce");
      if (rank != call.root) result = 0;
      break;
    case Collective::all_gather: {
      const bool inside = input == output + start * bytes;
      check(MPI_Iallgatherv(inside ? MPI_IN_PLACE : input, own, element, output, counts.data(), starts.data(), element,
                            comm, &request),
            "MPI_Iallgatherv");
      break;
    }
    case Collective::reduce_scatter:
      if (output == input + start * bytes) scratch = call.output.clone();  // MPI must not write where it reads
      check(MPI_Ireduce_scatter(input, scratch.defined() ? scratch.raw_data() : output, counts.data(), element, op,
                                comm, &request),
            "MPI_Ireduce_scatter");
      result = own;
      break;
    case Collective::gather: {
      const bool inside = rank == call.root && input == output + start * bytes;
      check(MPI_Igatherv(inside ? MPI_IN_PLACE : input, int(call.input.numel()), element, output, counts.data(),
                         starts.data(), element, call.root, comm, &request),
            "MPI_Igatherv");
      break;
    }
    case Collective::scatter: {
      const bool inside = rank == call.root && output == input + start * bytes;
      check(MPI_Iscatterv(input, counts.data(), starts.data(), element, inside ? MPI_IN_PLACE : output,
                          int(call.output.numel()), element, call.root, comm, &request),
            "MPI_Iscatterv");
      break;
    }
    case Collective::all_to_all:
      if (input == output) scratch = call.input.clone();
      check(MPI_Ialltoall(scratch.defined() ? scratch.raw_data() : input, count / n, element, output, count / n,
                          element, comm, &request),
            "MPI_Ialltoall");
      break;
    default: return;
  }
  wait({request}, call, std::make_shared<Tensor>(scratch), (rank + 1) % n);
  if (call.collective == Collective::reduce_scatter && scratch.defined() && own > 0)
    std::memcpy(output, scratch.raw_data(), size_t(own * bytes));
  if (is_reduction(call.collective) && call.op == ReduceOp::mean) divide(call.dtype, output, result, n);
}

// Moves messages. A message is a header and, if both sides agree, the data. All headers of a batch are sent first.
void MpiGroup::Engine::messages(const Call& call) {
  const auto memory = std::make_shared<std::pair<std::vector<Message>, std::vector<Header>>>();
  auto& batch = memory->first;
  auto& theirs = memory->second;
  batch = call_queue.begin_messages(call);
  theirs.resize(batch.size());
  for (Message& m : batch) {
    LOCKSTEP_CHECK(m.header.count <= INT_MAX, "[", name_of(Collective(m.header.kind)), "] expected at most ", INT_MAX,
                   " elements over MPI, got ", m.header.count, "; send it in parts");
    m.header.payload = m.data.size();
    seal(m.header);
  }
  if (batch.empty()) return;
  const Message& first = *std::ranges::min_element(batch, {}, &Message::is_send);
  const auto both = [&](const char* what, auto post) {
    std::vector<MPI_Request> requests(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) check(post(batch[i], theirs[i], &requests[i]), what);
    wait(std::move(requests), call, memory, first.peer, first.header.sequence, first.is_send);
  };
  both("a header", [&](const Message& m, Header& their, MPI_Request* r) {
    return m.is_send ? MPI_Isend(&m.header, sizeof(Header), MPI_BYTE, m.peer, header_tag, comm, r)
                     : MPI_Irecv(&their, sizeof(Header), MPI_BYTE, m.peer, header_tag, comm, r);
  });
  for (size_t i = 0; i < batch.size(); ++i) {
    const Message& m = batch[i];
    if (m.is_send) continue;
    check_sealed(theirs[i], world_ranks[size_t(m.peer)]);
    check_same(m.header, theirs[i], name);
  }
  both("a message", [&](const Message& m, Header&, MPI_Request* r) {
    const auto element = the_types().element[m.header.dtype];
    const int count = int(m.header.count);
    (m.is_send ? traffic->sent : traffic->received) += int64_t(m.data.size());
    traffic->messages += m.is_send;
    return m.is_send ? MPI_Isend(m.data.data(), count, element, m.peer, data_tag, comm, r)
                     : MPI_Irecv(m.data.data(), count, element, m.peer, data_tag, comm, r);
  });
}

void MpiGroup::Engine::move(Call& call, uint64_t number) {
  if (is_message(call.collective)) return messages(call);
  agree(call, number);  // a barrier is complete once all ranks agree
  collective(call);
}

Work MpiGroup::run(Call call, bool async) {
  LOCKSTEP_CHECK(call.algorithm == Algorithm::automatic, "[", name_of(call.collective),
                 "] expected algorithm automatic, since MPI chooses its own, got ", name_of(call.algorithm));
  LOCKSTEP_CHECK(call.count <= INT_MAX, "[", name_of(call.collective), "] expected at most ", INT_MAX,
                 " elements over MPI, got ", call.count, "; send it in parts");
  return engine_->call_queue.run(std::move(call), async);
}

std::shared_ptr<ProcessGroup> MpiGroup::make_group(Membership member, const std::vector<int>& ranks) {
  MPI_Group all, some;
  MPI_Comm comm;
  check(MPI_Comm_group(engine_->comm, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, int(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
  check(MPI_Comm_create_group(engine_->comm, some, int(engine_->call_queue.completed() % 32768), &comm),
        "MPI_Comm_create_group");
  MPI_Group_free(&all);
  MPI_Group_free(&some);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return std::make_shared<MpiGroup>(engine_->job, std::move(member), comm);
}

// Rank 0's store address, distributed through MPI.
struct Meeting {
  char host[256] = {};
  char token[65] = {};
  int port = 0;
};

bool launched_by_mpi() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") && !std::getenv("MASTER_ADDR") && !std::getenv("WORLD_SIZE");
}

World make_mpi_world(const std::string& url) {
  LOCKSTEP_CHECK(url == "env://", "[init] expected env:// with backend mpi, where mpirun assigns the ranks, got ", url);
  int running = 0, level = 0;
  MPI_Initialized(&running);
  if (!running) check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  else MPI_Query_thread(&level);
  LOCKSTEP_CHECK(
      level == MPI_THREAD_MULTIPLE,
      "[init] expected an MPI with MPI_THREAD_MULTIPLE (asynchronous collectives run on threads), got level ", level,
      "; use an MPI that was built with it");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  Meeting meeting;
  int listener = -1;
  gethostname(meeting.host, sizeof meeting.host - 1);
  std::vector<Meeting> all(static_cast<size_t>(size));
  check(MPI_Allgather(&meeting, sizeof meeting, MPI_BYTE, all.data(), sizeof meeting, MPI_BYTE, MPI_COMM_WORLD),
        "MPI_Allgather");
  bool one_host = true;
  int local_rank = 0;
  for (const Meeting& m : all) one_host &= std::strcmp(m.host, all[0].host) == 0;
  for (int r = 0; r < rank; ++r) local_rank += std::strcmp(all[size_t(r)].host, meeting.host) == 0;
  if (one_host) std::strcpy(meeting.host, "127.0.0.1");
  if (rank == 0 && size > 1) {
    listener = open_listener(meeting.host, meeting.port);
    std::strcpy(meeting.token, random_token().c_str());
  }
  check(MPI_Bcast(&meeting, sizeof meeting, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
  Rendezvous place = Rendezvous::from_url(str("tcp://", meeting.host, ":", std::max(1, meeting.port), "?rank=", rank,
                                              "&world_size=", size, "&local_rank=", local_rank));
  place.listener = listener;
  if (place.token.empty()) place.token = meeting.token;

  World world;
  world.job = std::make_shared<Job>(make_control(place));
  world.group =
      std::make_shared<MpiGroup>(world.job, Membership{"world", "world", rank, all_ranks(size)}, MPI_COMM_WORLD);
  world.after = [] { MPI_Finalize(); };
  return world;
}

}  // namespace

void use_mpi() { add_backend("mpi", {&make_mpi_world, &launched_by_mpi}); }

}  // namespace lockstep::dist
