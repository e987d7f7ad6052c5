#pragma once
// How values are cut over devices and joined again. Variables and tensors are cut along the batch dimension; vectors,
// maps, pairs, tuples and optionals of them are walked; shared(x) goes whole to every device; anything else is passed
// on as it is.
#include <algorithm>
#include <deque>
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

/// Sizes of the pieces that torch.chunk makes of n: ceil(n / k) each, the last smaller, maybe fewer than k. 10 / 3 is
/// 4, 4, 2; 5 / 4 is 2, 2, 1. Error when n < 1 or k < 1.
std::vector<int64_t> chunk_sizes(int64_t n, int64_t k);

/// Cuts x so and puts piece i on devices[i]. On the tape: gradients flow back to x.
std::vector<Variable> scatter(const Variable& x, const std::vector<Device>& devices, int64_t dim = 0);
/// Joins along `dim` on `target`; scalars become a vector with one value per part.
Variable gather(const std::vector<Variable>& parts, Device target, int64_t dim = 0);

/// Marks an input of DataParallel that every replica gets whole (a mask, a table).
template <class T> struct Shared { T value; };
template <class T> Shared<std::decay_t<T>> shared(T&& value) { return {std::forward<T>(value)}; }

namespace detail {

class Traffic;

/// One forward's cut: which devices, along which dim, and who counts the bytes.
struct Cut {
  std::vector<Device> devices;
  int64_t dim = 0;
  std::shared_ptr<Traffic> traffic;
  int64_t batch = -1;          ///< samples, known after measure()
  std::vector<int64_t> sizes;  ///< one for each device in use, known after finish()

  /// Looks at one input: all must have the same size in `dim`.
  void measure(const Tensor& x);
  /// No input had a batch: Error. Else fixes the sizes.
  void finish();
  size_t count() const { return sizes.size(); }

  std::vector<Variable> pieces(const Variable& x) const;
  std::vector<Tensor> pieces(const Tensor& x) const;
  Variable on(size_t replica, const Variable& x) const;
  Variable join(const std::vector<Variable>& parts, Device target) const;
};

[[noreturn]] void fail_gather(const std::string& what);

// --- which types hold tensors ---

template <class T> struct HoldsTensors : std::false_type {};
template <> struct HoldsTensors<Variable> : std::true_type {};
template <> struct HoldsTensors<Tensor> : std::true_type {};
template <class T> struct HoldsTensors<Shared<T>> : std::true_type {};
template <class T, class A> struct HoldsTensors<std::vector<T, A>> : HoldsTensors<T> {};
template <class K, class T, class C, class A> struct HoldsTensors<std::map<K, T, C, A>> : HoldsTensors<T> {};
template <class T> struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <class A, class B>
struct HoldsTensors<std::pair<A, B>> : std::bool_constant<HoldsTensors<A>::value || HoldsTensors<B>::value> {};
template <class... Ts> struct HoldsTensors<std::tuple<Ts...>> : std::bool_constant<(HoldsTensors<Ts>::value || ...)> {};
template <class T> inline constexpr bool holds_tensors = HoldsTensors<std::decay_t<T>>::value;

// --- measuring ---

inline void measure(Cut& cut, const Variable& x) {
  if (x.defined()) cut.measure(x.tensor());
}
inline void measure(Cut& cut, const Tensor& x) {
  if (x.defined()) cut.measure(x);
}
template <class T> void measure(Cut&, const Shared<T>&) {}
template <class T> void measure(Cut& cut, const std::vector<T>& list) {
  if constexpr (holds_tensors<T>)
    for (const T& x : list) measure(cut, x);
}
template <class K, class T> void measure(Cut& cut, const std::map<K, T>& map) {
  if constexpr (holds_tensors<T>)
    for (const auto& [key, x] : map) measure(cut, x);
}
template <class T> void measure(Cut& cut, const std::optional<T>& x) {
  if constexpr (holds_tensors<T>)
    if (x) measure(cut, *x);
}
template <class... Ts> void measure(Cut& cut, const std::tuple<Ts...>& t);
template <class A, class B> void measure(Cut& cut, const std::pair<A, B>& p) {
  if constexpr (holds_tensors<A>) measure(cut, p.first);
  if constexpr (holds_tensors<B>) measure(cut, p.second);
}
template <class... Ts> void measure(Cut& cut, const std::tuple<Ts...>& t) {
  const auto one = [&](const auto& x) {
    if constexpr (holds_tensors<decltype(x)>) measure(cut, x);
  };
  std::apply([&](const auto&... x) { (one(x), ...); }, t);
}

template <class T> void measure_if(Cut& cut, const T& x) {
  if constexpr (holds_tensors<T>) measure(cut, x);
}

// --- the part of replica i ---

/// An input as replicas see it: parts()[i] is what replica i is called with.
template <class T> class Parts {
 public:
  Parts(const Cut& cut, const T& x) : parts_(split(cut, x)) {}
  const T& operator[](size_t i) const { return parts_[i]; }

 private:
  static std::deque<T> split(const Cut& cut, const T& x) {
    if constexpr (std::is_same_v<T, Variable> || std::is_same_v<T, Tensor>) {
      const std::vector<T> pieces = x.defined() ? cut.pieces(x) : std::vector<T>(cut.count());
      return {pieces.begin(), pieces.end()};
    } else if constexpr (!holds_tensors<T>) {
      return std::deque<T>(cut.count(), x);
    } else {
      std::deque<T> parts(cut.count());
      fill(cut, x, parts);
      return parts;
    }
  }

  template <class U> static void fill(const Cut& cut, const std::vector<U>& list, std::deque<std::vector<U>>& parts) {
    for (const U& x : list) {
      const Parts<U> cuts(cut, x);
      for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(cuts[i]);
    }
  }
  template <class K, class U>
  static void fill(const Cut& cut, const std::map<K, U>& map, std::deque<std::map<K, U>>& parts) {
    for (const auto& [key, x] : map) {
      const Parts<U> cuts(cut, x);
      for (size_t i = 0; i < parts.size(); ++i) parts[i].emplace(key, cuts[i]);
    }
  }
  template <class U> static void fill(const Cut& cut, const std::optional<U>& x, std::deque<std::optional<U>>& parts) {
    if (!x) return;
    const Parts<U> cuts(cut, *x);
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = cuts[i];
  }
  template <class A, class B>
  static void fill(const Cut& cut, const std::pair<A, B>& x, std::deque<std::pair<A, B>>& parts) {
    const Parts<A> a(cut, x.first);
    const Parts<B> b(cut, x.second);
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = {a[i], b[i]};
  }
  template <class... Us>
  static void fill(const Cut& cut, const std::tuple<Us...>& x, std::deque<std::tuple<Us...>>& parts) {
    const auto cuts = std::apply([&](const Us&... u) { return std::tuple<Parts<Us>...>(Parts<Us>(cut, u)...); }, x);
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i] = std::apply([i](const auto&... c) { return std::tuple<Us...>(c[i]...); }, cuts);
  }

