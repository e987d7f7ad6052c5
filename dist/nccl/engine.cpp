// engine.cpp: creates communicators and translates collectives into NCCL calls. See engine.h.
#include "dist/nccl/engine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dist/net.h"
#include "dist/staging.h"
#include "dist/summation_tree.h"
#include "tensor/ops.h"

namespace lockstep::dist {
namespace {

/// The location of a device: equal for ranks that share a device, which NCCL does not accept in one communicator.
std::string place_of(Device device) {
  char bus[64] = "";
  const cudaError_t code = cudaDeviceGetPCIBusId(bus, int(sizeof bus), device.index);
  LOCKSTEP_CHECK(code == cudaSuccess, "[nccl] cannot read the PCI bus id of ", device, ": ", cudaGetErrorString(code),
                 "; check the driver with nvidia-smi, or use backend native");
  const char* chosen = std::getenv("NCCL_HOSTID");  // the variable that NCCL reads to tell hosts apart
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

}  // namespace

void NcclEngine::check(const Call& call) {
  const char* const op = name_of(call.collective).data();
  const bool by_nccl = n_ > 1 && std::strcmp(moved_by(), "nccl") == 0;
  const std::lock_guard lock(mutex_);
  const auto check_device = [&](const Tensor& t) {
    if (!t.defined() || t.device().is_cpu()) return;
    if (!device_) device_ = t.device();
    LOCKSTEP_CHECK(t.device() == *device_, "[", op, "] group ", name, " moves tensors of ", *device_,
                   " on this rank, got one on ", t.device(), "; make another group for it");
  };
  check_device(call.input);
  check_device(call.output);
  for (const PointToPoint& p : call.batch) check_device(p.tensor);
  LOCKSTEP_CHECK(!by_nccl || !links_.contains(everybody) || call.algorithm == Algorithm::automatic ||
                     call.algorithm == Algorithm::direct,
                 "[", op,
                 "] expected algorithm automatic (NCCL chooses), or direct (the same sums as on the CPU, bit for bit), "
                 "for tensors on ",
                 *device_, ", got ", name_of(call.algorithm));
}

std::shared_ptr<DeviceWork> NcclEngine::begin(const Call& call) {
  check(call);
  return std::make_shared<NcclWork>(*job->control, call, *device_);
}

/// Creates the communicator of all ranks, or of this rank and a peer, unless it exists. All ranks of the communicator
/// call connect() at the same point.
NcclEngine::Link& NcclEngine::connect(int peer, const Call& call) {
  if (const auto found = links_.find(peer); found != links_.end()) return found->second;
  Control& control = *job->control;
  const Seconds timeout = call_queue.timeout_of(call);
  std::vector<int> members, world_ranks;
  for (int r = 0; r < n_; ++r) {
    if (peer != everybody && r != rank && r != peer) continue;
    members.push_back(r);
    world_ranks.push_back(this->world_ranks[size_t(r)]);
  }
  const std::string where = str("group ", name, peer == everybody ? "" : ", " + named(world_ranks));
  const std::string key = str("nccl/", id, "/", peer == everybody ? "all" : str(members[0], "-", members[1]), "/");
  control.set(str(key, rank), place_of(*device_));
  std::map<std::string, std::vector<int>> places;
  for (const int r : members) places[control.get(str(key, r), timeout)].push_back(this->world_ranks[size_t(r)]);
  Link link;
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion", nullptr);
  const char* asked = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = version >= 23000 && asked && std::atoi(asked) != 0;
  std::string shared;
  for (const auto& [place, ranks] : places)
    if (ranks.size() > 1 && !may_share)
      shared +=
          (shared.empty() ? "" : "; ") + str(named(ranks), " share the device at ", place.substr(place.rfind(' ') + 1));
  if (shared.empty()) {
    ncclUniqueId id{};
    if (rank == members[0]) {
      check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
      control.set(key + "id", std::string(id.internal, sizeof id.internal));
    } else {
      const std::string text = control.get(key + "id", timeout);
      LOCKSTEP_CHECK(text.size() == sizeof id.internal, "[nccl] expected an id of ", sizeof id.internal, " bytes, got ",
                     text.size(), "; this is a bug in Lockstep, please report it");
      std::memcpy(id.internal, text.data(), text.size());
    }
    const int place = int(std::find(members.begin(), members.end(), rank) - members.begin());
    link.comm = std::make_shared<Communicator>(id, int(members.size()), place, *device_, where, world_ranks);
    if (peer != everybody && n_ > 2) link.stream.emplace(*device_, true);
    watchdog_->add(link.comm);
    const std::lock_guard lock(mutex_);
    Link& kept = links_.emplace(peer, std::move(link)).first->second;
    watchdog_->wait_ready(*kept.comm, timeout, "a communicator of " + named(world_ranks));
    return kept;
  }
  LOCKSTEP_CHECK(job->backend != "nccl", "[nccl] expected a device for each rank with backend nccl, but ", shared,
                 "; use backend auto, or fewer ranks");
  if (rank == members[0] && !job->reported_sharing.exchange(true))
    std::fprintf(stderr, "[lockstep] %s: tensors of %s go through the host's memory; for NCCL, start fewer ranks\n",
                 shared.c_str(), where.c_str());
  const std::lock_guard lock(mutex_);
  return links_.emplace(peer, std::move(link)).first->second;
}

void NcclEngine::move(Call& call, uint64_t sequence) {
  if (!call.work) return NativeEngine::move(call, sequence);
  if (!watchdog_) {
    watchdog_ = Watchdog::of(*job);
    watchdog_->use(*device_);
    stream_.emplace(*device_, true);
  }
  const auto work = std::static_pointer_cast<NcclWork>(call.work);
  what_ =
      sequence > 0 ? str("call ", sequence, " (", call_queue.activity.collective, ")") : call_queue.activity.collective;
  const StreamScope scope(*stream_);
  const auto end = [&](bool complete) {
    work->end();
    watchdog_->watch(work, complete, what_, call, call_queue, world_ranks[size_t((rank + 1) % n_)]);
  };
  try {
    work->ready().wait();
    if (is_message(call.collective)) device_messages(call);
    else if (call.collective == Collective::replay) start_graph(call, sequence);
    else device_collective(call, sequence);
  } catch (...) {
    end(false);  // part of the work may be on the stream
    throw;
  }
  end(true);
}

Algorithm NcclEngine::algorithm_of(const Call& call) const {
  const bool is_exact = exact_ && is_reduction(call.collective) && call.algorithm == Algorithm::automatic;
  return is_exact ? Algorithm::direct : call.algorithm;
}

void NcclEngine::device_collective(Call& call, uint64_t sequence) {
  call.algorithm = algorithm_of(call);  // so that ranks compare the chosen algorithm too
  const auto known = links_.find(everybody);
  // True if ranks of the group share a device: then data and headers go through the host.
  const bool by_host = known != links_.end() && !known->second.comm;
  if (!by_host && (must_compare(++collectives_) || known == links_.end())) agree(call, sequence);
  if (const Link& link = connect(everybody, call); link.comm) {
    LOCKSTEP_CHECK(call.algorithm == Algorithm::automatic || call.algorithm == Algorithm::direct, "[",
                   name_of(call.collective), "] expected algorithm automatic or direct with NCCL, got ",
                   name_of(call.algorithm));
    return enqueue(call, *link.comm);
  }
  Call here = call;
  const Staging staging(here);
  here.algorithm = choose(here);
  collective(here, sequence);
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
  const bool is_root = rank == call.root;
  // True: add here, not in NCCL, which adds in an order of its own, and whose min and max may lose a NaN.
  const bool exact = is_floating(call.dtype) && call.algorithm == Algorithm::direct;
  if (call.count == 0) return;
  switch (call.collective) {
    case Collective::all_reduce:
      if (exact) {
        sum_own_part(call, comm, part_of(output, rank));
        return together(comm, call, [&](ncclComm_t c) { gather_parts(output, part_of(output, rank), everybody, c); });
      }
      return together(comm, call, [&](ncclComm_t c) {
        check_nccl(ncclAllReduce(input.raw_data(), output.raw_data(), count, type, op, c, stream()), "ncclAllReduce",
                   c);
      });
    case Collective::reduce:
      if (exact) {
        const Tensor part = part_of(output, rank);
        sum_own_part(call, comm, part);
        return together(comm, call, [&](ncclComm_t c) { gather_parts(output, part, call.root, c); });
      }
      return together(comm, call, [&](ncclComm_t c) {
        check_nccl(ncclReduce(input.raw_data(), output.raw_data(), count, type, op, call.root, c, stream()),
                   "ncclReduce", c);
      });
    case Collective::reduce_scatter:
      if (exact) return sum_own_part(call, comm, output);
      return together(comm, call, [&](ncclComm_t c) {
        if (even)
          return check_nccl(
              ncclReduceScatter(input.raw_data(), output.raw_data(), count / size_t(n_), type, op, c, stream()),
              "ncclReduceScatter", c);
        for (int r = 0; r < n_; ++r) {
          const Tensor part = part_of(input, r);
          if (part.numel() > 0)
            check_nccl(ncclReduce(part.raw_data(), r == rank ? output.raw_data() : nullptr, size_t(part.numel()), type,
                                  op, r, c, stream()),
                       "ncclReduce", c);
        }
      });
    case Collective::broadcast:
      return together(comm, call, [&](ncclComm_t c) {
        check_nccl(ncclBroadcast(output.raw_data(), output.raw_data(), size_t(size_in_bytes(output)), ncclUint8,
                                 call.root, c, stream()),
                   "ncclBroadcast", c);
      });
    case Collective::all_gather:
      return together(comm, call, [&](ncclComm_t c) { gather_parts(output, input, everybody, c); });
    case Collective::gather:
      return together(comm, call, [&](ncclComm_t c) { gather_parts(output, input, call.root, c); });
    case Collective::scatter:
      if (is_root && output.raw_data() != part_of(input, rank).raw_data()) output.copy_(part_of(input, rank));
      return together(comm, call, [&](ncclComm_t c) {
        if (!is_root) return receive(output, call.root, c);
        for (int r = 0; r < n_; ++r)
          if (r != rank) send(part_of(input, r), r, c);
      });
    default: {  // all_to_all
      const Tensor source = input.raw_data() == output.raw_data() ? input.clone() : input;
      part_of(output, rank).copy_(part_of(source, rank));
      return together(comm, call, [&](ncclComm_t c) {
        for (int r = 0; r < n_; ++r) {
          if (r == rank) continue;
          send(part_of(source, r), r, c);
          receive(part_of(output, r), r, c);
        }
      });
    }
  }
}

/// Assembles the ranks' parts at the root, or on all ranks. Called inside an NCCL group call.
void NcclEngine::gather_parts(const Tensor& full, const Tensor& part, int root, ncclComm_t comm) {
  const auto own = [&] {
    const Tensor target = part_of(full, rank);
    if (target.numel() > 0 && target.raw_data() != part.raw_data()) target.copy_(part);
  };
  if (root == everybody && full.numel() % n_ == 0)
    return check_nccl(
        ncclAllGather(part.raw_data(), full.raw_data(), size_t(size_in_bytes(part)), ncclUint8, comm, stream()),
        "ncclAllGather", comm);
  if (root == everybody || root == rank) own();
  if (root != everybody && root != rank) return send(part, root, comm);
  for (int r = 0; r < n_; ++r) {
    const Tensor place = part_of(full, r);
    if (place.numel() == 0) continue;
    if (root == everybody)
      check_nccl(
          ncclBroadcast(place.raw_data(), place.raw_data(), size_t(size_in_bytes(place)), ncclUint8, r, comm, stream()),
          "ncclBroadcast", comm);
    else if (r != rank) receive(place, r, comm);
  }
}

/// Exact mode: every rank receives the part that it owns from all other ranks, and adds these terms in the order of
/// summation_tree.h. The result is bit-identical to the CPU engine's. Moves as many bytes as a ring reduce_scatter, and
/// needs a scratch copy of the tensor.
void NcclEngine::sum_own_part(const Call& call, Communicator& comm, const Tensor& target) {
  const Tensor input = call.input.view({call.count});
  const int64_t own = target.numel();
  const Tensor terms = empty({n_ * own}, {.dtype = call.dtype, .device = *device_});
  const auto term = [&](int r) { return terms.narrow(0, r * own, own); };
  if (own > 0) term(rank).copy_(part_of(input, rank));
  together(comm, call, [&](ncclComm_t c) {
    for (int r = 0; r < n_; ++r) {
      if (r == rank) continue;
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
  target.copy_(call.op == ReduceOp::mean ? div_scalar(term(0), n_) : term(0));
}

}  // namespace lockstep::dist
