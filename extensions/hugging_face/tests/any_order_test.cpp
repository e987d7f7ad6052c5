// An Accelerator and what it prepared may be destroyed in any order.
#include "tests/any_order.h"

#include "extensions/hugging_face/accelerator.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("accelerator: it and what it prepared are destroyed in every order") {
  destroy_in_every_order({
      {"Accelerator", 1,
       [](int) -> Owners {
         auto net = std::make_shared<Borrowed>();
         auto sgd = std::make_shared<optim::SGD>(net->parameters(), optim::SGDOptions{.lr = 0.1});
         auto acc = std::make_shared<train::Accelerator>();
         using Prepared = decltype(acc->prepare(*net, *sgd));
         auto prepared = std::make_shared<Prepared>(acc->prepare(*net, *sgd));
         auto& [model, optimizer] = *prepared;
         acc->backward(borrowed_loss(model(borrowed_input())));
         optimizer.step();
         return {acc, net, sgd, prepared};
       }},
      {"Accelerator of ranks, with a loader", 2,
       [](int) -> Owners {
         auto net = std::make_shared<Borrowed>();
         auto sgd = std::make_shared<optim::SGD>(net->parameters(), optim::SGDOptions{.lr = 0.1});
         manual_seed(3);
         auto loader =
             std::make_shared<data::DataLoader<>>(borrowed_samples(), data::DataLoader<>::Options{.batch_size = 4});
         auto acc = std::make_shared<train::Accelerator>();
         using Prepared = decltype(acc->prepare(*net, *sgd, *loader));
         auto prepared = std::make_shared<Prepared>(acc->prepare(*net, *sgd, *loader));
         auto& [model, optimizer, batches] = *prepared;
         for (auto& [x, y] : batches) {
           acc->backward(mse_loss(model(Variable(x)), y));
           optimizer.step();
           break;
         }
         return {acc, net, sgd, loader, prepared};
       }},
  });
}
