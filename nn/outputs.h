#pragma once
// What a forward() may give back beside one variable: pairs, tuples, arrays of a fixed length, and structs that name
// their variables,
//
//   struct Result {
//     Variable output, state;
//     void each_variable(auto&& fn) { fn(output), fn(state); }
//   };
//
// Hooks, ZeRO 3, device maps and activation checkpoints see all of them; Sequential goes on with the first.
#include <array>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep::nn {

template <class T> struct IsTuple : std::false_type {};
template <class... T> struct IsTuple<std::tuple<T...>> : std::true_type {};
template <class A, class B> struct IsTuple<std::pair<A, B>> : std::true_type {};
template <class T, size_t n> struct IsTuple<std::array<T, n>> : std::true_type {};

/// Structs that name their variables.
template <class T>
concept NamesVariables = requires(T& value) {
  value.each_variable([](Variable&) {});
};

/// Whether a result of this type is variables, as many of them whatever it holds: such a call can be wrapped.
template <class T> inline constexpr bool is_variables = std::is_same_v<T, Variable> || NamesVariables<T>;
template <class... T> inline constexpr bool is_variables<std::tuple<T...>> = (is_variables<T> && ...);
template <class A, class B> inline constexpr bool is_variables<std::pair<A, B>> = is_variables<A>&& is_variables<B>;
template <class T, size_t n> inline constexpr bool is_variables<std::array<T, n>> = is_variables<T>;

/// Calls fn(Variable&) for each variable of a result, in order; nothing for what has none.
template <class T, class Fn> void each_variable(T& value, const Fn& fn) {
  if constexpr (std::is_same_v<T, Variable>) fn(value);
  else if constexpr (NamesVariables<T>) value.each_variable(fn);
  else if constexpr (IsTuple<T>::value) std::apply([&](auto&... part) { (each_variable(part, fn), ...); }, value);
  else if constexpr (std::is_same_v<T, std::vector<Variable>>)
    for (Variable& v : value) fn(v);
}

/// Whether each_variable() looks into results of this type at all.
template <class T>
inline constexpr bool may_hold_variables =
    std::is_same_v<T, Variable> || NamesVariables<T> || IsTuple<T>::value || std::is_same_v<T, std::vector<Variable>>;

template <class T> std::vector<Variable> variables_of(T& value) {
  std::vector<Variable> all;
  each_variable(value, [&](Variable& v) { all.push_back(v); });
  return all;
}

}  // namespace lockstep::nn
