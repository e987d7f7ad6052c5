// Tensors on CUDA devices between ranks, by NCCL: no copy on the host, no wait of the host.
//
// A group has one communicator of all its ranks, made at their first such call, and one for each pair that exchanges messages: ranks
// that send need no others then. Everything is put on one stream of the group in the order of the calls, which begins after what the
// caller's stream had been given, and which the caller's stream waits for in Work::wait(). Messages of one exchange run side by side.
//
// NCCL does not notice when ranks ask for different things: it hangs, or gives garbage. So ranks compare their calls on the host
// first: the first 100 of a group, then every 64th, and all with LOCKSTEP_NCCL_DEBUG=1. Messages: the receiver looks at the sender's.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "dist/device_engine.h"
#include "dist/nccl_watchdog.h"
#include "dist/net.h"
#include "dist/staging.h"
#include "dist/summation_tree.h"
#include "tensor/graph.h"
#include "tensor/ops.h"

namespace lockstep::dist {
namespace {

constexpr uint64_t compared_first = 100, compared_every = 64;

bool flag(const char* name) {
  const char* text = std::getenv(name);
  return text && *text && std::strcmp(text, "0") != 0;
}

/// Where a device is, the same text for ranks that NCCL will not have in one communicator.
std::string place_of(Device device) {
  char bus[64] = "";
  const cudaError_t code = cudaDeviceGetPCIBusId(bus, int(sizeof bus), device.index);
  LOCKSTEP_CHECK(code == cudaSuccess, "[nccl] cannot tell where ", device, " is: ", cudaGetErrorString(code));
  const char* chosen = std::getenv("NCCL_HOSTID");  // NCCL goes by it too
  const std::string host = chosen && *chosen ? chosen : host_identity();
  return host.substr(0, host.find('/')) + " " + bus;
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case f32: return ncclFloat32;
    case f64: return ncclFloat64;
    case f16: return ncclFloat16;
    case bf16: return ncclBfloat16;
    case i64: return ncclInt64;
    case i32: return ncclInt32;
    case i8: return ncclInt8;
    default: return ncclUint8;  // u8 and bool
  }
}

ncclRedOp_t op_of(DType dtype, ReduceOp op) {
  if (dtype == boolean) return op == ReduceOp::sum || op == ReduceOp::max ? ncclMax : ncclMin;  // or, and
  switch (op) {
    case ReduceOp::mean: return ncclAvg;
    case ReduceOp::product: return ncclProd;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    default: return ncclSum;
  }
}

int64_t size_in_bytes(const Tensor& t) { return t.numel() * size_of(t.dtype()); }

class NcclEngine final : public DeviceEngine {
 public:
  explicit NcclEngine(GroupParts parts)
      : parts_(std::move(parts)), n_(int(parts_.group.world_ranks.size())), rank_(parts_.group.rank), compares_all_(flag("LOCKSTEP_NCCL_DEBUG")), exact_(flag("LOCKSTEP_NCCL_EXACT")) {}
  ~NcclEngine() override {
    std::vector<std::shared_ptr<Communicator>> comms;
    for (const auto& [peer, link] : links_) if (link.comm) comms.push_back(link.comm);
    if (watchdog_) watchdog_->close(parts_.turns, comms);
  }

  const char* name() const override {
    const std::lock_guard lock(mutex_);
    const auto whole = links_.find(everybody);
    return whole != links_.end() && !whole->second.comm ? "host" : "nccl";
  }
  std::shared_ptr<DeviceWork> begin(const Call& call) override;
  void move(Call& call, uint64_t sequence) override;
  bool idle() const override { return !watchdog_ || watchdog_->idle(parts_.turns); }

 private:
  static constexpr int everybody = -1;
  struct Link {
    std::shared_ptr<Communicator> comm;  // null: ranks share a device
    std::optional<Stream> stream;        // of a pair; all ranks use that of the group
  };

