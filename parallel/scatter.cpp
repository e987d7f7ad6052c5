#include "parallel/scatter.h"

#include <algorithm>
#include <cstdio>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "parallel/traffic.h"

namespace lockstep::parallel {

std::vector<int64_t> chunk_sizes(int64_t n, int64_t k) {
  LOCKSTEP_CHECK(n >= 1 && k >= 1, "[chunk_sizes] expected at least one sample and one device, got ", n, " and ", k);
  const int64_t size = (n + k - 1) / k;
  std::vector<int64_t> sizes(size_t(n / size), size);
  if (n % size != 0) sizes.push_back(n % size);
  return sizes;
}

std::vector<Variable> scatter(const Variable& x, const std::vector<Device>& devices, int64_t dim) {
  LOCKSTEP_CHECK(!devices.empty(), "[scatter] expected at least one device, got none");
  for (const Device device : devices) check_device("scatter", device);
  detail::Cut cut{.devices = devices, .dim = dim, .traffic = std::make_shared<detail::Traffic>(devices)};
  cut.measure(x.tensor());
  cut.finish();
  return cut.pieces(x);
}

Variable gather(const std::vector<Variable>& parts, Device target, int64_t dim) {
  check_device("gather", target);
  detail::Cut cut{
      .devices = {target}, .dim = dim, .traffic = std::make_shared<detail::Traffic>(std::vector<Device>{target})};
  return cut.join(parts, target);
}

namespace detail {

void fail_gather(const std::string& what) {
  fail("[DataParallel] expected " + what + " from every replica, got others from some");
}

void Cut::measure(const Tensor& x) {
  LOCKSTEP_CHECK(x.dim() > 0, "[DataParallel] expected inputs with a batch in dim ", dim,
                 ", got a scalar tensor (give every replica the whole of it with shared(x))");
  LOCKSTEP_CHECK(dim >= -x.dim() && dim < x.dim(), "[DataParallel] expected inputs with a batch in dim ", dim,
                 ", got shape ", x.shape());
  const int64_t n = x.size(dim);
  LOCKSTEP_CHECK(n > 0, "[DataParallel] expected at least one sample, got an empty batch: shape ", x.shape(), ", dim ",
                 dim);
  LOCKSTEP_CHECK(batch < 0 || n == batch, "[DataParallel] expected all inputs to have the same size in dim ", dim,
                 ", got ", batch, " and ", n,
                 " (an input that is no batch goes whole to every replica with shared(x))");
  batch = n;
}

void Cut::finish() {
  LOCKSTEP_CHECK(batch > 0, "[DataParallel] expected at least one input with a batch, got none");
  sizes = chunk_sizes(batch, int64_t(devices.size()));
}

std::vector<Variable> Cut::pieces(const Variable& x) const {
  std::vector<Variable> parts = count() == 1 ? std::vector<Variable>{x} : x.split(sizes, dim);
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = on(i, parts[i]);
  return parts;
}

std::vector<Tensor> Cut::pieces(const Tensor& x) const {
  std::vector<Tensor> parts;
  for (const Variable& part : pieces(Variable(x))) parts.push_back(part.tensor());
  return parts;
}

Variable Cut::on(size_t replica, const Variable& x) const {
  return Traffic::move(traffic, x, devices[replica], Load::batch);
}

Variable Cut::join(const std::vector<Variable>& parts, Device target) const {
  LOCKSTEP_CHECK(!parts.empty(), "[gather] expected at least one part, got none");
  const auto all = [&](auto test) {
    const auto passed = std::count_if(parts.begin(), parts.end(), test);
    if (passed != 0 && passed != int64_t(parts.size())) fail_gather("tensors of one rank");
    return passed != 0;
  };
  if (all([](const Variable& part) { return !part.defined(); })) return {};
  const bool scalars = all([](const Variable& part) { return part.dim() == 0; });
  if (scalars) {
    static const bool warned = (std::fputs("[DataParallel] warning: replicas gave scalars, which are joined to a "
                                           "vector of one value per device; take "
                                           "weighted_mean() of it, or mean() when all pieces are of one size\n",
                                           stderr),
                                true);
    (void)warned;
  }
  std::vector<Variable> moved;
  for (const Variable& part : parts)
    moved.push_back(Traffic::move(traffic, scalars ? part.unsqueeze(0) : part, target, Load::batch));
  return cat(moved, scalars ? 0 : dim);
}

// --- counting ---

size_t Traffic::place_of(Device device) const {
  return size_t(std::find(devices_.begin(), devices_.end(), device) - devices_.begin());
}

Tensor Traffic::copy(const Tensor& x, size_t from, size_t to, Load load) {
  const int64_t bytes = x.numel() * size_of(x.dtype());
  rows_[from].sent[int(load)].fetch_add(bytes, std::memory_order_relaxed);
  rows_[to].received[int(load)].fetch_add(bytes, std::memory_order_relaxed);
  return x.device() == device(to) ? x.clone() : x.to(device(to));
}

Variable Traffic::move(const std::shared_ptr<Traffic>& traffic, const Variable& x, Device to, Load load) {
  if (x.device() == to) return x;
  const size_t there = traffic->place_of(to), here = traffic->place_of(x.device());
  // `to` may be a device outside the list: then the place is the host, the tensor goes where it should.
  const auto carry = [traffic, load](const Tensor& t, size_t a, size_t b, Device device) {
    return traffic->copy(t, a, b, load).to(device);
  };
  Tensor out = carry(x.tensor(), here, there, to);
  if (!needs_grad({&x})) return out;
  return record("to", {&x}, std::move(out), [carry, here, there, was = x.device()](Backward& back) {
    back.give(0, carry(back.grad(), there, here, was));
  });
}

void Traffic::count_forward(size_t place, int64_t samples, double seconds) {
  rows_[place].samples.fetch_add(samples, std::memory_order_relaxed);
  rows_[place].nanoseconds.fetch_add(int64_t(seconds * 1e9), std::memory_order_relaxed);
}

std::vector<DeviceTraffic> Traffic::report() const {
  std::vector<DeviceTraffic> report;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    const auto moved = [&row](Load load) { return Moved{row.sent[int(load)].load(), row.received[int(load)].load()}; };
    report.push_back({i < devices_.size() ? str(devices_[i]) : "host", moved(Load::parameters), moved(Load::gradients),
                      moved(Load::batch), row.samples.load(), double(row.nanoseconds.load()) * 1e-9});
  }
  return report;
}

void Traffic::reset() {
  for (Row& row : rows_) {
    for (auto* list : {row.sent, row.received})
      for (int i = 0; i < 3; ++i) list[i] = 0;
    row.samples = row.nanoseconds = 0;
  }
}

}  // namespace detail
}  // namespace lockstep::parallel