  std::deque<T> parts_;  // (a vector of bool has no elements to refer to)
};

/// Whole on every device.
template <class T> class Copies {
 public:
  Copies(const Cut& cut, const Shared<T>& x) {
    for (size_t i = 0; i < cut.count(); ++i) {
      if constexpr (std::is_same_v<T, Tensor>)
        copies_.push_back(x.value.defined() ? cut.on(i, Variable(x.value)).tensor() : x.value);
      else if constexpr (std::is_same_v<T, Variable>)
        copies_.push_back(x.value.defined() ? cut.on(i, x.value) : x.value);
      else
        static_assert(sizeof(T) == 0, "shared() takes a Variable or a Tensor; other values go to every replica anyway");
    }
  }
  const T& operator[](size_t i) const { return copies_[i]; }

 private:
  std::vector<T> copies_;
};

/// The same object for all, by reference.
template <class T> struct Same {
  T& value;
  T& operator[](size_t) const { return value; }
};

template <class T> auto parts_of(const Cut& cut, T& x) {
  using U = std::remove_const_t<T>;
  if constexpr (!holds_tensors<U>) return Same<T>{x};
  else if constexpr (requires { x.value; }) return Copies<decltype(U::value)>(cut, x);
  else return Parts<U>(cut, x);
}
/// What a replica's forward() is called with for an input of type T.
template <class T> using Part = decltype(parts_of(std::declval<const Cut&>(), std::declval<T&>())[0]);

// --- joining outputs ---

template <class T> T join(const Cut& cut, const std::vector<T>& parts, Device target) {
  if constexpr (std::is_same_v<T, Variable>) return cut.join(parts, target);
  else if constexpr (std::is_same_v<T, Tensor>) {
    const Variable whole = cut.join(std::vector<Variable>(parts.begin(), parts.end()), target);
    return whole.defined() ? whole.tensor() : Tensor();
  } else {
    static_assert(
        holds_tensors<T>,
        "what forward() returns must be made of Variables and Tensors, in vectors, maps, pairs, tuples or optionals");
    return join_each(cut, parts, target);
  }
}
template <class T, class Pick> auto join_picked(const Cut& cut, const std::vector<T>& parts, Device target, Pick pick) {
  std::vector<std::decay_t<decltype(pick(parts[0]))>> picked;
  for (const T& part : parts) picked.push_back(pick(part));
  return join(cut, picked, target);
}
template <class U> std::vector<U> join_each(const Cut& cut, const std::vector<std::vector<U>>& parts, Device target) {
  std::vector<U> whole;
  for (const auto& part : parts)
    if (part.size() != parts[0].size()) fail_gather("lists of one length");
  for (size_t j = 0; j < parts[0].size(); ++j)
    whole.push_back(join_picked(cut, parts, target, [j](const auto& part) { return part[j]; }));
  return whole;
}
template <class K, class U>
std::map<K, U> join_each(const Cut& cut, const std::vector<std::map<K, U>>& parts, Device target) {
  std::map<K, U> whole;
  for (const auto& part : parts) {
    const auto same_key = [](const auto& a, const auto& b) { return a.first == b.first; };
    if (!std::equal(part.begin(), part.end(), parts[0].begin(), parts[0].end(), same_key))
      fail_gather("maps of the same keys");
  }
  for (const auto& [key, first] : parts[0])
    whole.emplace(key, join_picked(cut, parts, target, [&key = key](const auto& part) { return part.at(key); }));
  return whole;
}
template <class U>
std::optional<U> join_each(const Cut& cut, const std::vector<std::optional<U>>& parts, Device target) {
  for (const auto& part : parts)
    if (part.has_value() != parts[0].has_value()) fail_gather("a value from all or from none");
  if (!parts[0]) return {};
  return join_picked(cut, parts, target, [](const auto& part) { return *part; });
}
template <class A, class B>
std::pair<A, B> join_each(const Cut& cut, const std::vector<std::pair<A, B>>& parts, Device target) {
  return {join_picked(cut, parts, target, [](const auto& p) { return p.first; }),
          join_picked(cut, parts, target, [](const auto& p) { return p.second; })};
}
template <class... Us>
std::tuple<Us...> join_each(const Cut& cut, const std::vector<std::tuple<Us...>>& parts, Device target) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return std::tuple<Us...>(join_picked(cut, parts, target, [](const auto& t) { return std::get<I>(t); })...);
  }
  (std::index_sequence_for<Us...>());
}

}  // namespace detail
}  // namespace lockstep::parallel
