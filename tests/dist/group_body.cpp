// check_group(): tests every function of a process group. See group_body.h.
#include "group_body.h"

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>
#include <tuple>

#include "../messages.h"
#include "dist/control.h"
#include "dist/shard.h"
#include "tests/dist/every_schedule.h"
#include "tests/dist/values.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::all_dtypes;
using testing::all_ops;

namespace {

std::vector<Algorithm> choices() {
  std::vector<Algorithm> all = all_algorithms();
  all.insert(all.begin(), Algorithm::automatic);
  return all;
}

template <class... Args> void expect(bool condition, const Args&... what) {
  if (!condition) throw std::runtime_error(str(what...));
}

// Small integers, whose sum is the same in every order and dtype.
double value(DType dtype, dist::ReduceOp op, int rank, int64_t i) {
  if (dtype == boolean) return (rank + i) % 3 == 0;
  if (op == dist::ReduceOp::product) return (rank + i) % 4 == 0 ? 2 : 1;
  return double((rank * 7 + i * 3) % 5 + (dtype == u8 ? 0 : -1));
}

double combine(DType dtype, dist::ReduceOp op, double a, double b) {
  if (dtype == boolean) return op == dist::ReduceOp::sum || op == dist::ReduceOp::max ? a || b : a && b;
  switch (op) {
    case dist::ReduceOp::product: return a * b;
    case dist::ReduceOp::min: return std::min(a, b);
    case dist::ReduceOp::max: return std::max(a, b);
    default: return a + b;
  }
}

thread_local Device where;  // the device of this rank's tensors
template <class T> Tensor from(std::initializer_list<T> values) { return Tensor::from(values).to(where); }
template <class T> Tensor from(const std::vector<T>& values, const Shape& shape) {
  return Tensor::from(values, shape).to(where);
}

template <class At> Tensor make(DType dtype, int64_t n, At at) {
  std::vector<double> values;
  values.reserve(size_t(n));
  for (int64_t i = 0; i < n; ++i) values.push_back(at(i));
  return from(values, {n}).to(dtype);
}
Tensor given(DType dtype, dist::ReduceOp op, int rank, int64_t n) {
  return make(dtype, n, [&](int64_t i) { return value(dtype, op, rank, i); });
}

Tensor reduced(DType dtype, dist::ReduceOp op, int ranks, int64_t n) {
  return make(dtype, n, [&](int64_t i) {
    double all = value(dtype, op, 0, i);
    for (int r = 1; r < ranks; ++r) all = combine(dtype, op, all, value(dtype, op, r, i));
    if (op == dist::ReduceOp::mean) all = is_floating(dtype) ? all / ranks : double(int64_t(all) / ranks);
    return all;
  });
}

void expect_equal(const Tensor& got, const Tensor& expected, const std::string& what) {
  expect(got.numel() == expected.numel() && got.dtype() == expected.dtype(), what, ": other size or dtype");
  const auto a = got.to_vector<double>(), b = expected.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) expect(a[i] == b[i], what, ": element ", i, " is ", a[i], ", expected ", b[i]);
}

class Body {
 public:
  Body(ProcessGroup& group, const GroupBody& options)
      : g(group), options(options), n(group.size()), rank(group.rank()) {
    where = options.device;
  }

  void run() {
    for (const Algorithm algorithm : choices()) {
      if (!options.schedules && algorithm != Algorithm::automatic && algorithm != options.exact) continue;
      for (const DType dtype : all_dtypes) {
        // The default algorithm runs with every dtype in small worlds. Other algorithms and larger worlds only run
        // dtypes with separate code paths.
        if (algorithm != Algorithm::automatic && dtype != f32 && dtype != bf16) continue;
        if (n > 4 && dtype != f32 && dtype != bf16 && dtype != boolean) continue;
        for (const int64_t count : {0, 1, 13, 257}) all_collectives(algorithm, dtype, count);
      }
      all_collectives(algorithm, f32, 30011);
    }
    all_collectives(Algorithm::automatic, bf16, 30011);
    asynchronous();
    messages();
    if (options.schedules) traffic();
    groups();
    refusals();
    g.barrier();
  }

 private:
  void all_collectives(Algorithm algorithm, DType dtype, int64_t count) {
    for (const dist::ReduceOp op : all_ops) {
      if (dtype == boolean && op == dist::ReduceOp::mean) continue;
      if ((count > 1000 || algorithm != Algorithm::automatic) && op != dist::ReduceOp::sum &&
          op != dist::ReduceOp::mean)
        continue;
      reductions(algorithm, dtype, op, count);
    }
    movements(algorithm, dtype, count);
  }

