#pragma once
// DataParallel: one process, several devices. Every forward cuts the batch, copies the parameters to
// each device, runs the replicas in threads and joins the outputs on the first device; backward sums the gradients
// there. Devices may be virtual CPU devices (cpu:0 .. cpu:k), so it runs anywhere.
//
//                 cut          parameters             join               backward: gradients of the copies
//      batch ──┬─────► cpu:0 ── the module ──► y0 ──┬──► y          root  all to cpu:0, which adds them
//              ├─────► cpu:1 ── a replica  ──► y1 ──┤               cpu   all to the host, the sum to cpu:0
//              └─────► cpu:2 ── a replica  ──► y2 ──┘               ring  partial sums go round, a third of them each
//
//   Net net(5, 2);
//   parallel::DataParallel model(net, [] { return Net(5, 2); });   // all devices
//   auto loss = mse_loss(model(x), y);                             // then as with net itself
//
// The parameters are copied as an operation on the tape (one input, a copy per device), so the sum of their gradients
// is its derivative. Per step, S bytes of parameters and n devices move:
//
//   reduce   first device sends, receives     any other sends, receives    host sends, receives
//   root     (n-1) S, (n-1) S                 S, S                         -
//   cpu      2 S, S                           S, S                         n S, (n+1) S
//   ring     S + (n-1)/n S, 2 (n-1)/n S       2 S (last: S), S + (n-1)/n S
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"
#include "parallel/scatter.h"

namespace lockstep::parallel {

/// How copies of parameters are spread, and their gradients become one: see above.
enum class Reduce { root, cpu, ring };

struct DataParallelOptions {
  std::vector<Device> devices;   ///< empty: all
  std::optional<Device> output;  ///< where outputs are joined; default: devices[0]
  int64_t dim = 0;               ///< which dim of inputs and outputs is the batch
  Reduce reduce = Reduce::root;
};

namespace detail {

/// The module on the first device, and one replica for each further one.
class Replicas {
 public:
  using Make = std::function<std::unique_ptr<nn::Module>()>;
  Replicas(nn::Module& module, DataParallelOptions options, const Make& make);

  const DataParallelOptions& options() const { return o_; }
  Cut cut() const { return {.devices = o_.devices, .dim = o_.dim, .traffic = traffic_}; }
  nn::Module& operator[](size_t i) const { return i == 0 ? module_ : *others_[i - 1]; }
  /// Gives replicas 1 .. count-1 the module's parameters (on the tape), buffers, hooks and training flags.
  void update(size_t count);
  /// call(i) for every piece of the cut, each in a thread of its own with the caller's modes; the first exception, with
  /// its replica's name.
  void run(const Cut& cut, const std::function<void(size_t)>& call);
  Traffic& traffic() const { return *traffic_; }

 private:
  void check_alike(size_t replica) const;

  nn::Module& module_;
  DataParallelOptions o_;
  std::shared_ptr<Traffic> traffic_;
  std::vector<std::unique_ptr<nn::Module>> others_;  // of devices 1 ..
};

}  // namespace detail

/// M: a module with forward(). What differs from calling it directly:
/// - Inputs and outputs are cut and joined by the rules of scatter.h. Scalars become a vector of one value per piece:
///   take weighted_mean() of it, since a last piece may be smaller. A short batch may use fewer devices.
/// - The module itself is replica 0. Buffers (running means) and plain fields that other replicas change are lost.
/// - Replica i draws random numbers as micro-batch micro_batch * devices + i of the step (tensor/random.h).
/// - Hooks and prints run in the replicas' threads, at the same time.
template <class M> class DataParallel : public nn::Layer<DataParallel<M>> {
 public:
  using Options = DataParallelOptions;
  /// `make` gives another module of the same structure, which becomes a replica; its values do not matter. `module`
  /// must outlive this, and be on devices[0] when it is called.
  template <class Make>
  requires std::same_as<std::invoke_result_t<Make>, M> DataParallel(M& module, const Make& make, Options options = {})
      : module_(&module),
        replicas_(module, std::move(options), [&make] { return std::unique_ptr<nn::Module>(new M(make())); }) {}
  explicit DataParallel(M& module, Options options = {}) requires std::default_initializable<M>
      : DataParallel(
            module, [] { return M(); }, std::move(options)) {}

  template <class... Args>
  requires requires(M& m, Args&... args) { m.forward(std::declval<detail::Part<Args>>()...); }
  auto forward(Args&&... args) {
    using Output = std::decay_t<decltype((*module_)(std::declval<detail::Part<Args>>()...))>;
    detail::Cut cut = replicas_.cut();
    (detail::measure(cut, args), ...);
    cut.finish();
    auto parts = std::make_tuple(detail::parts_of(cut, args)...);
    replicas_.update(cut.count());
    std::vector<std::optional<Output>> outputs(cut.count());
    replicas_.run(cut, [&](size_t i) {
      M& replica = static_cast<M&>(replicas_[i]);
      std::apply([&](auto&... part) { outputs[i].emplace(replica(part[i]...)); }, parts);
    });
    const DataParallelOptions& o = replicas_.options();
    if (o.devices.size() == 1 && o.output.value_or(o.devices[0]) == o.devices[0])
      return std::move(*outputs[0]);  // a plain call
    std::vector<Output> all;
    for (auto& output : outputs) all.push_back(std::move(*output));
    return detail::join(cut, std::move(all), o.output.value_or(o.devices[0]));
  }

  M& module() { return *module_; }
  void fields(nn::Fields& f) override { f("module", *module_); }
  std::string kind() const override { return "DataParallel"; }

  std::vector<DeviceTraffic> bytes_moved() const { return replicas_.traffic().report(); }

 private:
  M* module_;
  detail::Replicas replicas_;
};

/// Mean of one value per piece, weighted by its samples, chunk_sizes(batch, devices): the mean over the whole batch.
Variable weighted_mean(const Variable& values, const std::vector<int64_t>& samples);

}  // namespace lockstep::parallel