  Link& connect(int peer, const Call& call);
  bool must_compare(uint64_t number) const { return compares_all_ || number <= compared_first || number % compared_every == 0; }
  void collective(Call& call, uint64_t sequence);
  void enqueue(const Call& call, Communicator& comm);
  void messages(Call& call);
  void gather_parts(const Tensor& whole, const Tensor& part, int root, ncclComm_t comm);
  void sum_own_part(const Call& call, Communicator& comm, const Tensor& target);
  void send(const Tensor& t, int peer, ncclComm_t comm) { if (t.numel() > 0) check_nccl(ncclSend(t.raw_data(), size_t(size_in_bytes(t)), ncclUint8, peer, comm, stream()), "ncclSend", comm); }
  void receive(const Tensor& t, int peer, ncclComm_t comm) { if (t.numel() > 0) check_nccl(ncclRecv(t.raw_data(), size_t(size_in_bytes(t)), ncclUint8, peer, comm, stream()), "ncclRecv", comm); }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_->handle()); }
  Tensor part_of(const Tensor& flat, int rank) const {
    const Range r = shard_range(flat.numel(), n_, rank);
    return flat.narrow(0, r.begin, r.size());
  }
  void together(Communicator& comm, const Call& call, const std::function<void(ncclComm_t)>& calls) {
    watchdog_->run({&comm}, parts_.turns.timeout_of(call), what_, [&] { calls(comm.handle()); });
  }

  const GroupParts parts_;
  const int n_, rank_;
  const bool compares_all_, exact_;
  mutable std::mutex mutex_;  // of what begin() and name() look at
  std::optional<Device> device_;
  std::map<int, Link> links_;
  // Of whoever has the turn
  std::shared_ptr<Watchdog> watchdog_;
  std::optional<Stream> stream_;
  uint64_t collectives_ = 0;
  std::string what_;  // the call, for messages
};

std::shared_ptr<DeviceWork> NcclEngine::begin(const Call& call) {
  const char* const op = name_of(call.collective).data();
  LOCKSTEP_CHECK(!Graph::is_capturing(), "[", op, "] a collective cannot be captured: call it before or after, and replay what is between");
  const bool by_nccl = n_ > 1 && std::strcmp(name(), "nccl") == 0;
  const std::lock_guard lock(mutex_);
  const auto check = [&](const Tensor& t) {
    if (!t.defined() || t.device().is_cpu()) return;
    if (!device_) device_ = t.device();
    LOCKSTEP_CHECK(t.device() == *device_, "[", op, "] group ", parts_.group.name, " moves tensors of ", *device_, " on this rank, got one on ", t.device(), "; make another group for it");
  };
  check(call.input);
  check(call.output);
  for (const PointToPoint& p : call.batch) check(p.tensor);
  LOCKSTEP_CHECK(!by_nccl || !links_.contains(everybody) || call.algorithm == Algorithm::automatic || call.algorithm == Algorithm::direct, "[", op,
                 "] expected algorithm automatic (NCCL chooses), or direct (the sums of the CPU's, to the bit), for tensors on ", *device_, ", got ", name_of(call.algorithm));
  return std::make_shared<NcclWork>(*parts_.job.control, call, *device_);
}

/// The communicator of all ranks, or of this one and a peer; those call this at the same point.
NcclEngine::Link& NcclEngine::connect(int peer, const Call& call) {
  if (const auto found = links_.find(peer); found != links_.end()) return found->second;
  const Membership& group = parts_.group;
  Control& control = *parts_.job.control;
  const Seconds timeout = parts_.turns.timeout_of(call);
  std::vector<int> members, world_ranks;
  for (int r = 0; r < n_; ++r) {
    if (peer != everybody && r != rank_ && r != peer) continue;
    members.push_back(r);
    world_ranks.push_back(group.world_ranks[size_t(r)]);
  }
  const std::string where = str("group ", group.name, peer == everybody ? "" : ", " + named(world_ranks));
  const std::string key = str("nccl/", group.id, "/", peer == everybody ? "all" : str(members[0], "-", members[1]), "/");
  control.set(str(key, rank_), place_of(*device_));
  std::map<std::string, std::vector<int>> places;
  for (const int r : members) places[control.get(str(key, r), timeout)].push_back(group.world_ranks[size_t(r)]);
  Link link;
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion", nullptr);
  const bool may_share = version >= 23000 && flag("NCCL_MULTI_RANK_GPU_ENABLE");
  std::string shared;
  for (const auto& [place, ranks] : places) if (ranks.size() > 1 && !may_share) shared += (shared.empty() ? "" : "; ") + str(named(ranks), " share the device at ", place.substr(place.rfind(' ') + 1));
  if (shared.empty()) {
    ncclUniqueId id{};
    if (rank_ == members[0]) {
      check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
      control.set(key + "id", std::string(id.internal, sizeof id.internal));
    } else {
      const std::string text = control.get(key + "id", timeout);
      LOCKSTEP_CHECK(text.size() == sizeof id.internal, "[nccl] expected an id of ", sizeof id.internal, " bytes, got ", text.size());
      std::memcpy(id.internal, text.data(), text.size());
    }
    const int place = int(std::find(members.begin(), members.end(), rank_) - members.begin());
    link.comm = std::make_shared<Communicator>(id, int(members.size()), place, *device_, where, world_ranks);
    if (peer != everybody) link.stream.emplace(*device_, true);
    watchdog_->add(link.comm);
    const std::lock_guard lock(mutex_);
    Link& kept = links_.emplace(peer, std::move(link)).first->second;
    watchdog_->settle(*kept.comm, timeout, "a communicator of " + named(world_ranks));
    return kept;
  }
  LOCKSTEP_CHECK(parts_.job.backend != "nccl", "[nccl] expected a device for each rank with backend nccl, but ", shared, "; take backend auto, or fewer ranks");
  if (rank_ == members[0] && !parts_.job.told_sharing.exchange(true)) std::fprintf(stderr, "[lockstep] %s: tensors of %s go through the host's memory\n", shared.c_str(), where.c_str());
  const std::lock_guard lock(mutex_);
  return links_.emplace(peer, std::move(link)).first->second;
}