  bool has(Algorithm algorithm, Collective collective) const {
    return algorithm == Algorithm::automatic || has_schedule(algorithm, collective);
  }

  std::string text(Collective c, Algorithm a, DType dtype, int64_t count, const char* place) const {
    return str("rank ", rank, " of ", n, ": ", name_of(c), " by ", name_of(a), ", ", dtype, " x ", count, ", ", place);
  }

  void reductions(Algorithm a, DType dtype, dist::ReduceOp op, int64_t count) {
    const CollectiveOptions o{.op = op, .algorithm = a, .tag = "body"};
    const Tensor input = given(dtype, op, rank, count), untouched = input.clone();
    Tensor& sum = sums_[{dtype, op, count}];  // expected to have the same bits with every algorithm
    if (!sum.defined()) sum = reduced(dtype, op, n, count);
    const Range own = shard_range(count, n, rank);
    const auto what = [&](Collective c, const char* place) {
      return text(c, a, dtype, count, place) + ", " + name_of(op);
    };
    if (has(a, Collective::all_reduce)) {
      const Tensor inside = input.clone(), outside = input.clone().zero_();
      g.all_reduce(inside, o);
      expect_equal(inside, sum, what(Collective::all_reduce, "in place"));
      g.all_reduce(outside, input, o);
      expect_equal(outside, sum, what(Collective::all_reduce, "out of place"));
      expect_equal(input, untouched, what(Collective::all_reduce, "its input"));
    }
    if (has(a, Collective::reduce_scatter)) {
      const Tensor full = input.clone(), part = from(std::vector<double>(size_t(own.size())), {own.size()}).to(dtype);
      g.reduce_scatter(part, input, o);
      expect_equal(part, sum.narrow(0, own.begin, own.size()), what(Collective::reduce_scatter, "out of place"));
      expect_equal(input, untouched, what(Collective::reduce_scatter, "its input"));
      g.reduce_scatter(full.narrow(0, own.begin, own.size()), full, o);
      expect_equal(full.narrow(0, own.begin, own.size()), sum.narrow(0, own.begin, own.size()),
                   what(Collective::reduce_scatter, "in place"));
    }
    if (has(a, Collective::reduce)) {
      const int root = int(count % n);
      const Tensor data = input.clone();
      g.reduce(data, root, o);
      if (rank == root) expect_equal(data, sum, what(Collective::reduce, "in place"));
    }
  }

