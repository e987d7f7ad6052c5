// Parallel plans: their syntax, which are possible, and the nearest possible one. Meshes: the members of each group.
#include <doctest/doctest.h>

#include "parallel/mesh.h"
#include "tensor/ops.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace testing;
using parallel::Coordinates, parallel::Plan, parallel::PlanSizes, parallel::coordinates_of;

TEST_CASE("plan: written and read") {
  using Text = const char*;
  for (const auto& [text, plan, again] : std::vector<std::tuple<Text, Plan, Text>>{
           {"dp2+pp2+tp2+zero1", {.dp = 2, .pp = 2, .tp = 2, .zero = 1}, "dp2+pp2+tp2+zero1"},
           {"zero3+dp8", {.dp = 8, .zero = 3}, "dp8+zero3"},
           {"tp4", {.tp = 4}, "tp4"},
           {"dp1", {}, "dp1"},
           {"zero0", {.zero = 0}, "dp1+zero0"},
           {"pp1+tp1", {}, "dp1"},
           {"cp2+dp4+ep2", {.dp = 4, .cp = 2, .ep = 2}, "dp4+cp2+ep2"},
           {"dp1024+pp64", {.dp = 1024, .pp = 64}, "dp1024+pp64"}}) {
    CHECK(parallel::parse_plan(text) == plan);
    CHECK(to_string(plan) == again);
    CHECK(parallel::parse_plan(again) == plan);
  }
  for (const auto& [text, part] :
       std::vector<std::pair<Text, Text>>{{"", "got \"\""},
                                          {"dp2+", "got \"\""},
                                          {"dp", "expected dpN"},
                                          {"2", "expected dpN"},
                                          {"dp-2", "got \"dp-2\""},
                                          {"dp0", "from 1 to"},
                                          {"zero4", "zero with a number from 0 to 3, got zero4"},
                                          {"pp2+pp2", "pp once"},
                                          {"td2", "did you mean"},
                                          {"dp2 pp2", "got \"dp2 pp2\""},
                                          {"dp99999999", "got \"dp99999999\""},
                                          {"dp1048576+pp2", "at most 1048576 ranks"}}) {
    CHECK_ERROR(parallel::parse_plan(text), part);
  }
}

TEST_CASE("plan: slices are neighbours, then parts of a sequence, stages, copies") {
  const Plan plan{.dp = 2, .pp = 2, .tp = 2};
  const std::vector<Coordinates> expected{{0, 0, 0, 0}, {0, 0, 0, 1}, {0, 1, 0, 0}, {0, 1, 0, 1},
                                          {1, 0, 0, 0}, {1, 0, 0, 1}, {1, 1, 0, 0}, {1, 1, 0, 1}};
  for (int rank = 0; rank < 8; ++rank) CHECK(coordinates_of(plan, rank) == expected[size_t(rank)]);
  for (const Plan& p :
       {Plan{}, Plan{.dp = 7}, Plan{.dp = 4, .pp = 3, .cp = 2, .tp = 5, .ep = 2}, Plan{.pp = 16, .tp = 8}}) {
    for (int rank = 0; rank < p.ranks(); ++rank) {
      const Coordinates at = coordinates_of(p, rank);
      CHECK(((at.dp * p.pp + at.pp) * p.cp + at.cp) * p.tp + at.tp == rank);
    }
  }
  CHECK(coordinates_of({.dp = 4, .ep = 2}, 3).ep == 1);
  CHECK_ERROR(coordinates_of({.dp = 2}, 2), "a rank from 0 to 1, got 2");
}

