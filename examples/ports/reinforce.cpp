// Policy gradients (REINFORCE, Williams, 1992) learn to balance a pole on a cart.
//   build/examples/reinforce --steps 150
#include "examples/ports/cart_pole.h"
#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

struct Policy : ls::nn::Layer<Policy> {
  /// states (B, 4); returns scores of the two actions (B, 2).
  Variable forward(const Variable& states) { return fc2(ls::relu(fc1(states))); }
  void fields(ls::nn::Fields& f) override { f("fc1", fc1)("fc2", fc2); }
  ls::nn::Linear fc1{{.in = 4, .out = 64}}, fc2{{.in = 64, .out = 2}};
};

int main(int argc, char** argv) {
  // The reported loss is minus the number of steps in the episode, which ends after at most 200 steps.
  return ports::run(argc, argv, "pole balancing by REINFORCE", {.steps = 200, .lr = 5e-3}, [](ports::Run& run) {
    Policy policy;
    run.start(policy);
    ls::optim::Adam optimizer(policy.parameters(), {.lr = run.lr});
    while (run.next()) {
      std::vector<float> states;
      std::vector<int64_t> actions;
      const auto sampled = run.uniform({204}).to_vector<float>();
      ports::CartPole pole;
      for (size_t i = 0; i < 4; ++i) pole.state[i] = 0.1 * double(sampled[200 + i]) - 0.05;
      for (bool goes_on = true; goes_on && actions.size() < 200;) {
        const ls::NoGrad no_grad;
        const std::vector<float> observation(pole.state.begin(), pole.state.end());
        const float left =
            ls::softmax(policy(Variable(Tensor::from(observation, {1, 4}))), 1).tensor().to_vector<float>()[0];
        states.insert(states.end(), observation.begin(), observation.end());
        actions.push_back(sampled[actions.size()] < left ? 0 : 1);
        goes_on = pole.step(actions.back());
      }
      const int64_t count = int64_t(actions.size());
      std::vector<float> returns(actions.size());
      double after = 0;
      for (size_t i = returns.size(); i-- > 0;) returns[i] = float(after = 1 + 0.99 * after);
      Tensor gain = Tensor::from(returns, {count});
      if (count > 1) gain = (gain - ls::mean(gain)) / (ls::sqrt(ls::var(gain)) + 1e-6);
      const Variable log_probabilities = ls::log_softmax(policy(Variable(Tensor::from(states, {count, 4}))), 1);
      const Variable taken = ls::gather(log_probabilities, 1, Tensor::from(actions, {count, 1})).reshape({count});
      optimizer.zero_grad();
      ls::sum(taken * Variable(gain) * -1.0).backward();
      optimizer.step();
      run.report(-double(count));
    }
  });
}
