// native_group.cpp: the native engine: chooses schedules, lays out memory, runs calls. See native_group.h.
#include "dist/native_group.h"

#include <cstring>
#include <functional>

#include "dist/executor.h"
#include "dist/native_engine.h"
#include "dist/net.h"
#include "dist/shard.h"
#include "tensor/graph.h"

namespace lockstep::dist {
namespace {

std::byte* bytes_of(const Tensor& t) { return t.defined() ? static_cast<std::byte*>(t.raw_data()) : nullptr; }

void copy_bytes(std::byte* target, const std::byte* source, int64_t bytes) {
  if (bytes > 0 && target != source) std::memcpy(target, source, size_t(bytes));
}

// Limits for choosing one_shot: bytes of the tensor, and bytes that each rank sends.
constexpr int64_t one_shot_bytes = 4 << 10, one_shot_sent = 32 << 10;

}  // namespace

NativeEngine::NativeEngine(std::shared_ptr<Job> job_, Membership member, std::shared_ptr<Traffic> traffic_)
    : Membership(std::move(member)),
      job(std::move(job_)),
      traffic(std::move(traffic_)),
      call_queue(*job, *this, traffic, [this](Call& call, uint64_t sequence) { move(call, sequence); }) {
  if (world_ranks.size() > 1) transport = make_transport(*job->control, id, rank, world_ranks);
}

Algorithm NativeEngine::choose(const Call& call) const {
  if (int(call.collective) >= scheduled_collectives) return Algorithm::automatic;
  if (call.algorithm != Algorithm::automatic) {
    LOCKSTEP_CHECK(has_schedule(call.algorithm, call.collective), "[", name_of(call.collective),
                   "] expected an algorithm that has a schedule for it, such as direct, got ", name_of(call.algorithm));
    return call.algorithm;
  }
  if (job->forced != Algorithm::automatic && has_schedule(job->forced, call.collective)) return job->forced;
  // one_shot and direct give the same bits, so the choice does not change results.
  const int64_t bytes = call.count * size_of(call.dtype);
  const bool small = call.collective == Collective::all_reduce && bytes <= one_shot_bytes &&
                     bytes * int64_t(world_ranks.size() - 1) <= one_shot_sent;
  return small ? Algorithm::one_shot : Algorithm::direct;
}

const Prepared& NativeEngine::plan(const Call& call) {
  const bool mean = is_reduction(call.collective) && call.op == ReduceOp::mean;
  const auto [found, fresh] = plans_.try_emplace({call.collective, call.algorithm, call.root, mean});
  Prepared& plan = found->second;
  if (!fresh) return plan;
  CollectiveRequest request{
      call.collective, int(world_ranks.size()), has_root(call.collective) ? call.root : 0, mean, {}};
  if (uses_hosts(call.algorithm)) {
    const std::vector<int>& hosts = job->hosts();
    for (const int r : world_ranks) request.hosts.push_back(hosts[size_t(r)]);
  }
  plan.chunks = chunk_count(call.algorithm, request);
  const auto program = program_of(call.algorithm, request, rank);
  plan.program.emplace(program, rank, request.ranks);
  if (can_work_in_place(call.collective, call.algorithm)) plan.in_place = share_in_place(request, rank);
  for (const Transfer& t : program) plan.writes_others |= t.to == rank && t.target.slot == 0 && t.target.chunk != rank;
  return plan;
}

// A group of one rank: only copies input to output.
void NativeEngine::run_single(const Call& call) {
  if (call.input.defined() && call.output.defined())
    copy_bytes(bytes_of(call.output), bytes_of(call.input), call.count * size_of(call.dtype));
}

// Sends the element count of a gather or scatter from the root to all ranks. They need it when ranks forward the data
// of other ranks.
void NativeEngine::learn_count(Call& call, uint64_t sequence) {
  std::vector<Message> batch;
  const auto tell = [&](bool is_send, int peer) {
    batch.push_back(
        {is_send, peer, std::as_writable_bytes(std::span(&call.count, 1)), call_queue.header(call, sequence)});
    batch.back().header.count = 0;
  };
  if (rank == call.root) {
    for (int r = 0; r < int(world_ranks.size()); ++r)
      if (r != rank) tell(true, r);
  } else {
    tell(false, call.root);
  }
  move_messages(mail(call), batch);
  const Tensor& part = call.collective == Collective::gather ? call.input : call.output;
  const int64_t expected = shard_range(call.count, int64_t(world_ranks.size()), rank).size();
  if (part.numel() != expected) {
    throw DistError(Fault::mismatch, -1,
                    str("[", name_of(call.collective), "] ranks disagree in group ", name, ", call ", sequence, " (",
                        call.describe(), "): rank ", call.world_root, " has ", call.count, " elements, ", expected,
                        " of them for rank ", world_ranks[size_t(rank)], ", which has a part of ", part.numel(),
                        "; make both sizes equal"));
  }
}

void NativeEngine::collective(Call& call, uint64_t sequence) {
  const int n = int(world_ranks.size());
  if (n == 1) return run_single(call);
  const Prepared& plan = this->plan(call);
  const bool one_sided = call.collective == Collective::gather || call.collective == Collective::scatter;
  if (one_sided && call.algorithm != Algorithm::direct) learn_count(call, sequence);
  const int64_t size = size_of(call.dtype), count = call.count;
  std::byte *input = bytes_of(call.input), *output = bytes_of(call.output);
  const Range own = count >= 0 ? shard_range(count, n, rank) : Range{};
  Ref<Storage> scratch;
  const auto copy_to_scratch = [&] {
    const MemoryScope scope(Memory::communication);
    scratch = Storage::allocate(count * size, cpu);
    copy_bytes(scratch->data(), input, count * size);
    return scratch->data();
  };

  std::byte* full = nullptr;  // memory in which chunks lie as shard_range() says
  std::byte* part = nullptr;  // memory of this rank's own chunk, if it lies elsewhere
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce:
      full = output;
      copy_bytes(output, input, count * size);
      break;
    case Collective::all_gather:
      full = output;
      copy_bytes(output + own.begin * size, input, own.size() * size);
      break;
    case Collective::reduce_scatter:
      part = output;
      full = plan.writes_others ? copy_to_scratch() : input;
      copy_bytes(part, input + own.begin * size, own.size() * size);
      break;
    case Collective::gather:
      full = output;
      part = rank == call.root ? nullptr : input;
      if (rank == call.root) copy_bytes(output + own.begin * size, input, own.size() * size);
      break;
    case Collective::scatter:
      full = rank == call.root && plan.writes_others ? copy_to_scratch() : input;
      part = rank == call.root ? nullptr : output;
      break;
    default: break;  // all_to_all
  }
  const int64_t block = count / n * size;  // all_to_all: bytes for each pair of ranks
  if (call.collective == Collective::all_to_all) {
    // If the output is the input, received blocks would overwrite blocks still to be sent: copy the input first.
    if (input == output && count > 0) input = copy_to_scratch();
    copy_bytes(output + rank * block, input + rank * block, block);
  }
  const auto block_of = [&](int32_t chunk) -> std::span<std::byte> {
    const int from = chunk / n, to = chunk % n;
    if (to == rank) return {output + from * block, size_t(block)};
    if (from == rank) return {input + to * block, size_t(block)};
    return {};
  };
  const auto block_bytes = [&](int32_t) { return size_t(block); };
  const Tensor& mine = call.collective == Collective::gather ? call.input : call.output;
  const int64_t part_bytes = one_sided ? mine.defined() ? mine.numel() * size : own.size() * size : 0;
  const auto chunk_bytes = [&](int32_t chunk) {
    // count < 0: this rank does not know the total count (gather or scatter by `direct`). It needs only its own chunk.
    if (count < 0) return chunk == rank ? size_t(part_bytes) : 0;
    return size_t(shard_range(count, plan.chunks, chunk).size() * size);
  };
  const auto chunk_of = [&](int32_t chunk) -> std::span<std::byte> {
    if (part && chunk == rank) return {part, chunk_bytes(chunk)};
    if (full) return {full + shard_range(count, plan.chunks, chunk).begin * size, chunk_bytes(chunk)};
    return {};
  };
  Execution e;
  if (call.collective == Collective::all_to_all) {
    e.memory = std::ref(block_of);  // a reference, so that std::function allocates nothing
    e.chunk_bytes = std::ref(block_bytes);
  } else {
    e.memory = std::ref(chunk_of);
    e.chunk_bytes = std::ref(chunk_bytes);
  }
  InPlace in_place;
  if (can_work_in_place(call.collective, call.algorithm) && count > 0) {
    in_place = {.collective = call.collective,
                .dtype = call.dtype,
                .op = call.op,
                .rank = rank,
                .ranks = n,
                .root = call.root,
                .share = &plan.in_place,
                .count = count,
                .full = full,
                .part = part,
                .placement = placement_of({full, size_t(count * size)})};
    e.in_place = &in_place;
  }
  e.program = &*plan.program;
  e.transport = transport.get();
  e.checksum = job->checksum;
  e.dtype = call.dtype;
  e.op = call.op;
  e.header = call_queue.header(call, sequence);
  if (one_sided) e.header.count = 0;
  e.control = job->control.get();
  e.timeout = call_queue.timeout_of(call);
  e.describe = &call_queue.activity.collective;
  e.group = &name;
  e.world_ranks = world_ranks;
  book(execute(e));
  if (call.collective == Collective::scatter && rank == call.root)
    copy_bytes(output, input + own.begin * size, own.size() * size);
}

