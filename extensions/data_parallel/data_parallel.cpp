// Replicas: copying parameters, running threads, summing gradients. See data_parallel.h.
#include "extensions/data_parallel/data_parallel.h"

#include <exception>
#include <map>
#include <thread>

#include "autograd/autocast.h"
#include "autograd/tape.h"
#include "base/clock.h"
#include "base/threads.h"
#include "dist/shard.h"
#include "nn/named_fields.h"
#include "tensor/batch_invariant.h"
#include "tensor/random.h"

namespace lockstep::parallel {
namespace detail {
namespace {

using nn::NamedField;

std::string describe(const NamedField& field) {
  return field.parameter ? str("parameter ", field.name, " ", field.parameter->shape()) : str("buffer ", field.name);
}

/// Copies x from device 0 to devices 1 .. count-1: directly (root), through the host (cpu), or from each device to the
/// next (ring). Element [0] of the result stays undefined.
std::vector<Tensor> broadcast(const Tensor& x, size_t count, Reduce reduce, TrafficCounter& traffic) {
  std::vector<Tensor> copies(count);
  const Tensor on_host = reduce == Reduce::cpu ? traffic.copy(x, 0, traffic.host(), Load::parameters) : Tensor();
  for (size_t i = 1; i < count; ++i) {
    if (reduce == Reduce::cpu) copies[i] = traffic.copy(on_host, traffic.host(), i, Load::parameters);
    else if (reduce == Reduce::root || i == 1) copies[i] = traffic.copy(x, 0, i, Load::parameters);
    else copies[i] = traffic.copy(copies[i - 1], i - 1, i, Load::parameters);
  }
  return copies;
}

struct Part {
  size_t place;
  Tensor gradient;
};

/// Returns the sum of the gradients that the devices have for one parameter, as a new tensor on the first device.
Tensor sum_of(const std::vector<Part>& parts, Reduce reduce, TrafficCounter& traffic) {
  const auto copy = [&](const Tensor& x, size_t from, size_t to) { return traffic.copy(x, from, to, Load::gradients); };
  if (reduce != Reduce::ring) {  // one device (or the host) adds all parts
    const size_t server = reduce == Reduce::root ? 0 : traffic.host();
    Tensor sum;
    for (const Part& part : parts) {
      const Tensor there = copy(part.gradient, part.place, server);
      sum = sum.defined() ? add_(sum, there) : there;
    }
    return server == 0 ? sum : copy(sum, server, 0);
  }
  // Reduce::ring: each of the n parts is cut into n chunks. The sum of chunk c starts on the device of part c + 1 and
  // travels from device to device; each adds its own chunk c. The device of part c adds last, and sends the sum to the
  // first device.
  const size_t n = parts.size();
  const Tensor full = empty(parts[0].gradient.shape(), {parts[0].gradient.dtype(), traffic.device(0)});
  const Tensor flat = full.view({-1});
  for (size_t c = 0; c < n; ++c) {
    const dist::Range range = dist::shard_range(flat.numel(), int64_t(n), int64_t(c));
    if (range.size() == 0) continue;
    const auto chunk = [&](size_t member) {
      return parts[member].gradient.reshape({-1}).narrow(0, range.begin, range.size());
    };
    size_t at = (c + 1) % n;
    Tensor sum = chunk(at);
    for (size_t step = 1; step < n; ++step) {
      const size_t next = (at + 1) % n;
      sum = copy(sum, parts[at].place, parts[next].place);
      add_(sum, chunk(next));
      at = next;
    }
    flat.narrow(0, range.begin, range.size()).copy_(parts[at].place == 0 ? sum : copy(sum, parts[at].place, 0));
  }
  return full;
}

/// Copies x to devices 1 .. count-1, as one operation, whose derivative adds the copies' gradients. Result [0] is x
/// itself: the gradient of x is on the first device already, and the gradients of the copies are added to it in place.
std::vector<Variable> replicate(const Variable& x, size_t count, Reduce reduce,
                                const std::shared_ptr<TrafficCounter>& traffic) {
  std::vector<Tensor> tensors = broadcast(x.tensor(), count, reduce, *traffic);
  tensors.erase(tensors.begin());
  std::vector<Variable> copies;
  if (!needs_grad({&x})) {
    copies.assign(tensors.begin(), tensors.end());
  } else {
    copies = record("replicate", std::vector<Variable>{x}, std::move(tensors), [=](Backward& back) {
      const MemoryScope scope(Memory::gradient);
      const Tensor own = back.partial(0);
      std::vector<Part> parts;
      if (own.defined()) parts.push_back({0, own});
      for (size_t i = 1; i < count; ++i)
        if (back.grad(int(i) - 1).defined()) parts.push_back({i, back.grad(int(i) - 1)});
      if (reduce == Reduce::root && own.defined()) {
        for (size_t i = 1; i < parts.size(); ++i)
          add_(own, traffic->copy(parts[i].gradient, parts[i].place, 0, Load::gradients));
        return;
      }
      const Tensor sum = sum_of(parts, reduce, *traffic);
      if (own.defined()) own.copy_(sum);
      else back.give(0, sum);
    });
  }
  copies.insert(copies.begin(), x);
  return copies;
}

/// Thread-local modes that a replica's thread inherits from the caller.
struct Modes {
  bool grad = NoGrad::grad_enabled(), anomaly = AnomalyMode::enabled(), autocast = Autocast::enabled(),
       invariant = BatchInvariant::is_on();
  DType autocast_dtype = Autocast::dtype();
  Memory memory = MemoryScope::current();
  RandomState random = random_state();
};

}  // namespace

/// Throws an Error if the replica has other fields than the module. The Error names the first difference.
void Replicas::check_alike(size_t replica) const {
  const std::vector<NamedField> mine = nn::named_fields(module_), theirs = nn::named_fields((*this)[replica]);
  for (size_t j = 0; j < std::max(mine.size(), theirs.size()); ++j) {
    const std::string a = j < mine.size() ? describe(mine[j]) : "nothing more",
                      b = j < theirs.size() ? describe(theirs[j]) : "nothing more";
    LOCKSTEP_CHECK(a == b,
                   "[DataParallel] expected the factory to make a module of the same structure: the module has ", a,
                   ", the replica for ", o_.devices[replica], " has ", b, "; use the module's options in the factory");
  }
}

Replicas::Replicas(nn::Module& module, DataParallelOptions options, const Make& make)
    : module_(module), o_(std::move(options)) {
  std::vector<Device>& devices = o_.devices;
  if (devices.empty()) {  // all devices of the module's type
    const std::vector<NamedField> fields = nn::named_fields(module);
    devices = all_devices(fields.empty() ? Device::Type::cpu : fields[0].tensor().device().type);
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    check_device("DataParallel", devices[i]);
    LOCKSTEP_CHECK(std::find(devices.begin(), devices.begin() + int64_t(i), devices[i]) == devices.begin() + int64_t(i),
                   "[DataParallel] expected every device once, got ", devices[i], " twice; leave one out");
  }
  if (o_.output) check_device("DataParallel", *o_.output);
  traffic_ = std::make_shared<TrafficCounter>(devices);
  const RandomScope here;  // a factory that draws initial values must not advance the caller's random state
  for (size_t i = 1; i < devices.size(); ++i) {
    others_.push_back(make());
    check_alike(i);
  }
}

void Replicas::update(size_t count) {
  const std::vector<NamedField> mine = nn::named_fields(module_);
  const Device first = o_.devices[0];
  for (const NamedField& field : mine) {
    const Device device = field.tensor().device();
    LOCKSTEP_CHECK(device == first, "[DataParallel] expected the module on ", first, ", the first of the devices, got ",
                   describe(field), " on ", device, " (move it with module.to(device))");
  }
  if (count == 1) return;
  std::vector<std::vector<NamedField>> theirs;
  for (size_t i = 1; i < count; ++i) {
    check_alike(i);
    theirs.push_back(nn::named_fields((*this)[i]));
    const auto from = module_.named_modules(), to = (*this)[i].named_modules();
    for (size_t m = 0; m < from.size() && m < to.size(); ++m) {  // parents first: train() also sets the children
      if (to[m].second->is_training() != from[m].second->is_training())
        to[m].second->train(from[m].second->is_training());
      to[m].second->copy_hooks(*from[m].second);
    }
  }
  const MemoryScope scope(Memory::parameter);
  std::map<const void*, std::vector<Variable>> copies;  // a shared parameter is copied once
  for (size_t j = 0; j < mine.size(); ++j) {
    if (mine[j].buffer) {
      const std::vector<Tensor> tensors = broadcast(*mine[j].buffer, count, o_.reduce, *traffic_);
      for (size_t i = 1; i < count; ++i) theirs[i - 1][j].set(tensors[i]);
      continue;
    }
    auto& list = copies[mine[j].key()];
    if (list.empty()) list = replicate(*mine[j].parameter, count, o_.reduce, traffic_);
    for (size_t i = 1; i < count; ++i)
      rebase(*theirs[i - 1][j].parameter, list[i]);  // every handle on the replica's parameter sees the new value
  }
}

void Replicas::run(const BatchSplit& cut, const std::function<void(size_t)>& call) {
  const size_t count = cut.count();
  const Modes modes;
  std::vector<std::exception_ptr> errors(count);
  const int threads = std::max(1, get_threads() / int(count));
  const auto timed = [&](size_t i) {
    const ThreadLimit share(threads);
    const double start = steady_seconds();
    try {
      call(i);
    } catch (...) { errors[i] = std::current_exception(); }
    traffic_->count_forward(i, cut.sizes[i], steady_seconds() - start);
  };
  const auto random_of = [&](size_t i) {
    RandomState state = modes.random;
    state.micro_batch = state.micro_batch * cut.devices.size() + i;
    return state;
  };
  {
    std::vector<std::jthread> others;  // joined even when an exception is thrown
    for (size_t i = 1; i < count; ++i) {
      others.emplace_back([&, i] {
        const NoGrad grad(modes.grad);
        const Autocast autocast(modes.autocast_dtype, modes.autocast);
        const BatchInvariant invariant(modes.invariant);
        const MemoryScope memory(modes.memory);
        std::optional<AnomalyMode> anomaly;
        if (modes.anomaly) anomaly.emplace();
        set_random_state(random_of(i));
        timed(i);
      });
    }
    set_random_state(random_of(0));
    timed(0);
    RandomState after = modes.random;
    after.call = random_state().call;
    set_random_state(after);
  }
  for (size_t i = 0; i < count; ++i) {
    if (!errors[i]) continue;
    if (cut.devices.size() == 1) std::rethrow_exception(errors[i]);
    try {
      std::rethrow_exception(errors[i]);
    } catch (const std::exception& e) {
      std::throw_with_nested(Error(str("[DataParallel] replica ", i, " on ", cut.devices[i], ": ", e.what())));
    }
  }
}

}  // namespace detail

Variable weighted_mean(const Variable& values, const std::vector<int64_t>& samples) {
  LOCKSTEP_CHECK(values.dim() == 1 && values.size(0) == int64_t(samples.size()),
                 "[weighted_mean] expected a vector of ", samples.size(), " values, one per piece, got shape ",
                 values.shape(), "; give chunk_sizes(batch, devices) as samples");
  double sum = 0;
  std::vector<double> weights;
  for (const int64_t n : samples) {
    LOCKSTEP_CHECK(n > 0, "[weighted_mean] expected pieces of at least one sample, got ", n,
                   "; give chunk_sizes(batch, devices) as samples");
    sum += double(n);
  }
  for (const int64_t n : samples) weights.push_back(double(n) / sum);
  return lockstep::sum(
      values * Variable(Tensor::from(weights, {int64_t(samples.size())}).to(values.dtype()).to(values.device())));
}

}  // namespace lockstep::parallel
