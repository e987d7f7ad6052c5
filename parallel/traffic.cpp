#include "parallel/traffic.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/tape.h"

namespace lockstep::parallel {
namespace detail {

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

}  // namespace detail

std::string to_string(const std::vector<DeviceTraffic>& traffic) {
  std::string out = fmt::format("{:<8}{:>9}{:>10}{:>26}{:>26}{:>26}\n{:27}", "device", "samples", "seconds",
                                "parameters", "gradients", "batch", "");
  for (int i = 0; i < 3; ++i) out += fmt::format("{:>13}{:>13}", "sent", "received");
  const DeviceTraffic* busiest = nullptr;
  int64_t sum = 0;
  for (const DeviceTraffic& row : traffic) {
    out += fmt::format("\n{:<8}{:>9}{:>10.3f}", row.device, row.samples, row.seconds);
    for (const Moved& moved : {row.parameters, row.gradients, row.batch})
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