Mail NativeEngine::mail(const Call& call) {
  return {*transport,    *job->control,        name, world_ranks, call_queue.timeout_of(call),
          job->checksum, &call_queue.activity, {},   {},          call.awaited.get()};
}

void NativeEngine::book(const CallTraffic& moved) {
  traffic->sent += moved.sent;
  traffic->received += moved.received;
  traffic->messages += moved.messages;
  traffic->in_place += moved.in_place;
}

void NativeEngine::exchange(const Call& call, std::vector<Message>& batch) { book(move_messages(mail(call), batch)); }

// Dissemination (Hensgen et al., 1988): in round k a rank sends to the rank 2^k further on, so after log2(n) rounds
// every rank has heard from all, directly or indirectly. A rank that finds a mismatch stops sending, so a rank that
// has received a message in every round knows that the calls of all ranks agree.
void NativeEngine::disseminate(const Mail& mail, const Call& call, uint64_t sequence) {
  const int n = int(world_ranks.size());
  for (int step = 1; step < n; step *= 2) {
    std::vector<Message> round{{true, (rank + step) % n, {}, call_queue.header(call, sequence)},
                               {false, (rank - step + n) % n, {}, call_queue.header(call, sequence)}};
    move_messages(mail, round);
  }
}

void NativeEngine::agree(Call& call, uint64_t sequence) {
  if (call.collective == Collective::gather || call.collective == Collective::scatter) learn_count(call, sequence);
  else disseminate(mail(call), call, sequence);
}

