// Routing of tokens to experts: order, capacity, dropped tokens.
#include <doctest/doctest.h>

#include "parallel/moe/routing.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::moe;

TEST_CASE("capacity follows DeepSpeed's formula") {
  for (const auto& [tokens, experts, top_k, factor, least, expected] : {std::tuple{16, 4, 1, 1., 4, 4},
                                                                        {17, 4, 1, 1., 4, 5},
                                                                        {16, 4, 1, 1.25, 0, 5},
                                                                        {16, 4, 2, 1., 4, 8},
                                                                        {8, 8, 1, 1., 4, 4},
                                                                        {0, 4, 2, 1., 0, 0},
                                                                        {3, 7, 1, 1., 0, 1}})
    CHECK(capacity(tokens, experts, top_k, factor, least) == expected);
}

TEST_CASE("rows are sorted by expert, and the right ones are dropped") {
  using List = std::vector<int64_t>;
  struct Row {
    List choices;
    int64_t top_k, experts, capacity;
    std::vector<double> priority;
    List token, rows, chosen;
  };
  for (const Row& r : {
           Row{{1, 0, 1, 1, 0, 1}, 1, 2, 3, {}, {1, 4, 0, 2, 3}, {2, 3}, {2, 4}},
           Row{{1, 0, 1, 1, 0, 1}, 1, 2, -1, {}, {1, 4, 0, 2, 3, 5}, {2, 4}, {2, 4}},
           Row{{1, 0, 1, 1, 0, 1}, 1, 2, 3, {.5, .5, .1, .7, .5, .6}, {1, 4, 0, 3, 5}, {2, 3}, {2, 4}},
           // ties: the first tokens win
           Row{{1, 1, 1, 1}, 1, 2, 2, {.5, .5, .5, .5}, {0, 1}, {0, 2}, {0, 4}},
           // first choices before second ones
           Row{{0, 1, 1, 0, 2, 1}, 2, 3, -1, {}, {0, 1, 1, 0, 2, 2}, {2, 3, 1}, {2, 3, 1}},
           Row{{0, 1, 1, 0, 2, 1}, 2, 3, 1, {}, {0, 1, 2}, {1, 1, 1}, {2, 3, 1}},
           Row{{0, 0}, 1, 1, 0, {}, {}, {0}, {2}},
           Row{{}, 3, 2, 4, {}, {}, {0, 0}, {0, 0}},
       }) {
    const Routing got = route(r.choices, r.top_k, r.experts, r.capacity, r.priority);
    CHECK(got.token == r.token);
    CHECK(got.rows == r.rows);
    CHECK(got.chosen == r.chosen);
    for (size_t i = 0; i < got.choice.size(); ++i) CHECK(got.choice[i] / r.top_k == got.token[i]);
    CHECK(got.dropped() == int64_t(r.choices.size()) - int64_t(r.token.size()));
  }
  CHECK_ERROR(route({0, 1, 2}, 2, 4, -1), "every token, got top_k 2 and 3 choices in all");
  CHECK_ERROR(route({0, 4}, 1, 4, -1), "expected an expert from 0 to 3, got 4");
  CHECK_ERROR(route({0, 1}, 1, 4, 1, {1}), "a priority for each of 2 choices, got 1");
}
