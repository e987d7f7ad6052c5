// process_group.cpp: what all implementations of ProcessGroup share: checks of a call before data moves, then run().
#include "dist/process_group.h"

#include <algorithm>

#include "dist/schedule.h"
#include "dist/shard.h"
#include "dist/staging.h"
#include "tensor/ops.h"

namespace lockstep::dist {
namespace {

// The start of an error message: "[all_reduce] ".
std::string at(Collective collective) { return str("[", name_of(collective), "] "); }

void check_tensor(Collective c, const char* role, const Tensor& t) {
  LOCKSTEP_CHECK(t.defined(), at(c), "expected a tensor as ", role, ", got an undefined one; create it first");
  LOCKSTEP_CHECK(t.is_contiguous(), at(c), "expected ", role, " to be contiguous, got shape ", t.shape(),
                 " with strides ", t.strides(), "; use .contiguous()");
  LOCKSTEP_CHECK(!t.storage()->is_empty(), at(c), "expected ", role,
                 " with memory, got a tensor whose storage was emptied; gather the parameter first (Zero::gathered)");
  LOCKSTEP_CHECK(!is_complex(t.dtype()), at(c), "expected ", role, " of a real dtype, got ", t.dtype(),
                 "; send view_as_real()");
}

void check_pair(Collective c, const Tensor& output, const Tensor& input) {
  check_tensor(c, "output", output);
  check_tensor(c, "input", input);
  LOCKSTEP_CHECK(output.dtype() == input.dtype(), at(c), "expected output and input of one dtype, got ", output.dtype(),
                 " and ", input.dtype(), "; convert one with .to(dtype)");
  LOCKSTEP_CHECK(output.device() == input.device(), at(c), "expected output and input on one device, got ",
                 output.device(), " and ", input.device(), "; move one with .to(device)");
}

int64_t size_in_bytes(const Tensor& t) { return t.numel() * size_of(t.dtype()); }

// Error if `part` and `full` share memory, unless `part` starts at the address `allowed`. It may be null: none is.
void check_overlap(Collective c, const Tensor& part, const Tensor& full, const std::byte* allowed) {
  const auto* x = static_cast<const std::byte*>(part.raw_data());
  const auto* y = static_cast<const std::byte*>(full.raw_data());
  const bool apart = x + size_in_bytes(part) <= y || y + size_in_bytes(full) <= x;
  LOCKSTEP_CHECK(apart || x == allowed, at(c), "expected input and output that do not overlap",
                 !allowed                       ? ""
                 : part.numel() == full.numel() ? ", or one tensor as both"
                                                : ", or as the part this rank's own part of the full tensor",
                 ", got two that overlap in another way; pass another tensor as output");
}

void check_reduction(Collective c, ReduceOp op, DType dtype) {
  LOCKSTEP_CHECK(op <= ReduceOp::max, at(c), "expected a reduction sum, mean, product, min or max, got number ",
                 int(op));
  LOCKSTEP_CHECK(op != ReduceOp::mean || dtype != boolean, at(c),
                 "expected sum (or), product (and), min or max of bool, got mean; use sum or product");
}

const std::byte* part_of(const Tensor& full, int64_t begin) {
  return static_cast<const std::byte*>(full.raw_data()) + begin * size_of(full.dtype());
}

void check_part(Collective c, const Tensor& part, const Tensor& full, int rank, int size) {
  check_pair(c, part, full);
  const Range range = shard_range(full.numel(), size, rank);
  LOCKSTEP_CHECK(part.numel() == range.size(), at(c), "expected a part of ", range.size(), " elements (shard_range of ",
                 full.numel(), " over ", size, " ranks, rank ", rank, "), got ", part.numel());
  if (part.numel() > 0) check_overlap(c, part, full, part_of(full, range.begin));
}

}  // namespace

std::string Call::describe() const {
  if (collective == Collective::replay) return describe_replay(count);
  if (collective == Collective::barrier) return tag.empty() ? "barrier" : "barrier, tag " + tag;
  std::string text;
  text.reserve(64 + tag.size());
  text += name_of(collective);
  if (collective == Collective::batch) {
    text = "exchange of ";
    for (size_t i = 0; i < batch.size(); ++i) {
      const PointToPoint& p = batch[i];
      if (i == 4) return text + ", and " + std::to_string(batch.size() - i) + " more";
      text += std::string(i ? ", " : "") + (p.is_send ? "send " : "receive ") +
              std::string(lockstep::name_of(p.tensor.dtype())) + " x " + std::to_string(p.tensor.numel()) +
              (p.is_send ? " to rank " : " from rank ") + std::to_string(p.world_peer) +
              (p.tag.empty() ? "" : ", tag " + p.tag);
    }
    return text;
  }
  // For gather and scatter, the text contains no element count, because only the root knows it.
  const bool one_sided = collective == Collective::gather || collective == Collective::scatter;
  text += ' ';
  text += lockstep::name_of(dtype);
  if (!one_sided) text += " x " + std::to_string(count);
  if (is_reduction(collective) && op != ReduceOp::sum) (text += ' ') += name_of(op);
  if (has_root(collective) || collective == Collective::send || collective == Collective::receive) {
    const bool outward =
        collective == Collective::send || collective == Collective::reduce || collective == Collective::gather;
    text += (outward ? " to rank " : " from rank ") + std::to_string(world_root);
  }
  if (!tag.empty()) text += ", tag " + tag;
  return text;
}

void ProcessGroup::check_rank(Collective c, const char* role, int rank) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < size(), at(c), "expected a ", role, " from 0 to ", size() - 1, " in group ",
                 name(), ", got ", rank);
}