  void movements(Algorithm a, DType dtype, int64_t count) {
    const CollectiveOptions o{.algorithm = a, .tag = "body"};
    const auto of = [&](int r) { return given(dtype, dist::ReduceOp::sum, r, count); };
    const Range own = shard_range(count, n, rank);
    const auto what = [&](Collective c, const char* place) { return text(c, a, dtype, count, place); };
    // The concatenation in which part i comes from rank i.
    const Tensor joined = make(dtype, count, [&, owner = 0](int64_t i) mutable {
      while (shard_range(count, n, owner).end <= i) ++owner;
      return value(dtype, dist::ReduceOp::sum, owner, i);
    });
    const Tensor part = joined.narrow(0, own.begin, own.size()).clone();
    if (has(a, Collective::broadcast)) {
      for (const int root : {0, n - 1}) {
        const Tensor data = of(rank);
        g.broadcast(data, root, o);
        expect_equal(data, of(root), what(Collective::broadcast, "in place"));
      }
    }
    if (has(a, Collective::all_gather)) {
      const Tensor full = joined.clone().zero_(), inside = joined.clone().zero_();
      g.all_gather(full, part, o);
      expect_equal(full, joined, what(Collective::all_gather, "out of place"));
      inside.narrow(0, own.begin, own.size()).copy_(part);
      g.all_gather(inside, inside.narrow(0, own.begin, own.size()), o);
      expect_equal(inside, joined, what(Collective::all_gather, "in place"));
    }
    for (const int root : {0, n / 2}) {
      if (has(a, Collective::gather)) {
        const Tensor full = joined.clone().zero_();
        g.gather(rank == root ? full : Tensor(), part, root, o);
        if (rank == root) expect_equal(full, joined, what(Collective::gather, "out of place"));
      }
      if (has(a, Collective::scatter)) {
        const Tensor target = part.clone().zero_(), full = joined.clone();
        g.scatter(target, rank == root ? full : Tensor(), root, o);
        expect_equal(target, part, what(Collective::scatter, "out of place"));
        expect_equal(full, joined, what(Collective::scatter, "its input"));
        const Tensor inside = rank == root ? full.narrow(0, own.begin, own.size()) : target.zero_();
        g.scatter(inside, rank == root ? full : Tensor(), root, o);
        expect_equal(inside, part, what(Collective::scatter, "in place"));
      }
    }
    if (has(a, Collective::all_to_all)) {
      const int64_t block = count / n, all = block * n;
      const auto cell = [&](int from, int to, int64_t i) {
        return value(dtype, dist::ReduceOp::sum, from * n + to, i);
      };
      const Tensor input = make(dtype, all, [&](int64_t i) { return cell(rank, int(i / block), i % block); });
      const Tensor expected = make(dtype, all, [&](int64_t i) { return cell(int(i / block), rank, i % block); });
      const Tensor output = input.clone().zero_(), copy = input.clone();
      g.all_to_all(output, copy, o);
      expect_equal(output, expected, what(Collective::all_to_all, "out of place"));
      expect_equal(copy, input, what(Collective::all_to_all, "its input"));
      g.all_to_all(copy, copy, o);
      expect_equal(copy, expected, what(Collective::all_to_all, "in place"));
      // Uneven parts: rank `from` gives rank `to` (from + 2 to) % 3 rows of two elements; some get none.
      std::vector<int64_t> to_each, from_each;
      for (int r = 0; r < n; ++r) to_each.push_back((rank + 2 * r) % 3), from_each.push_back((r + 2 * rank) % 3);
      const auto rows = [&](const std::vector<int64_t>& each, bool sent) {
        std::vector<double> values;
        for (int r = 0; r < n; ++r)
          for (int64_t i = 0; i < 2 * each[size_t(r)]; ++i)
            values.push_back(sent ? cell(rank, r, i) : cell(r, rank, i));
        return from(values, {int64_t(values.size()) / 2, 2}).to(dtype);
      };
      const Tensor some = rows(to_each, true), expected_rows = rows(from_each, false),
                   got = expected_rows.clone().zero_();
      Work work = g.all_to_all(got, from_each, some, to_each, {.tag = "uneven", .async = o.async});
      work.wait();
      expect_equal(got, expected_rows, what(Collective::all_to_all, "uneven"));
    }
  }