void NcclEngine::move(Call& call, uint64_t sequence) {
  if (!watchdog_) {
    watchdog_ = Watchdog::of(parts_.job);
    watchdog_->use(*device_);
    stream_.emplace(*device_, true);
  }
  const auto work = std::static_pointer_cast<NcclWork>(call.work);
  what_ = sequence > 0 ? str("call ", sequence, " (", parts_.turns.activity.collective, ")") : parts_.turns.activity.collective;
  const StreamScope scope(*stream_);
  const auto end = [&](bool complete) {
    work->end();
    watchdog_->watch(work, complete, what_, call, parts_.turns, parts_.group.world_ranks[size_t((rank_ + 1) % n_)]);
  };
  try {
    work->ready().wait();
    if (is_message(call.collective)) messages(call);
    else collective(call, sequence);
  } catch (...) {
    end(false);  // some of it may be on the stream
    throw;
  }
  end(true);
}

void NcclEngine::collective(Call& call, uint64_t sequence) {
  if (n_ == 1) {
    if (call.input.defined() && call.output.defined() && call.input.raw_data() != call.output.raw_data()) call.output.copy_(call.input.view(call.output.shape()));
    return;
  }
  // So that ranks compare this too.
  const bool sums = call.collective == Collective::all_reduce || call.collective == Collective::reduce_scatter || call.collective == Collective::reduce;
  if (exact_ && sums && call.algorithm == Algorithm::automatic) call.algorithm = Algorithm::direct;
  const auto known = links_.find(everybody);
  const bool by_host = known != links_.end() && !known->second.comm;  // where headers travel with the data
  if (!by_host && (must_compare(++collectives_) || known == links_.end())) parts_.agree(call, sequence);
  if (const Link& link = connect(everybody, call); link.comm) {
    LOCKSTEP_CHECK(call.algorithm == Algorithm::automatic || call.algorithm == Algorithm::direct, "[", name_of(call.collective),
                   "] expected algorithm automatic or direct with NCCL, got ", name_of(call.algorithm));
    return enqueue(call, *link.comm);
  }
  Call here = call;
  const Staging staging(here);
  parts_.move(here, sequence);
  staging.finish();
}