TEST_CASE("plan: impossible plans are rejected with the reason and the nearest possible plan") {
  using Text = const char*;
  PlanSizes roomy{.ranks = 8, .layers = 8, .heads = 4, .context = 16, .micro_batches = 4};
  roomy.width = 32, roomy.inner = 128, roomy.vocab = 256;
  const PlanSizes by_heads{.heads = 2, .context = 8, .context_by_heads = true};
  for (const auto& [plan, sizes] :
       std::vector<std::pair<Text, PlanSizes>>{{"dp2+pp2+tp2+zero1", roomy},
                                               {"tp3", {.heads = 6, .width = 6, .vocab = 256}},
                                               {"cp2", {.heads = 3, .context = 6}},
                                               {"dp2+cp2+zero3", {}},
                                               {"dp2+zero3", {}}})
    check_plan(parallel::parse_plan(plan), sizes);
  for (const auto& [plan, sizes, reason, nearest] : std::vector<std::tuple<Text, PlanSizes, Text, Text>>{
           {"dp2+pp2", {.ranks = 8}, "it is for 4 ranks, and there are 8", "dp4+pp2"},
           {"pp4", {.ranks = 1}, "it is for 4 ranks, and there is 1", "dp1"},
           {"pp8", {.ranks = 8, .layers = 6}, "8 stages need 8 layers, the model has 6", "dp2+pp4"},
           {"pp4", {.ranks = 4, .layers = 6, .chunks = 2}, "4 stages of 2 chunks need 8 layers", "dp2+pp2"},
           {"tp4", {.heads = 6}, "tp4 does not divide the 6 attention heads", "dp2+tp2"},
           {"tp4", {.heads = 4, .width = 4, .vocab = 3}, "tp4 has more ranks than the vocabulary has words", "dp2+tp2"},
           {"dp2+tp2", {.width = 7}, "tp2 does not divide the 7 columns of the model", "dp4"},
           {"dp2+tp2", {.inner = 7}, "hidden columns of its layers (inner)", "dp4"},
           {"dp2+tp4", {.heads = 8, .kv_heads = 2}, "4 does not divide the 2 key and value heads", "dp4+tp2"},
           {"dp4",
            {.layers = 8, .heads = 1, .micro_batches = 6},
            "dp4 does not divide the 6 micro-batches of a step",
            "dp2+pp2"},
           {"cp4", {.context = 6}, "cp4 does not divide the 6 tokens", "dp2+cp2"},
           {"cp2",
            {.context = 6, .context_parts = 2},
            "cp2 does not divide the 6 tokens of a sample (context) into 4 parts",
            "dp2"},
           {"cp2+tp2", by_heads, "cp2 does not divide the 1 heads of a tensor-parallel rank (Ulysses; ring takes any)",
            "dp2+tp2"},
           {"cp4", by_heads, "cp4 does not divide the 2 heads (Ulysses", "dp2+cp2"},
           {"cp2+tp2+zero2", {}, "but tensor parallelism sums", "cp2+tp2+zero1"},
           {"dp4+ep3", {}, "ep3 does not divide the 4 replicas", "dp4"},
           {"dp4+ep4", {.experts = 6}, "ep4 does not divide the 6 experts", "dp4+ep2"},
           {"pp2+zero2",
            {},
            "zero2 shards gradients after every micro-batch, but a pipeline sums all micro-batches first; use zero1",
            "pp2+zero1"},
           {"tp2+zero3", {}, "but tensor parallelism sums", "tp2+zero1"},
           {"pp3", {.ranks = 3, .layers = 1, .micro_batches = 1}, "3 stages need 3 layers, the model has 1", nullptr},
           {"tp3", {.ranks = 4}, "it is for 3 ranks, and there are 4", "dp4"},
           {"pp2+tp3", {.ranks = 8}, "it is for 6 ranks, and there are 8", "dp4+pp2"},
           {"pp3", {.ranks = 3, .layers = 1, .heads = 1, .micro_batches = 1}, "3 stages need 3 layers", nullptr}}) {
    const std::string found = message([&] { check_plan(parallel::parse_plan(plan), sizes); });
    INFO(plan, ": ", found);
    CHECK(contains(found, reason));
    CHECK(contains(found, nearest ? str("The nearest plan that works: ", nearest) : "No plan works on these ranks"));
  }
}

TEST_CASE("mesh: each axis is a group of its own") {
  using Groups = std::vector<std::vector<int>>;  // the ranks of each
  const Plan plan{.dp = 2, .pp = 2, .tp = 2, .ep = 2};
  const auto all = on_ranks<Groups>(8, [&](int rank) {
    const parallel::Mesh mesh(plan, dist::world());
    Groups found;
    for (dist::ProcessGroup* group :
         {&mesh.dp(), &mesh.pp(), &mesh.cp(), &mesh.tp(), &mesh.ep(), &mesh.edp(), &mesh.model()}) {
      const Tensor sum = ones({1});
      group->all_reduce(sum);
      CHECK(sum.item() == group->size());
      found.push_back(group->world_ranks());
    }
    if (rank == 5) CHECK(mesh.at() == Coordinates{1, 0, 0, 1, 1});
    CHECK((mesh.dp().rank() == mesh.at().dp && mesh.pp().rank() == mesh.at().pp && mesh.tp().rank() == mesh.at().tp &&
           mesh.ep().rank() == mesh.at().ep));
    return found;
  });
  CHECK(all[5] == Groups{{1, 5}, {5, 7}, {5}, {4, 5}, {1, 5}, {5}, {4, 5, 6, 7}});
  CHECK_ERROR(on_ranks<int>(2, [&](int) { return parallel::Mesh(plan, dist::world()).plan().dp; }),
              "it is for 8 ranks, and there are 2. The nearest plan that works: dp2+ep2");
}

TEST_CASE("mesh: gradients are summed over copies and parts of sequences, those of experts over who has the same") {
  const Plan plan{.dp = 2, .pp = 1, .cp = 2, .tp = 2, .ep = 2};
  using Ranks = std::vector<int>;
  const auto all = on_ranks<std::array<Ranks, 3>>(8, [&](int) {
    const parallel::Mesh mesh(plan, dist::world());
    return std::array{mesh.replicas().world_ranks(), mesh.ep().world_ranks(), mesh.edp().world_ranks()};
  });
  CHECK(all[3] == std::array{Ranks{1, 3, 5, 7}, Ranks{3, 7}, Ranks{1, 3}});  // rank = (dp·2 + cp)·2 + tp
  CHECK(all[4] == std::array{Ranks{0, 2, 4, 6}, Ranks{0, 4}, Ranks{4, 6}});
}