void ProcessGroup::check_peer(Collective c, int peer, const char* role, const Tensor& data) const {
  check_rank(c, "peer", peer);
  LOCKSTEP_CHECK(peer != rank(), at(c), "expected another rank as peer, got this rank, ", peer);
  check_tensor(c, role, data);
}

Work ProcessGroup::call(Collective collective, const Tensor& output, const Tensor& input, int64_t count, int root,
                        const CollectiveOptions& o) {
  Call call;
  call.collective = collective;
  call.input = input;
  call.output = output;
  call.op = o.op;
  call.algorithm = o.algorithm;
  call.root = root;
  call.world_root = world_rank(root);
  call.count = count;
  call.dtype = (input.defined() ? input : output).dtype();
  call.tag = o.tag;
  call.awaited = o.awaited;
  if (is_reduction(collective)) check_reduction(collective, o.op, call.dtype);
  if (output.defined() && collective != Collective::send) output.storage()->bump_version(name_of(collective).data());
  return run_anywhere(std::move(call), o.async);
}

Work ProcessGroup::run_anywhere(Call call, bool async) {
  // A group of one rank needs no communication.
  if (size() == 1 && call.input.defined() && !call.input.device().is_cpu()) {
    if (call.output.defined() && call.output.raw_data() != call.input.raw_data())
      call.output.copy_(call.input.view(call.output.shape()));
    return Work();
  }
  if (moves_device_memory()) return run(std::move(call), async);
  const Staging staging(call);
  Work work = run(std::move(call), async);
  if (!staging.is_needed()) return work;
  if (!async) work.wait();
  work.then([staging] { staging.finish(); });
  if (!async) work.wait();
  return work;
}

Work ProcessGroup::all_reduce(const Tensor& output, const Tensor& input, const CollectiveOptions& o) {
  constexpr auto c = Collective::all_reduce;
  check_pair(c, output, input);
  LOCKSTEP_CHECK(output.shape() == input.shape(), at(c), "expected output and input of one shape, got ", output.shape(),
                 " and ", input.shape(), "; make the output in the input's shape");
  if (input.numel() > 0) check_overlap(c, output, input, part_of(input, 0));
  return call(c, output, input, input.numel(), 0, o);
}

Work ProcessGroup::broadcast(const Tensor& data, int root, const CollectiveOptions& o) {
  check_rank(Collective::broadcast, "root", root);
  check_tensor(Collective::broadcast, "data", data);
  return call(Collective::broadcast, data, data, data.numel(), root, o);
}

Work ProcessGroup::reduce(const Tensor& data, int root, const CollectiveOptions& o) {
  check_rank(Collective::reduce, "root", root);
  check_tensor(Collective::reduce, "data", data);
  return call(Collective::reduce, data, data, data.numel(), root, o);
}