void NcclEngine::enqueue(const Call& call, Communicator& comm) {
  const MemoryScope scope(Memory::communication);
  const auto flat = [](const Tensor& t) { return t.defined() ? t.view({t.numel()}) : t; };
  const Tensor input = flat(call.input), output = flat(call.output);
  const size_t count = size_t(std::max<int64_t>(call.count, 0));
  const bool even = call.count % n_ == 0;
  const ncclDataType_t type = type_of(call.dtype);
  const ncclRedOp_t op = op_of(call.dtype, call.op);
  const bool is_root = rank_ == call.root;
  // NCCL sums in an order of its own, and does with NaN in min and max what it likes.
  const bool exact = is_floating(call.dtype) && call.algorithm == Algorithm::direct;
  if (call.count == 0) return;
  switch (call.collective) {
    case Collective::all_reduce:
      if (exact) {
        sum_own_part(call, comm, part_of(output, rank_));
        return together(comm, call, [&](ncclComm_t c) { gather_parts(output, part_of(output, rank_), everybody, c); });
      }
      return together(comm, call, [&](ncclComm_t c) { check_nccl(ncclAllReduce(input.raw_data(), output.raw_data(), count, type, op, c, stream()), "ncclAllReduce", c); });
    case Collective::reduce:
      if (exact) {
        const Tensor part = part_of(output, rank_);
        sum_own_part(call, comm, part);
        return together(comm, call, [&](ncclComm_t c) { gather_parts(output, part, call.root, c); });
      }
      return together(comm, call, [&](ncclComm_t c) { check_nccl(ncclReduce(input.raw_data(), output.raw_data(), count, type, op, call.root, c, stream()), "ncclReduce", c); });
    case Collective::reduce_scatter:
      if (exact) return sum_own_part(call, comm, output);
      return together(comm, call, [&](ncclComm_t c) {
        if (even) return check_nccl(ncclReduceScatter(input.raw_data(), output.raw_data(), count / size_t(n_), type, op, c, stream()), "ncclReduceScatter", c);
        for (int r = 0; r < n_; ++r) {
          const Tensor part = part_of(input, r);
          if (part.numel() > 0) check_nccl(ncclReduce(part.raw_data(), r == rank_ ? output.raw_data() : nullptr, size_t(part.numel()), type, op, r, c, stream()), "ncclReduce", c);
        }
      });
    case Collective::broadcast:
      return together(comm, call, [&](ncclComm_t c) { check_nccl(ncclBroadcast(output.raw_data(), output.raw_data(), size_t(size_in_bytes(output)), ncclUint8, call.root, c, stream()), "ncclBroadcast", c); });
    case Collective::all_gather:
      return together(comm, call, [&](ncclComm_t c) { gather_parts(output, input, everybody, c); });
    case Collective::gather:
      return together(comm, call, [&](ncclComm_t c) { gather_parts(output, input, call.root, c); });
    case Collective::scatter:
      if (is_root && output.raw_data() != part_of(input, rank_).raw_data()) output.copy_(part_of(input, rank_));
      return together(comm, call, [&](ncclComm_t c) {
        if (!is_root) return receive(output, call.root, c);
        for (int r = 0; r < n_; ++r) if (r != rank_) send(part_of(input, r), r, c);
      });
    default: {  // all_to_all
      const Tensor source = input.raw_data() == output.raw_data() ? input.clone() : input;
      part_of(output, rank_).copy_(part_of(source, rank_));
      return together(comm, call, [&](ncclComm_t c) {
        for (int r = 0; r < n_; ++r) {
          if (r == rank_) continue;
          send(part_of(source, r), r, c);
          receive(part_of(output, r), r, c);
        }
      });
    }
  }
}

/// Puts together the parts that ranks hold, at the root or everywhere. Inside a group of calls.
void NcclEngine::gather_parts(const Tensor& whole, const Tensor& part, int root, ncclComm_t comm) {
  const auto own = [&] {
    const Tensor target = part_of(whole, rank_);
    if (target.numel() > 0 && target.raw_data() != part.raw_data()) target.copy_(part);
  };
  if (root == everybody && whole.numel() % n_ == 0) return check_nccl(ncclAllGather(part.raw_data(), whole.raw_data(), size_t(size_in_bytes(part)), ncclUint8, comm, stream()), "ncclAllGather", comm);
  if (root == everybody || root == rank_) own();
  if (root != everybody && root != rank_) return send(part, root, comm);
  for (int r = 0; r < n_; ++r) {
    const Tensor place = part_of(whole, r);
    if (place.numel() == 0) continue;
    if (root == everybody) check_nccl(ncclBroadcast(place.raw_data(), place.raw_data(), size_t(size_in_bytes(place)), ncclUint8, r, comm, stream()), "ncclBroadcast", comm);
    else if (r != rank_) receive(place, r, comm);
  }
}

/// `exact`: every rank gets the others' terms of its own part, and adds them in the order of summation_tree.h, as the engine for the
/// CPU does: the same bits. Bytes as for a reduce_scatter by ring, and a copy of the tensor as scratch.
void NcclEngine::sum_own_part(const Call& call, Communicator& comm, const Tensor& target) {
  const Tensor input = call.input.view({call.count});
  const int64_t own = target.numel();
  const Tensor terms = empty({n_ * own}, {.dtype = call.dtype, .device = *device_});
  const auto term = [&](int r) { return terms.narrow(0, r * own, own); };
  if (own > 0) term(rank_).copy_(part_of(input, rank_));
  together(comm, call, [&](ncclComm_t c) {
    for (int r = 0; r < n_; ++r) {
      if (r == rank_) continue;
      send(part_of(input, r), r, c);
      receive(term(r), r, c);
    }
  });
  if (own == 0) return;
  const std::function<void(int64_t, int64_t)> fold = [&](int64_t begin, int64_t end) {
    if (end - begin < 2) return;
    const int64_t middle = tree_split(begin, end);
    fold(begin, middle);
    fold(middle, end);
    const Tensor left = term(int(begin)), right = term(int(middle));
    switch (call.op) {
      case ReduceOp::product: mul_(left, right); break;
      case ReduceOp::min: minimum_(left, right); break;
      case ReduceOp::max: maximum_(left, right); break;
      default: add_(left, right);
    }
  };
  fold(0, n_);
  if (call.op != ReduceOp::mean) {
    target.copy_(term(0));
  } else if ((n_ & (n_ - 1)) == 0) {
    target.copy_(mul_scalar(term(0), 1. / n_));
  } else {
    const DType wide = size_of(call.dtype) == 2 ? f32 : call.dtype;
    target.copy_(div(term(0).to(wide), full({1}, n_, {.dtype = wide, .device = *device_})));
  }
}

