#pragma once
// Splits the inputs of DataParallel over devices, and joins outputs. Variables and tensors are split along the batch
// dimension, also inside vectors, maps, pairs, tuples and optionals. shared(x) goes whole to every device. Anything
// else is passed to all replicas as it is.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep::parallel {

/// Sizes of the chunks into which torch.chunk divides n: ceil(n / k) each. The last chunk may be smaller, and there may
/// be fewer than k chunks. n = 10, k = 3 gives 4, 4, 2; n = 5, k = 4 gives 2, 2, 1. Error if n < 1 or k < 1.
std::vector<int64_t> chunk_sizes(int64_t n, int64_t k);

/// Wraps an input of DataParallel that every replica gets whole (a mask, a table). Made by shared().
template <class T> struct Shared { T value; };
/// Marks x as an input that every replica gets whole.
template <class T> Shared<std::decay_t<T>> shared(T&& value) { return {std::forward<T>(value)}; }

/// Bytes that a device sent and received.
struct BytesMoved {
  int64_t sent = 0, received = 0;
};

/// Bytes that a device moved, and the work of its replica, since the DataParallel was made.
struct DeviceTraffic {
  std::string device;  ///< "cpu:1"; the last one is "host", which also stands for devices outside the list
  BytesMoved parameters, gradients;  ///< traffic of parameters and buffers; traffic of their gradients
  BytesMoved batch;                  ///< traffic of inputs, outputs, and the gradients of both
  int64_t samples = 0;               ///< samples that the device's replica was given
  double seconds = 0;                ///< seconds spent in the forwards of that replica
  int64_t sent() const { return parameters.sent + gradients.sent + batch.sent; }  ///< all bytes sent
  /// All bytes received.
  int64_t received() const { return parameters.received + gradients.received + batch.received; }
};

/// DataParallel::bytes_moved() as a table that names the busiest device.
std::string to_string(const std::vector<DeviceTraffic>& traffic);

namespace detail {

enum class Load { parameters, gradients, batch };

/// Counts the bytes that each device sends and receives. Every copy that DataParallel makes between devices goes
/// through copy().
class TrafficCounter {
 public:
  explicit TrafficCounter(const std::vector<Device>& devices) : devices_(devices), rows_(devices.size() + 1) {}

  /// A place is the index of a device in the constructor's list; host() stands for all other devices.
  size_t host() const { return devices_.size(); }
  size_t place_of(Device device) const;
  Device device(size_t place) const { return place < devices_.size() ? devices_[place] : cpu; }

  /// Copies x from place `from` to place `to`, and counts the bytes. Copies even if both places are the same device, as
  /// the host and cpu:0 are.
  Tensor copy(const Tensor& x, size_t from, size_t to, Load load);
  /// Copies x to device `to` as an operation on the tape; returns x itself if it is on that device.
  static Variable move(const std::shared_ptr<TrafficCounter>& traffic, const Variable& x, Device to, Load load);
  void count_forward(size_t place, int64_t samples, double seconds);

  std::vector<DeviceTraffic> report() const;

 private:
  struct Row {
    std::atomic<int64_t> sent[3]{}, received[3]{}, samples{0}, nanoseconds{0};
  };
  std::vector<Device> devices_;
  std::vector<Row> rows_;
};

/// The division of one forward's batch over the devices, and the counter of the bytes moved.
struct BatchSplit {
  std::vector<Device> devices = {};
  int64_t dim = 0;
  std::shared_ptr<TrafficCounter> traffic;
  int64_t batch = -1;               ///< number of samples, known after measure()
  std::vector<int64_t> sizes = {};  ///< samples of each device in use, known after finish()

  /// Records the batch size of an input. Error if it differs from the batch size of earlier inputs.
  void measure(const Tensor& x);
  /// Computes `sizes` from the batch size. Error if no input had a batch dimension.
  void finish();
  size_t count() const { return sizes.size(); }