Work ProcessGroup::all_gather(const Tensor& full, const Tensor& part, const CollectiveOptions& o) {
  check_part(Collective::all_gather, part, full, rank(), size());
  return call(Collective::all_gather, full, part, full.numel(), 0, o);
}

Work ProcessGroup::reduce_scatter(const Tensor& part, const Tensor& full, const CollectiveOptions& o) {
  check_part(Collective::reduce_scatter, part, full, rank(), size());
  return call(Collective::reduce_scatter, part, full, full.numel(), 0, o);
}

Work ProcessGroup::gather(const Tensor& full, const Tensor& part, int root, const CollectiveOptions& o) {
  check_rank(Collective::gather, "root", root);
  if (rank() == root) check_part(Collective::gather, part, full, rank(), size());
  else check_tensor(Collective::gather, "part", part);
  return call(Collective::gather, rank() == root ? full : Tensor(), part, rank() == root ? full.numel() : -1, root, o);
}

Work ProcessGroup::scatter(const Tensor& part, const Tensor& full, int root, const CollectiveOptions& o) {
  check_rank(Collective::scatter, "root", root);
  if (rank() == root) check_part(Collective::scatter, part, full, rank(), size());
  else check_tensor(Collective::scatter, "part", part);
  return call(Collective::scatter, part, rank() == root ? full : Tensor(), rank() == root ? full.numel() : -1, root, o);
}

Work ProcessGroup::all_to_all(const Tensor& output, const Tensor& input, const CollectiveOptions& o) {
  constexpr auto c = Collective::all_to_all;
  check_pair(c, output, input);
  LOCKSTEP_CHECK(output.numel() == input.numel(), at(c), "expected output and input of one size, got ", output.numel(),
                 " and ", input.numel(), " elements; make the output in the input's size");
  LOCKSTEP_CHECK(input.numel() % size() == 0, at(c), "expected a number of elements divisible by the ", size(),
                 " ranks, got ", input.numel(), "; pad the tensor");
  if (input.numel() > 0) check_overlap(c, output, input, part_of(input, 0));
  return call(c, output, input, input.numel(), 0, o);
}

Work ProcessGroup::all_to_all(const Tensor& output, const std::vector<int64_t>& from_each, const Tensor& input,
                              const std::vector<int64_t>& to_each, const CollectiveOptions& o) {
  constexpr auto c = Collective::all_to_all;
  check_pair(c, output, input);
  const auto starts = [&](const char* role, const Tensor& t, const std::vector<int64_t>& rows) {
    LOCKSTEP_CHECK(t.dim() >= 1 && int(rows.size()) == size(), at(c), "expected ", role,
                   " of 1 dimension or more, and ", size(), " numbers of its rows, one for each rank, got shape ",
                   t.shape(), " and ", rows.size(), " numbers");
    std::vector<int64_t> begin{0};
    for (const int64_t n : rows) {
      LOCKSTEP_CHECK(n >= 0, at(c), "expected 0 rows or more for a rank, got ", n);
      begin.push_back(begin.back() + n);
    }
    LOCKSTEP_CHECK(begin.back() == t.size(0), at(c), "expected parts of ", role, " that add up to its ", t.size(0),
                   " rows, got ", begin.back(), "; correct the numbers of rows");
    return begin;
  };
  const std::vector<int64_t> out = starts("output", output, from_each), in = starts("input", input, to_each);
  const auto part = [](const Tensor& t, const std::vector<int64_t>& begin, int r) {
    return t.narrow(0, begin[size_t(r)], begin[size_t(r) + 1] - begin[size_t(r)]);
  };
  const Tensor own_out = part(output, out, rank()), own_in = part(input, in, rank());
  LOCKSTEP_CHECK(own_out.shape() == own_in.shape(), at(c),
                 "expected a rank's part for itself to have the same shape in input and output, got ", own_out.shape(),
                 " and ", own_in.shape(), "; correct this rank's numbers of rows");
  if (input.numel() > 0 && output.numel() > 0) check_overlap(c, output, input, nullptr);
  std::vector<PointToPoint> batch;
  for (int step = 1; step < size(); ++step) {  // each rank starts with a different peer
    const int to = (rank() + step) % size(), from = (rank() + size() - step) % size();
    if (to_each[size_t(to)] > 0)
      batch.push_back({.is_send = true, .tensor = part(input, in, to), .peer = to, .tag = std::string(o.tag)});
    if (from_each[size_t(from)] > 0)
      batch.push_back({.is_send = false, .tensor = part(output, out, from), .peer = from, .tag = std::string(o.tag)});
  }
  own_out.copy_(own_in);
  return batch.empty() ? Work() : exchange(std::move(batch), o);
}

