#pragma once
// Result types that forward() may have besides Variable: pairs, tuples, arrays of fixed length, and structs that list
// their variables in each_variable():
//
//   struct Result {
//     Variable output, state;
//     void each_variable(auto&& fn) { fn(output), fn(state); }
//   };
//
// Hooks, ZeRO 3, device maps and activation checkpoints see all variables; Sequential passes on the first one.
#include <array>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep::nn {

/// True for std::tuple, std::pair and std::array.
template <class T> struct IsTuple : std::false_type {};
template <class... T> struct IsTuple<std::tuple<T...>> : std::true_type {};
template <class A, class B> struct IsTuple<std::pair<A, B>> : std::true_type {};
template <class T, size_t n> struct IsTuple<std::array<T, n>> : std::true_type {};

/// Structs with a member each_variable(fn) that visits their variables.
template <class T>
concept NamesVariables = requires(T& value) {
  value.each_variable([](Variable&) {});
};

/// True if a result of type T consists of a fixed number of variables. Only such calls can be wrapped
/// (Module::wrap_call()).
template <class T> inline constexpr bool is_variables = std::is_same_v<T, Variable> || NamesVariables<T>;
/// For a tuple: true if is_variables is true for all elements.
template <class... T> inline constexpr bool is_variables<std::tuple<T...>> = (is_variables<T> && ...);
/// For a pair: true if is_variables is true for both elements.
template <class A, class B> inline constexpr bool is_variables<std::pair<A, B>> = is_variables<A>&& is_variables<B>;
/// For an array: true if is_variables is true for its elements.
template <class T, size_t n> inline constexpr bool is_variables<std::array<T, n>> = is_variables<T>;

/// Calls fn(Variable&) for each variable of a result, in order; does nothing for a result without variables.
template <class T, class Fn> void each_variable(T& value, const Fn& fn) {
  if constexpr (std::is_same_v<T, Variable>) fn(value);
  else if constexpr (NamesVariables<T>) value.each_variable(fn);
  else if constexpr (IsTuple<T>::value) std::apply([&](auto&... part) { (each_variable(part, fn), ...); }, value);
  else if constexpr (std::is_same_v<T, std::vector<Variable>>)
    for (Variable& v : value) fn(v);
}

/// True if each_variable() supports results of type T.
template <class T>
inline constexpr bool may_hold_variables =
    std::is_same_v<T, Variable> || NamesVariables<T> || IsTuple<T>::value || std::is_same_v<T, std::vector<Variable>>;

/// The variables of a result, in order.
template <class T> std::vector<Variable> variables_of(T& value) {
  std::vector<Variable> all;
  each_variable(value, [&](Variable& v) { all.push_back(v); });
  return all;
}

/// An argument of forward() for a parameter that is a variable or a tensor.
struct AnyInput : Variable {
  explicit AnyInput(const Variable& x) : Variable(x) {}
  operator const Tensor&() const { return tensor(); }  // NOLINT: implicit on purpose
};

}  // namespace lockstep::nn
