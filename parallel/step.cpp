// Makes the list of actions for a replica that holds the whole model, and prints lists. See step.h.
#include "parallel/step.h"

#include "base/check.h"

namespace lockstep::parallel {
namespace {

/// The name of an action in messages and traces, and the text that a printed list has before and after the number of
/// the action's micro-batch.
struct Name {
  std::string_view name, before, after = "";
};
// clang-format off
constexpr Name names[] = {
    {"drawing", "d"}, {"forward", "F"}, {"backward", "B"}, {"backward of the input", "I"}, {"backward of the weights", "W"},
    {"sending the activation", "a", ">"}, {"receiving the activation", "<a"},
    {"sending the gradient", "g", ">"}, {"receiving the gradient", "<g"}, {"adding the gradients", "+"},
    {"reduce", ""}, {"losses", ""}, {"check", ""}, {"norm", ""}, {"update", ""}, {"gather", ""}, {"scale", ""},
    {"rates", ""}, {"report", ""}};
// clang-format on

}  // namespace

std::string_view name_of(Do what) { return names[size_t(what)].name; }

std::string to_string(const StepAction& a) {
  return str(name_of(a.what), " of micro-batch ", a.micro_batch, a.chunk > 0 ? str(", chunk ", a.chunk) : "");
}

std::string to_string(const std::vector<StepAction>& list, int chunks) {
  std::string text;
  for (const StepAction& a : list) {
    const Name& name = names[size_t(a.what)];
    text += text.empty() ? "" : " ";
    if (a.what > Do::add) text += name.name;
    else
      text += str(name.before, a.micro_batch, chunks > 1 ? std::string(1, char('a' + a.chunk % 26)) : "",
                  a.reduces ? ">" : name.after);
  }
  return text;
}

void add_tail(std::vector<StepAction>& list, bool trains) {
  if (!trains) return list.push_back({Do::losses});
  for (auto what = Do::reduce; what <= Do::report; what = Do(int(what) + 1)) list.push_back({what});
}

std::vector<StepAction> step_of(const StepReplicas& replicas, int replica) {
  std::vector<StepAction> list;
  for (int i = 0; i < replicas.micro_batches; ++i) {
    const auto number = int32_t(replicas.number(replica, i));
    list.push_back({Do::draw, number});
    list.push_back({Do::forward, number});
    const bool reduces = replicas.interleaved || i + 1 == replicas.micro_batches;
    list.push_back({.what = Do::backward, .micro_batch = number, .reduces = reduces});
  }
  add_tail(list, true);
  return list;
}

void run(const std::vector<StepAction>& list, const std::function<void(const StepAction&)>& act, Mode mode) {
  for (const StepAction& a : list)
    if (mode == Mode::eager || is_on_host(a.what) == (mode == Mode::replay)) act(a);
}

}  // namespace lockstep::parallel