Work ProcessGroup::send(const Tensor& data, int peer, const CollectiveOptions& o) {
  check_peer(Collective::send, peer, "data", data);
  return call(Collective::send, data, data, data.numel(), peer, o);
}

Work ProcessGroup::receive(const Tensor& data, int peer, const CollectiveOptions& o) {
  check_peer(Collective::receive, peer, "data", data);
  return call(Collective::receive, data, data, data.numel(), peer, o);
}

Work ProcessGroup::exchange(std::vector<PointToPoint> batch, const CollectiveOptions& o) {
  for (PointToPoint& p : batch) {
    check_peer(Collective::batch, p.peer, "tensor", p.tensor);
    p.world_peer = world_rank(p.peer);
  }
  for (const PointToPoint& p : batch)
    if (!p.is_send) p.tensor.storage()->bump_version("exchange");
  Call call;
  call.collective = Collective::batch;
  call.batch = std::move(batch);
  call.tag = o.tag;
  return run_anywhere(std::move(call), o.async);
}

void ProcessGroup::barrier(Seconds timeout, std::string_view tag) {
  Call call;
  call.timeout = timeout;
  call.tag = tag;
  run(std::move(call), false).wait();
}

void ProcessGroup::replay(const std::vector<std::string>&, const std::function<void()>& launch) { launch(); }

Tensor ProcessGroup::shared_empty(const Shape& shape, DType dtype, Device device) {
  return empty(shape, {.dtype = dtype, .device = device});
}

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks, const std::string& name) {
  LOCKSTEP_CHECK(!name.empty() && name.size() <= 256, "[new_group] expected a name of 1 to 256 bytes, got ",
                 name.size());
  LOCKSTEP_CHECK(!ranks.empty(), "[new_group] expected at least one rank in group ", name, ", got none");
  std::vector<bool> visited(size_t(size()), false);
  std::string list;
  for (const int r : ranks) {
    LOCKSTEP_CHECK(r >= 0 && r < size(), "[new_group] expected ranks from 0 to ", size() - 1, " of group ",
                   this->name(), ", got ", r);
    LOCKSTEP_CHECK(!visited[size_t(r)], "[new_group] expected each rank once in group ", name, ", got ", r, " twice");
    visited[size_t(r)] = true;
    if (!list.empty()) list += ',';
    list += std::to_string(r);
  }
  // All ranks of this group must create the same group: the barrier's tag carries its name and ranks.
  Call call;
  call.tag = "new_group " + name + " of " + list;
  run(std::move(call), false).wait();
  Membership member{str(member_.id, "/", ++groups_, ".", name), name, -1, {}};
  for (const int r : ranks) {
    if (r == rank()) member.rank = int(member.world_ranks.size());
    member.world_ranks.push_back(world_rank(r));
  }
  return member.rank < 0 ? nullptr : make_group(std::move(member), ranks);
}

std::shared_ptr<ProcessGroup> ProcessGroup::split(int color, int key, const std::string& name) {
  const Tensor mine = Tensor::from<int64_t>({int64_t(color), int64_t(key)}).to(cpu),
               all = empty({2 * size()}, {.dtype = i64, .device = cpu});
  all_gather(all, mine, {.tag = "split " + name}).wait();
  const auto* values = all.data<int64_t>();
  std::map<int64_t, std::vector<int>> members;  // every rank creates every group, by ascending colour
  for (int r = 0; r < size(); ++r)
    if (values[2 * r] >= 0) members[values[2 * r]].push_back(r);
  std::shared_ptr<ProcessGroup> own;
  for (auto& [value, ranks] : members) {
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return values[2 * a + 1] < values[2 * b + 1]; });
    auto group = new_group(ranks, str(name, ".", value));
    if (group) own = std::move(group);
  }
  return own;
}

}  // namespace lockstep::dist