  // pieces(): x divided over the replicas; on(): x on a replica's device; join(): the inverse of pieces(), on the
  // device `target`. Undefined variables stay undefined.
  std::vector<Variable> pieces(const Variable& x) const;
  Variable on(size_t replica, const Variable& x) const;
  Variable join(const std::vector<Variable>& parts, Device target) const;
};

// --- types that hold tensors ---

template <class T> inline constexpr bool is_shared = false;
template <class T> inline constexpr bool is_shared<Shared<T>> = true;
template <class T> inline constexpr bool is_tensor = std::is_same_v<T, Variable> || std::is_same_v<T, Tensor>;
template <class T> struct ContainsTensor : std::bool_constant<is_tensor<T>> {};
template <class T, class A> struct ContainsTensor<std::vector<T, A>> : ContainsTensor<T> {};
template <class K, class T, class C, class A> struct ContainsTensor<std::map<K, T, C, A>> : ContainsTensor<T> {};
template <class T> struct ContainsTensor<std::optional<T>> : ContainsTensor<T> {};
template <class A, class B>
struct ContainsTensor<std::pair<A, B>> : std::bool_constant<ContainsTensor<A>::value || ContainsTensor<B>::value> {};
template <class... Ts>
struct ContainsTensor<std::tuple<Ts...>> : std::bool_constant<(ContainsTensor<Ts>::value || ...)> {};
template <class T> inline constexpr bool contains_tensor = ContainsTensor<std::remove_const_t<T>>::value;

// --- one traversal for measuring and splitting inputs and joining outputs ---

/// Error if `alike` is false: outputs of replicas that differ in structure cannot be joined. what: what was expected.
void expect_alike(bool alike, const char* what);

/// Traverses several values of one type side by side. The values must have the same structure. Calls fn(places) for
/// every tensor and every part that holds no tensor; `places` points to this tensor or part in each of the values.
template <class T, class Fn> void walk(const std::vector<T*>& values, const Fn& fn) {
  T& first = *values[0];
  const auto inside = [&](const auto& part_of) {
    std::vector<decltype(&part_of(first))> parts;
    for (T* value : values) parts.push_back(&part_of(*value));
    walk(parts, fn);
  };
  const auto all = [&](const auto& test) {
    return std::all_of(values.begin(), values.end(), [&](T* value) { return test(*value); });
  };
  if constexpr (is_tensor<std::remove_const_t<T>> || !contains_tensor<T>) {
    fn(values);
  } else if constexpr (requires { first.has_value(); }) {
    expect_alike(all([&](T& x) { return x.has_value() == first.has_value(); }), "a value from all or from none");
    if (first) inside([](T & x) -> auto& { return *x; });
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      (inside([](T & x) -> auto& { return std::get<I>(x); }), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (requires { typename T::mapped_type; }) {
    const auto same_key = [](const auto& a, const auto& b) { return a.first == b.first; };
    expect_alike(all([&](T& x) { return std::equal(x.begin(), x.end(), first.begin(), first.end(), same_key); }),
                 "maps of the same keys");
    for (const auto& entry : first) inside([&entry](T & x) -> auto& { return x.at(entry.first); });
  } else {
    expect_alike(all([&](T& x) { return x.size() == first.size(); }), "lists of one length");
    for (size_t j = 0; j < first.size(); ++j) inside([j](T & x) -> auto& { return x[j]; });
  }
}

inline void assign(Variable& to, const Variable& x) { to = x; }
inline void assign(Tensor& to, const Variable& x) { to = x.defined() ? x.tensor() : Tensor(); }

template <class T> void measure(BatchSplit& cut, const T& x) {
  walk(std::vector<const T*>{&x}, [&]<class U>(const std::vector<U*>& place) {
    if constexpr (contains_tensor<U>)
      if (place[0]->defined()) cut.measure(Variable(*place[0]).tensor());
  });
}

/// An input that was split over the replicas. Replica i is called with element [i].
template <class T> struct Parts {
  std::vector<T> parts;
  const T& operator[](size_t i) const { return parts[i]; }
};
/// An input passed to all replicas by reference.
template <class T> struct Same {
  T& value;
  T& operator[](size_t) const { return value; }
};

template <class T> auto parts_of(const BatchSplit& cut, T& x) {
  using U = std::remove_const_t<T>;
  if constexpr (is_shared<U>) {
    using V = decltype(U::value);
    static_assert(is_tensor<V>, "shared() takes a Variable or a Tensor; other values go to every replica anyway");
    Parts<V> copies{std::vector<V>(cut.count())};
    for (size_t i = 0; i < cut.count(); ++i) assign(copies.parts[i], cut.on(i, Variable(x.value)));
    return copies;
  } else if constexpr (contains_tensor<U>) {
    Parts<U> cuts{std::vector<U>(cut.count(), x)};
    std::vector<U*> values;
    for (U& part : cuts.parts) values.push_back(&part);
    walk(values, [&]<class V>(const std::vector<V*>& places) {
      if constexpr (contains_tensor<V>) {
        const std::vector<Variable> pieces = cut.pieces(Variable(*places[0]));
        for (size_t i = 0; i < places.size(); ++i) assign(*places[i], pieces[i]);
      }
    });
    return cuts;
  } else {
    return Same<T>{x};
  }
}
/// The type with which a replica's forward() is called for an input of type T.
template <class T> using Part = decltype(parts_of(std::declval<const BatchSplit&>(), std::declval<T&>())[0]);

/// Joins the replicas' outputs into one on the device `target`.
template <class T> T join(const BatchSplit& cut, std::vector<T> outputs, Device target) {
  std::vector<T*> values;
  for (T& output : outputs) values.push_back(&output);
  walk(values, [&]<class U>(const std::vector<U*>& places) {
    static_assert(
        is_tensor<U>,
        "what forward() returns must be made of Variables and Tensors, in vectors, maps, pairs, tuples or optionals");
    std::vector<Variable> parts;
    for (const U* place : places) parts.emplace_back(*place);
    assign(*places[0], cut.join(parts, target));
  });
  return std::move(outputs[0]);
}

}  // namespace detail
}  // namespace lockstep::parallel