void NcclEngine::messages(Call& call) {
  std::vector<Message> batch = parts_.turns.begin_messages(call);
  std::vector<Tensor> tensors;
  if (call.collective != Collective::batch) tensors.push_back(call.input);
  for (const PointToPoint& p : call.batch) tensors.push_back(p.tensor);
  std::vector<std::pair<Tensor, Tensor>> arrived;  // on the device, and what it gets from the host
  const auto exchange = [&](const std::vector<size_t>& by_host, std::vector<Message> more) {
    std::vector<Tensor> copies;
    for (const size_t i : by_host) {
      const Tensor& here = copies.emplace_back(tensors[i].to(cpu));
      if (!batch[i].is_send) arrived.emplace_back(tensors[i], here);
      more.push_back(batch[i]);
      more.back().data = {static_cast<std::byte*>(here.raw_data()), size_t(size_in_bytes(here))};
    }
    if (!more.empty()) parts_.exchange(call, more);
  };

  // Tensors on the CPU, those of ranks that share a device, and the headers of the others.
  std::vector<Message> first;
  std::vector<size_t> by_host, by_nccl;
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto known = links_.find(batch[i].peer);
    if (tensors[i].device().is_cpu()) {
      first.push_back(batch[i]);
    } else if (known != links_.end() && !known->second.comm) {
      by_host.push_back(i);
    } else {
      by_nccl.push_back(i);
      if (!must_compare(batch[i].header.sequence)) continue;
      first.push_back(batch[i]);
      first.back().data = {};
    }
  }
  exchange(by_host, std::move(first));

  // Pairs that meet for the first time find out whether they share a device. All in one order, so that no circle of ranks waits.
  std::vector<int> peers;
  for (const size_t i : by_nccl) peers.push_back(batch[i].peer);
  std::sort(peers.begin(), peers.end(), [&](int a, int b) { return std::pair(std::min(a, rank_), std::max(a, rank_)) < std::pair(std::min(b, rank_), std::max(b, rank_)); });
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  std::vector<Link*> links;
  by_host.clear();
  for (const int peer : peers) if (Link& link = connect(peer, call); link.comm) links.push_back(&link);
  std::erase_if(by_nccl, [&](size_t i) {
    const bool shared = !links_[batch[i].peer].comm;
    if (shared) by_host.push_back(i);
    return shared;
  });
  if (!links.empty()) {
    Event begin(*device_);
    begin.record();
    for (const Link* link : links) {
      const StreamScope scope(*link->stream);
      begin.wait();
    }
    std::vector<Communicator*> comms;
    for (const Link* link : links) comms.push_back(link->comm.get());
    watchdog_->run(comms, parts_.turns.timeout_of(call), what_, [&] {
      for (const size_t i : by_nccl) {
        const Link& link = links_[batch[i].peer];
        const int64_t bytes = size_in_bytes(tensors[i]);
        if (bytes == 0) continue;
        const ncclComm_t c = link.comm->handle();
        const auto stream = static_cast<cudaStream_t>(link.stream->handle());
        const int peer = batch[i].peer > rank_;  // of the two
        if (batch[i].is_send) check_nccl(ncclSend(tensors[i].raw_data(), size_t(bytes), ncclUint8, peer, c, stream), "ncclSend", c);
        else check_nccl(ncclRecv(tensors[i].raw_data(), size_t(bytes), ncclUint8, peer, c, stream), "ncclRecv", c);
        (batch[i].is_send ? parts_.traffic.sent : parts_.traffic.received) += bytes;
        parts_.traffic.messages += batch[i].is_send;
      }
    });
    for (const Link* link : links) {
      Event end(*device_);
      {
        const StreamScope scope(*link->stream);
        end.record();
      }
      end.wait();
    }
  }
  if (!by_host.empty()) exchange(by_host, {});
  for (const auto& [there, here] : arrived) there.copy_(here);
}

}  // namespace

std::unique_ptr<DeviceEngine> make_nccl_engine(GroupParts parts) { return std::make_unique<NcclEngine>(std::move(parts)); }

}  // namespace lockstep::dist