  void asynchronous() {
    std::vector<Tensor> data;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      data.push_back(given(f32, dist::ReduceOp::sum, rank, 1000 + i));
      works.push_back(g.all_reduce(data.back(), {.async = true}));
    }
    const Tensor last = given(f32, dist::ReduceOp::sum, rank, 5);
    g.all_reduce(last);  // runs after the asynchronous calls
    expect_equal(last, reduced(f32, dist::ReduceOp::sum, n, 5), "a call behind asynchronous ones");
    for (int i = 20; i-- > 0;) {
      expect(works[size_t(i)].done(), "asynchronous calls end in order");
      works[size_t(i)].wait();
      works[size_t(i)].wait();  // waiting twice is allowed
      expect_equal(data[size_t(i)], reduced(f32, dist::ReduceOp::sum, n, 1000 + i), "asynchronous all_reduce");
    }
    expect(Work().done(), "no work is done");
    Work().wait();
    (void)g.all_reduce(data[0], {.async = true});  // never waited for; the next call completes it
    g.barrier();
  }

  void messages() {
    if (n == 1) return;
    const int next = (rank + 1) % n, before = (rank + n - 1) % n;
    for (const int64_t count : {0, 1, 1000, 400009}) {  // the last one is larger than the ring buffer between two ranks
      for (const bool send_first : {true, false}) {
        const Tensor out = make(i32, count, [&](int64_t i) { return double(rank * 10 + i % 7); }),
                     in = make(i32, count, [](int64_t) { return -1; });
        PointToPoint a{true, out, next, "ring"}, b{false, in, before, "ring"};
        g.exchange(send_first ? std::vector{a, b} : std::vector{b, a}).wait();
        expect_equal(in, make(i32, count, [&](int64_t i) { return double(before * 10 + i % 7); }),
                     str("exchange of ", count));
      }
    }
    // A chain: each rank adds one and passes the token on.
    const Tensor token = from({0.f});
    if (rank > 0) g.receive(token, rank - 1, {.tag = "token"});
    token.fill_(token.item() + 1);
    if (rank + 1 < n) g.send(token, rank + 1, {.tag = "token"});
    expect(token.item() == rank + 1, "chain of messages");
    // Messages between two ranks keep their order, batched or single, asynchronous or not.
    if (rank == 0) {
      std::vector<PointToPoint> batch;
      for (int i = 0; i < 5; ++i) batch.push_back({true, from({float(i), 0.f}), 1, str("m", i)});
      g.exchange(batch);
      Work w = g.send(from({5.f}), 1, {.async = true});
      g.send(from({6.f}), 1);
      w.wait();
    } else if (rank == 1) {
      for (int i = 0; i < 5; ++i) {
        const Tensor t = from({-1.f, -1.f});
        g.receive(t, 0, {.tag = str("m", i)}).wait();
        expect(t.to_vector<float>()[0] == float(i), "message ", i, " of a batch");
      }
      const Tensor a = from({0.f}), b = from({0.f});
      g.exchange({{false, a, 0, ""}, {false, b, 0, ""}});
      expect(a.item() == 5 && b.item() == 6, "messages received as a batch");
    }
    g.exchange({});
    g.barrier();
  }

  /// The host of every rank, numbered from 0.
  std::vector<int> hosts() {
    const Tensor all = from(std::vector<int64_t>(size_t(n)), {n});
    g.all_gather(all, from({int64_t(std::hash<std::string>()(g.control().host()))}));
    std::map<int64_t, int> numbers;
    std::vector<int> places;
    for (const int64_t name : all.to_vector<int64_t>())
      places.push_back(numbers.emplace(name, int(numbers.size())).first->second);
    return places;
  }

  // Bytes per rank must match the schedule, and for ring and direct also the formula 2 (n-1)/n S.
  void traffic() {
    const int64_t count = 5040;  // divisible by 1 to 10
    const std::vector<int> places = hosts();
    const Tensor data = given(f32, dist::ReduceOp::sum, rank, count);
    for (const Algorithm a : all_algorithms()) {
      if (!has_schedule(a, Collective::all_reduce)) continue;
      const CollectiveRequest request{.collective = Collective::all_reduce, .ranks = n, .hosts = places};
      const Traffic before = g.traffic();
      g.all_reduce(data, {.algorithm = a});
      const Traffic& after = g.traffic();
      const auto moved = traffic_text(after.sent - before.sent, after.received - before.received,
                                      after.messages - before.messages),
                 scheduled = expected_traffic(a, request, rank, count);
      expect(moved == scheduled, name_of(a), ": ", moved, ", its schedule says ", scheduled);
      expect(after.collectives == before.collectives + 1, "one collective");
      if (a == Algorithm::direct || a == Algorithm::ring) {
        const int64_t bytes = 2 * (n - 1) * count * 4 / n;
        const auto formula = traffic_text(bytes, bytes, 2 * (n - 1));
        expect(moved == formula, name_of(a), ": ", moved, ", the formula says ", formula);
      }
    }
    const Traffic before = g.traffic();
    g.barrier();
    expect(g.traffic().sent == before.sent && g.traffic().received == before.received, "a barrier moves no data");
  }

  void groups() {
    std::vector<int> even;
    for (int r = 0; r < n; r += 2) even.push_back(r);
    const auto evens = g.new_group(even, "even");
    expect((evens != nullptr) == (rank % 2 == 0), "members of a group");
    if (evens) {
      expect(evens->size() == int(even.size()) && evens->rank() == rank / 2 && evens->name() == "even" &&
                 evens->world_rank(evens->rank()) == g.world_rank(rank),
             "places in a group");
      const Tensor data = from({float(rank)});
      evens->all_reduce(data);
      float sum = 0;
      for (const int r : even) sum += float(r);
      expect(data.item() == sum, "all_reduce of a group");
      const auto inner = evens->new_group({0}, "first");
      expect((inner != nullptr) == (rank == 0), "a group of a group");
      if (inner) inner->all_reduce(data);
    }
    // Two halves, each in reversed order of ranks.
    const auto half = g.split(rank < n / 2 ? 0 : 1, -rank, "half");
    const int size = rank < n / 2 ? n / 2 : n - n / 2, last = rank < n / 2 ? n / 2 - 1 : n - 1;
    expect(half && half->size() == size && half->rank() == last - rank &&
               half->name() == (rank < n / 2 ? "half.0" : "half.1"),
           "split");
    const Tensor root = from({float(rank)});
    half->broadcast(root, 0);
    expect(root.item() == last, "broadcast in a half");
    expect(g.split(-1, 0, "nobody") == nullptr, "split without colour");
    // Two groups work at the same time, each on its own thread.
    const Tensor a = from({1.f}), b = from({1.f});
    Work x = g.all_reduce(a, {.async = true}), y = half->all_reduce(b, {.async = true});
    y.wait();
    x.wait();
    expect(a.item() == n && b.item() == size, "two groups at once");
    std::vector<std::pair<std::string, int>> axes{{"pp", n % 2 == 0 ? 2 : 1}, {"dp", n % 2 == 0 ? n / 2 : n}};
    const GroupMesh mesh(g, axes);
    expect(mesh.coordinate("pp") == rank / axes[1].second && mesh.coordinate("dp") == rank % axes[1].second &&
               mesh.size("dp") == axes[1].second,
           "coordinates in a mesh");
    expect(mesh.group("dp").size() == axes[1].second && mesh.group("dp").rank() == mesh.coordinate("dp") &&
               mesh.group("pp").rank() == mesh.coordinate("pp"),
           "groups of a mesh");
    expect(contains(message([&] { mesh.group("tp"); }), "expected one of the axes pp, dp"), "unknown axis");
    expect(contains(message([&] {
                      GroupMesh(g, {{"dp", n + 1}});
                    }),
                    "expected axes whose sizes multiply to"),
           "axes that do not fit");
  }

  // Invalid calls throw before any data moves, and the group stays usable.
  void refusals() {
    const Tensor x = from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}), y = from({1.0, 2.0});
    const auto refused = [&](const char* part, const std::function<void()>& call) {
      const std::string got = message(call);
      expect(contains(got, part), "expected \"", part, "\", got \"", got, "\"");
    };
    refused("[all_reduce] expected input to be contiguous, got shape (3, 2) with strides", [&] {
      g.all_reduce(x.view({2, 3}).t().contiguous(), x.view({2, 3}).t(), {});
    });
    refused("[all_reduce] expected a tensor as output, got an undefined one", [&] { g.all_reduce(Tensor()); });
    refused("[all_reduce] expected output and input of one shape, got (6) and (5)",
            [&] { g.all_reduce(x, x.narrow(0, 0, 5).clone(), {}); });
    refused("[all_reduce] expected output and input of one dtype, got f32 and f64", [&] { g.all_reduce(x, y, {}); });
    refused("[all_reduce] expected output of a real dtype, got c64; send view_as_real()", [&] {
      g.all_reduce(Tensor::from<std::complex<float>>({{1, 2}}));
    });
    refused("[all_reduce] expected input and output that do not overlap",
            [&] { g.all_reduce(x.narrow(0, 0, 4), x.narrow(0, 1, 4), {}); });
    refused("got mean", [&] { g.all_reduce(from({true}), {.op = dist::ReduceOp::mean}); });
    refused(n == 1 ? "[broadcast] expected a root from 0 to 0" : "[broadcast] expected a root from 0 to",
            [&] { g.broadcast(x, n); });
    refused("[reduce] expected a root from 0 to", [&] { g.reduce(x, -1); });
    refused("[all_gather] expected a part of", [&] { g.all_gather(x, from(std::vector<float>(7), {7})); });
    refused("[reduce_scatter] expected output and input of one dtype", [&] { g.reduce_scatter(y, x); });
    refused("[send] expected another rank as peer", [&] { g.send(x, rank); });
    refused("[receive] expected a peer from 0 to", [&] { g.receive(x, n + 3); });
    refused("[new_group] expected each rank once", [&] { g.new_group({0, 0}, "twice"); });
    refused("[new_group] expected at least one rank", [&] { g.new_group({}, "empty"); });
    refused("[new_group] expected ranks from 0 to", [&] { g.new_group({n}, "outside"); });
    const std::vector<int64_t> none(size_t(n), 0);
    refused("[all_to_all] expected parts of input that add up to its 3 rows, got 0",
            [&] { g.all_to_all(from(std::vector<float>{}, {0}), none, from(std::vector<float>(3), {3}), none); });
    refused("numbers",
            [&] { g.all_to_all(from(std::vector<float>{}, {0}), {}, from(std::vector<float>{}, {0}), none); });
    if (n > 1)
      refused("[all_to_all] expected a number of elements divisible by", [&] {
        const Tensor t = from(std::vector<float>(size_t(n + 1)), {n + 1});
        g.all_to_all(t, t);
      });
    if (options.schedules)
      refused("[gather] expected an algorithm that has a schedule", [&] {
        g.gather(x, x.narrow(0, 0, shard_range(6, n, rank).size()).clone(), rank, {.algorithm = Algorithm::one_shot});
      });
  }

  ProcessGroup& g;
  const GroupBody options;
  const int n, rank;
  std::map<std::tuple<DType, dist::ReduceOp, int64_t>, Tensor> sums_;
};

}  // namespace

void check_group(ProcessGroup& group, const GroupBody& options) { Body(group, options).run(); }
