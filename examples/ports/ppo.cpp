// Proximal policy optimisation (PPO, Schulman et al., 2017) learns to balance a pole on a cart.
//   build/examples/ppo --steps 30
#include <numeric>

#include "examples/ports/cart_pole.h"
#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

constexpr int64_t horizon = 256;

struct ActorCritic : ls::nn::Layer<ActorCritic> {
  struct Output {
    Variable log_probabilities, values;
    void each_variable(const auto& fn) { fn(log_probabilities), fn(values); }
  };
  /// states (B, 4); returns log probabilities of the two actions (B, 2) and estimated returns (B).
  Output forward(const Variable& states) {
    const Variable h = ls::tanh(fc1(states));
    return {ls::log_softmax(policy(h), 1), value(h).reshape({-1})};
  }
  void fields(ls::nn::Fields& f) override { f("fc1", fc1)("policy", policy)("value", value); }
  ls::nn::Linear fc1{{.in = 4, .out = 64}}, policy{{.in = 64, .out = 2}}, value{{.in = 64, .out = 1}};
};

/// `horizon` consecutive actions; a new episode starts whenever one ends. lost: the number of episodes that ended.
struct Played {
  Tensor states, actions, log_probabilities, advantages, returns;
  int64_t lost = 0;
};

Played play(ActorCritic& model, ports::CartPole& pole, ports::Run& run) {
  const ls::NoGrad no_grad;
  const auto sampled = run.uniform({horizon, 5}).to_vector<float>();
  std::vector<float> states, said, values, returns(horizon), advantages(horizon);
  std::vector<int64_t> actions, lost(horizon);
  for (size_t i = 0; i <= size_t(horizon); ++i) {
    const std::vector<float> observation(pole.state.begin(), pole.state.end());
    const auto [scores, value] = model(Variable(Tensor::from(observation, {1, 4})));
    values.push_back(float(value.item()));
    if (i == size_t(horizon)) break;
    const auto both = scores.tensor().to_vector<float>();
    actions.push_back(sampled[5 * i] < std::exp(both[0]) ? 0 : 1);
    said.push_back(both[size_t(actions.back())]);
    states.insert(states.end(), observation.begin(), observation.end());
    lost[i] = !pole.step(actions.back());
    if (lost[i])
      for (size_t d = 0; d < 4; ++d) pole.state[d] = 0.1 * double(sampled[5 * i + 1 + d]) - 0.05;
  }
  // Generalised advantage estimation (Schulman et al., 2015). Every action has reward 1. A fallen pole has value 0.
  double after = 0;
  for (size_t i = size_t(horizon); i-- > 0;) {
    const double goes_on = lost[i] ? 0 : 1;
    after = 1 + 0.99 * goes_on * double(values[i + 1]) - double(values[i]) + 0.99 * 0.95 * goes_on * after;
    advantages[i] = float(after);
    returns[i] = float(after + double(values[i]));
  }
  const auto all = [](const auto& numbers) { return Tensor::from(numbers, {horizon}); };
  return {Tensor::from(states, {horizon, 4}),
          Tensor::from(actions, {horizon, 1}),
          all(said),
          all(advantages),
          all(returns),
          std::accumulate(lost.begin(), lost.end(), int64_t(0))};
}

int main(int argc, char** argv) {
  // The reported loss is minus the mean episode length.
  return ports::run(argc, argv, "pole balancing by PPO", {.steps = 40, .lr = 5e-3}, [](ports::Run& run) {
    ActorCritic model;
    run.start(model);
    ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
    ports::CartPole pole{};
    while (run.next()) {
      const Played played = play(model, pole, run);
      const Tensor a = played.advantages;
      const Variable gain((a - ls::mean(a)) / (ls::sqrt(ls::var(a)) + 1e-8));
      for (int64_t pass = 0; pass < 4; ++pass) {
        const auto [scores, values] = model(Variable(played.states));
        const Variable said = ls::gather(scores, 1, played.actions).reshape({horizon});
        const Variable ratio = ls::exp(said - Variable(played.log_probabilities));
        const Variable won = ls::mean(ls::minimum(ratio * gain, ls::clamp(ratio, 0.8, 1.2) * gain));
        const Variable entropy = ls::sum(ls::exp(scores) * scores) * (-1.0 / double(horizon));
        optimizer.zero_grad();
        (ls::mse_loss(values, Variable(played.returns)) * 0.5 - won - entropy * 0.01).backward();
        ls::optim::clip_grad_norm(model.parameters(), 0.5);
        optimizer.step();
      }
      run.report(-double(horizon) / double(std::max<int64_t>(1, played.lost)));
    }
  });
}
