#pragma once
// #include <lockstep/data_parallel.h>. DataParallel: one process, several devices. Every forward splits the batch,
// copies the parameters to each device, runs the replicas in threads and joins the outputs on the first device;
// backward sums the gradients there. Devices may be virtual CPU devices (cpu:0 .. cpu:k), so DataParallel runs on any
// machine.
//
//             split         replicas               join         backward, by Reduce:
//   batch ──┬────► cpu:0 ── the module ──► y0 ──┬──► y          root  all gradients go to cpu:0, which adds them
//           ├────► cpu:1 ── a replica  ──► y1 ──┤               cpu   all go to the host, which sends the sum to cpu:0
//           └────► cpu:2 ── a replica  ──► y2 ──┘               ring  each third of the sum goes round all devices
//
//   Net net(5, 2);
//   parallel::DataParallel model(net, [] { return Net(5, 2); });   // all devices
//   auto loss = mse_loss(model(x), y);                             // from here on as with net itself
//
// Copying the parameters is an operation on the tape (one input, one output per device), so its derivative is the sum
// of the copies' gradients. For parameters of S bytes on n devices, each step moves:
//
//            first device                     each other device                 host
//   Reduce   sends           receives         sends           receives          sends     receives
//   root     (n-1) S         (n-1) S          S               S                 -         -
//   cpu      2 S             S                S               S                 n S       (n+1) S
//   ring     S + (n-1)/n S   2 (n-1)/n S      2 S (last: S)   S + (n-1)/n S     -         -
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "extensions/data_parallel/scatter.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// How parameters are copied to the devices and their gradients summed: see the top of the file.
enum class Reduce { root, cpu, ring };

/// Options of DataParallel.
struct DataParallelOptions {
  std::vector<Device> devices = {};   ///< devices to use; empty: all devices of the module's type
  std::optional<Device> output = {};  ///< device of the joined outputs; default: devices[0]
  int64_t dim = 0;                    ///< batch dimension of inputs and outputs
  Reduce reduce = Reduce::root;       ///< how parameters and gradients are moved
};

namespace detail {

/// The module itself, on the first device, and one replica for each further device.
class Replicas {
 public:
  using Make = std::function<std::unique_ptr<nn::Module>()>;
  Replicas(nn::Module& module, DataParallelOptions options, const Make& make);

  const DataParallelOptions& options() const { return o_; }
  BatchSplit cut() const { return {.devices = o_.devices, .dim = o_.dim, .traffic = traffic_}; }
  nn::Module& operator[](size_t i) const { return i == 0 ? module_ : *others_[i - 1]; }
  /// Gives replicas 1 .. count-1 the module's parameters (on the tape), buffers, hooks and training flags. Errors: the
  /// module is not on devices[0]; a replica has a different structure.
  void update(size_t count);
  /// Runs call(i) for every replica i that has a part of the batch, each in its own thread with the caller's modes
  /// (recording, autocast, anomaly, random state). Rethrows the first exception; its message begins with the replica
  /// and the device.
  void run(const BatchSplit& cut, const std::function<void(size_t)>& call);
  TrafficCounter& traffic() const { return *traffic_; }

 private:
  void check_alike(size_t replica) const;

  nn::Module& module_;
  DataParallelOptions o_;
  std::shared_ptr<TrafficCounter> traffic_;
  std::vector<std::unique_ptr<nn::Module>> others_;  // replicas on devices 1 ..
};

}  // namespace detail

/// M: a module with forward(). Differences from calling the module directly:
/// - Inputs are split and outputs joined by the rules of scatter.h. Scalar outputs become a vector of one value per
///   replica: reduce it by weighted_mean(), since the last replica may get fewer samples. A short batch may use fewer
///   devices.
/// - The module itself is replica 0. Changes that the other replicas make to buffers (running means) or plain fields
///   are lost.
/// - Replica i draws the random numbers of the step's micro-batch number micro_batch * devices + i (tensor/random.h).
/// - Hooks and prints run in the replicas' threads, concurrently.
template <class M> class DataParallel : public nn::Layer<DataParallel<M>> {
 public:
  using Options = DataParallelOptions;
  /// `make` returns another module of the same structure, which becomes a replica; its values do not matter. `module`
  /// must outlive this object, and be on devices[0] when forward() is called. Error for a device that does not exist or
  /// is named twice.
  template <class Make>
  requires std::same_as<std::invoke_result_t<Make>, M> DataParallel(M& module, const Make& make, Options options = {})
      : module_(&module),
        replicas_(module, std::move(options), [&make] { return std::unique_ptr<nn::Module>(new M(make())); }) {}
  explicit DataParallel(M& module, Options options = {}) requires std::default_initializable<M>
      : DataParallel(
            module, [] { return M(); }, std::move(options)) {}

  /// Splits `args` along the batch dimension, runs each replica on its part, and joins the outputs.
  template <class... Args>
  requires requires(M& m, Args&... args) { m.forward(std::declval<detail::Part<Args>>()...); }
  auto forward(Args&&... args) {
    using Output = std::decay_t<decltype((*module_)(std::declval<detail::Part<Args>>()...))>;
    detail::BatchSplit cut = replicas_.cut();
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
      return std::move(*outputs[0]);  // one device: a plain call
    std::vector<Output> all;
    for (auto& output : outputs) all.push_back(std::move(*output));
    return detail::join(cut, std::move(all), o.output.value_or(o.devices[0]));
  }

  M& module() { return *module_; }  ///< the module, replica 0
  void fields(nn::Fields& f) override { f("module", *module_); }
  std::string kind() const override { return "DataParallel"; }

  /// Bytes moved, samples and seconds of each device since construction; to_string() makes a table of them.
  std::vector<DeviceTraffic> bytes_moved() const { return replicas_.traffic().report(); }

 private:
  M* module_;
  detail::Replicas replicas_;
};

/// Mean of one value per replica, weighted by the replicas' numbers of samples (chunk_sizes(batch, devices)): the mean
/// over the whole batch. Error if the numbers of values and samples differ.
Variable weighted_mean(const Variable& values, const std::vector<int64_t>& samples);

}  // namespace lockstep::parallel
