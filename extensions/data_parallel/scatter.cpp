// Splits inputs over devices, joins outputs and counts the bytes moved, for DataParallel. See scatter.h.
#include "extensions/data_parallel/scatter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "autograd/ops.h"
#include "autograd/tape.h"

namespace lockstep::parallel {

std::vector<int64_t> chunk_sizes(int64_t n, int64_t k) {
  LOCKSTEP_CHECK(n >= 1 && k >= 1, "[chunk_sizes] expected at least one sample and one device, got ", n, " and ", k);
  const int64_t size = (n + k - 1) / k;
  std::vector<int64_t> sizes(size_t(n / size), size);
  if (n % size != 0) sizes.push_back(n % size);
  return sizes;
}

namespace detail {

void expect_alike(bool alike, const char* what) {
  LOCKSTEP_CHECK(alike, "[DataParallel] expected ", what,
                 " from every replica; some returned something else: "
                 "make forward() return the same structure for every part of the batch");
}

void BatchSplit::measure(const Tensor& x) {
  LOCKSTEP_CHECK(x.dim() > 0, "[DataParallel] expected inputs with a batch in dim ", dim,
                 ", got a scalar tensor (pass it whole to every replica with shared(x))");
  LOCKSTEP_CHECK(dim >= -x.dim() && dim < x.dim(), "[DataParallel] expected inputs with a batch in dim ", dim,
                 ", got shape ", x.shape(), "; choose another dim");
  const int64_t n = x.size(dim);
  LOCKSTEP_CHECK(n > 0, "[DataParallel] expected at least one sample, got an empty batch: shape ", x.shape(), ", dim ",
                 dim, "; leave empty batches out");
  LOCKSTEP_CHECK(batch < 0 || n == batch, "[DataParallel] expected all inputs to have the same size in dim ", dim,
                 ", got ", batch, " and ", n, " (pass an input without a batch whole to every replica with shared(x))");
  batch = n;
}

void BatchSplit::finish() {
  LOCKSTEP_CHECK(batch > 0,
                 "[DataParallel] expected at least one input with a batch, got none; pass a tensor without shared()");
  sizes = chunk_sizes(batch, int64_t(devices.size()));
}

std::vector<Variable> BatchSplit::pieces(const Variable& x) const {
  if (!x.defined()) return std::vector<Variable>(count());
  std::vector<Variable> parts = count() == 1 ? std::vector<Variable>{x} : x.split(sizes, dim);
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = on(i, parts[i]);
  return parts;
}

Variable BatchSplit::on(size_t replica, const Variable& x) const {
  return x.defined() ? TrafficCounter::move(traffic, x, devices[replica], Load::batch) : x;
}

Variable BatchSplit::join(const std::vector<Variable>& parts, Device target) const {
  const auto all = [&](auto test) {
    const auto passed = std::count_if(parts.begin(), parts.end(), test);
    expect_alike(passed == 0 || passed == int64_t(parts.size()), "tensors with the same number of dimensions");
    return passed != 0;
  };
  if (all([](const Variable& part) { return !part.defined(); })) return {};
  const bool scalars = all([](const Variable& part) { return part.dim() == 0; });
  if (scalars) {
    static const bool warned =
        (std::fputs(
             "[DataParallel] warning: replicas gave scalars, which are joined to a "
             "vector of one value per device; use weighted_mean() of it, or mean() if all pieces have the same size\n",
             stderr),
         true);
    (void)warned;
  }
  std::vector<Variable> moved;
  for (const Variable& part : parts)
    moved.push_back(TrafficCounter::move(traffic, scalars ? part.unsqueeze(0) : part, target, Load::batch));
  return cat(moved, scalars ? 0 : dim);
}

// --- traffic ---

size_t TrafficCounter::place_of(Device device) const {
  return size_t(std::find(devices_.begin(), devices_.end(), device) - devices_.begin());
}

Tensor TrafficCounter::copy(const Tensor& x, size_t from, size_t to, Load load) {
  const int64_t bytes = x.numel() * size_of(x.dtype());
  rows_[from].sent[int(load)].fetch_add(bytes, std::memory_order_relaxed);
  rows_[to].received[int(load)].fetch_add(bytes, std::memory_order_relaxed);
  return x.device() == device(to) ? x.clone() : x.to(device(to));
}

Variable TrafficCounter::move(const std::shared_ptr<TrafficCounter>& traffic, const Variable& x, Device to, Load load) {
  if (x.device() == to) return x;
  const size_t there = traffic->place_of(to), here = traffic->place_of(x.device());
  // If `to` is not in the list of devices, the bytes are counted for the host. The tensor still goes to `to`.
  const auto carry = [traffic, load](const Tensor& t, size_t a, size_t b, Device device) {
    return traffic->copy(t, a, b, load).to(device);
  };
  Tensor out = carry(x.tensor(), here, there, to);
  if (!needs_grad({&x})) return out;
  return record("to", {&x}, std::move(out), [carry, here, there, was = x.device()](Backward& back) {
    back.give(0, carry(back.grad(), there, here, was));
  });
}

void TrafficCounter::count_forward(size_t place, int64_t samples, double seconds) {
  rows_[place].samples.fetch_add(samples, std::memory_order_relaxed);
  rows_[place].nanoseconds.fetch_add(int64_t(seconds * 1e9), std::memory_order_relaxed);
}

std::vector<DeviceTraffic> TrafficCounter::report() const {
  std::vector<DeviceTraffic> report;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    const auto moved = [&row](Load load) {
      return BytesMoved{row.sent[int(load)].load(), row.received[int(load)].load()};
    };
    report.push_back({i < devices_.size() ? str(devices_[i]) : "host", moved(Load::parameters), moved(Load::gradients),
                      moved(Load::batch), row.samples.load(), double(row.nanoseconds.load()) * 1e-9});
  }
  return report;
}

}  // namespace detail

std::string to_string(const std::vector<DeviceTraffic>& traffic) {
  std::string out = fmt::format("{:<8}{:>9}{:>10}{:>26}{:>26}{:>26}\n{:27}", "device", "samples", "seconds",
                                "parameters", "gradients", "batch", "");
  for (int i = 0; i < 3; ++i) out += fmt::format("{:>13}{:>13}", "sent", "received");
  const DeviceTraffic* busiest = nullptr;
  int64_t sum = 0;
  for (const DeviceTraffic& row : traffic) {
    out += fmt::format("\n{:<8}{:>9}{:>10.3f}", row.device, row.samples, row.seconds);
    for (const BytesMoved& moved : {row.parameters, row.gradients, row.batch})
      out += fmt::format("{:>13}{:>13}", moved.sent, moved.received);
    sum += row.received();
    if (!busiest || row.sent() + row.received() > busiest->sent() + busiest->received()) busiest = &row;
  }
  if (busiest && sum > 0) {
    const int64_t through = busiest->sent() + busiest->received();
    out += fmt::format("\nbusiest: {}, {} of {} bytes moved pass through it ({} %)", busiest->device, through, sum,
                       100 * through / sum);
  }
  return out + "\n";
}

}  // namespace lockstep::parallel