// A rank that waits long in a barrier writes to the store that it has arrived. The error at a timeout names the ranks
// that have not.
void NativeEngine::barrier(const Call& call, uint64_t sequence) {
  const int n = int(world_ranks.size());
  if (n == 1) return;
  const auto key = [&](int r) { return str("barrier/", id, "/", world_ranks[size_t(r)]); };
  bool reported = false;
  Mail mail = this->mail(call);
  mail.slow = [&] {
    if (!std::exchange(reported, true)) job->control->set(key(rank), std::to_string(sequence));
  };
  mail.late = [&] {
    std::vector<int> missing;
    for (int r = 0; r < n; ++r) {
      const auto value = r == rank ? std::to_string(sequence) : job->control->try_get(key(r));
      if (!value || std::stoull(*value) < sequence) missing.push_back(world_ranks[size_t(r)]);
    }
    return str("[barrier] waited ", mail.timeout.count(), " s in group ", name, ", call ", sequence,
               "; missing ranks: ", text_of(missing), " (of ", text_of(world_ranks),
               "); call barrier() on them too, or raise the timeout");
  };
  disseminate(mail, call, sequence);
}

void NativeEngine::move(Call& call, uint64_t sequence) {
  if (is_message(call.collective)) {
    std::vector<Message> batch = call_queue.begin_messages(call);
    exchange(call, batch);
  } else if (call.collective == Collective::barrier) barrier(call, sequence);
  else collective(call, sequence);
}

NativeGroup::NativeGroup(std::shared_ptr<Job> job, Membership member) : ProcessGroup(member) {
  engine_ = std::make_shared<NativeEngine>(std::move(job), std::move(member), traffic_);
}

NativeGroup::~NativeGroup() {
  if (!engine_) return;  // construction failed
  if (!engine_->job->maker.is_here()) never_destroy(std::move(engine_));
  else if (!engine_->idle()) engine_->job->keep(engine_);
}

Tensor NativeGroup::shared_empty(const Shape& shape, DType dtype, Device device) {
  const Rendezvous& place = engine_->job->control->place();
  const bool useful = device.is_cpu() && size() > 1 && place.local_world_size > 1 && place.transport != "tcp";
  return useful ? shared_tensor(shape, dtype) : ProcessGroup::shared_empty(shape, dtype, device);
}

Control& NativeGroup::control() { return *engine_->job->control; }

Work NativeGroup::run(Call call, bool async) {
  LOCKSTEP_CHECK(
      !Graph::is_recording(), "[", name_of(call.collective),
      "] a collective through host memory cannot be recorded into a graph: call it before or after recording");
  call.algorithm = engine_->choose(call);
  return engine_->call_queue.run(std::move(call), async);
}

std::shared_ptr<ProcessGroup> NativeGroup::make_group(Membership member, const std::vector<int>&) {
  return std::make_shared<NativeGroup>(engine_->job, std::move(member));
}

}  // namespace lockstep::dist
