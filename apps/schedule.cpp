// `lockstep schedule` and `lockstep simulate`.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>

#include "apps/commands.h"
#include "apps/pipeline_schedule.h"
#include "apps/step_command.h"
#include "data/json.h"
#include "dist/draw.h"
#include "dist/schedule_check.h"
#include "dist/simulate.h"
#include "parallel/sequence/plan.h"
#include "pipeline/schedule.h"
#include "tensor/check.h"
#include "tensor/suggest.h"
#include "train/cli.h"

namespace apps {

using namespace lockstep::train;
namespace {

using namespace lockstep::dist;
using lockstep::data::Json;

/// What both commands are asked.
struct Asked {
  std::string algorithm, collective, hosts;
  int ranks = 4, root = 0;
  bool mean = false;
};

/// A number followed by one of the units: "100MB", "5us", "25GB/s". No unit: as given.
double parse_quantity(const std::string& option, const std::string& text,
                      const std::vector<std::pair<std::string, double>>& units) {
  size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) { end = 0; }
  const std::string unit = text.substr(std::min(text.find_first_not_of(' ', end), text.size()));
  const auto found = std::find_if(units.begin(), units.end(), [&](const auto& u) { return u.first == unit; });
  if (end == 0 || (!unit.empty() && found == units.end()) || !std::isfinite(value) || value < 0) {
    std::string known;
    for (const auto& [name, factor] : units) known += " " + name;
    lockstep::fail(option + " expected a number of 0 or more and one of" + known + ", such as 25" +
                   units[units.size() / 2].first + ", got \"" + text + "\"");
  }
  return unit.empty() ? value : value * found->second;
}

const std::vector<std::pair<std::string, double>> byte_units = {
    {"B", 1},     {"kB", 1e3},    {"KB", 1e3},       {"MB", 1e6},         {"GB", 1e9},
    {"TB", 1e12}, {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}};
const std::vector<std::pair<std::string, double>> time_units = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
const std::vector<std::pair<std::string, double>> speed_units = {
    {"MB/s", 1e6},          {"GB/s", 1e9},      {"TB/s", 1e12},    {"MiB/s", 1048576.},
    {"GiB/s", 1073741824.}, {"Mbit/s", 1.25e5}, {"Gbit/s", 1.25e8}};

/// "2,2": ranks of each host; "512x8": 512 hosts of 8.
std::vector<int> parse_hosts(const std::string& text, int ranks) {
  std::vector<int> hosts;
  if (text.empty()) return hosts;
  const auto number = [&](const std::string& word) {
    LOCKSTEP_CHECK(!word.empty() && word.size() < 8 && word.find_first_not_of("0123456789") == std::string::npos &&
                       std::stoi(word) > 0,
                   "--hosts expected numbers of ranks such as 4,4 or 2x4 (2 hosts of 4), got \"", text, "\"");
    return std::stoi(word);
  };
  int host = 0;
  const auto add = [&](int count) {
    LOCKSTEP_CHECK(hosts.size() + size_t(count) <= size_t(ranks), "--hosts ", text, " has more than the ", ranks,
                   " ranks of --ranks");
    hosts.insert(hosts.end(), size_t(count), host++);
  };
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size()), times = text.find('x', begin);
    if (times < end) {
      const int count = number(text.substr(begin, times - begin)),
                each = number(text.substr(times + 1, end - times - 1));
      for (int i = 0; i < count; ++i) add(each);
    } else {
      add(number(text.substr(begin, end - begin)));
    }
    begin = end + 1;
  }
  LOCKSTEP_CHECK(int(hosts.size()) == ranks, "--hosts ", text, " has ", hosts.size(), " ranks, --ranks has ", ranks);
  return hosts;
}

bool is_algorithm(const std::string& name) {
  for (const Algorithm a : all_algorithms())
    if (name == name_of(a)) return true;
  return name == name_of(Algorithm::automatic);
}

struct Question {
  Algorithm algorithm;
  Request request;
};

/// "ring", or "ring_all_reduce" for both at once.
Question understand(const Asked& asked) {
  std::string algorithm = asked.algorithm, collective = asked.collective;
  for (int c = 0; c < scheduled_collectives; ++c) {
    const std::string ending = "_" + std::string(name_of(Collective(c)));
    if (!algorithm.ends_with(ending)) continue;
    const std::string rest = algorithm.substr(0, algorithm.size() - ending.size());
    if (!is_algorithm(rest)) continue;  // "x_all_gather" also ends with "_gather"
    LOCKSTEP_CHECK(collective.empty() || collective == name_of(Collective(c)), algorithm, " and --collective ",
                   collective, " name two collectives: leave one out");
    algorithm = rest;
    collective = name_of(Collective(c));
  }
  Question q;
  q.algorithm = parse_algorithm(algorithm);
  LOCKSTEP_CHECK(q.algorithm != Algorithm::automatic, "expected an algorithm: automatic chooses one for every call");
  q.request = {collective.empty() ? Collective::all_reduce : parse_collective(collective), asked.ranks, asked.root,
               asked.mean, parse_hosts(asked.hosts, asked.ranks)};
  return q;
}

void add_question(CLI::App& command, Asked& asked, bool needs_algorithm) {
  const std::string pipelines =
      needs_algorithm
          ? "; of a pipeline: " + lockstep::listed(lockstep::pipeline::names_of_kinds()) + "; ring-attention"
          : "";
  auto* algorithm =
      command.add_option("algorithm", asked.algorithm,
                         lockstep::listed(names_of_algorithms()) + "; also ring_all_reduce and so on" + pipelines);
  command.add_option("--ranks", asked.ranks, "number of ranks")
      ->check(CLI::Range(1, needs_algorithm ? 65536 : 1 << 20));
  if (needs_algorithm) algorithm->required();
  command.add_option(
      "--collective", asked.collective,
      "all_reduce (default), reduce_scatter, all_gather, broadcast, reduce, gather, scatter or all_to_all");
  command
      .add_option("--root", asked.root,
                  "where a broadcast, reduce, gather or scatter begins or ends; where tree and server meet")
      ->capture_default_str();
  command.add_option("--hosts", asked.hosts, "ranks of each host, for hierarchical: 4,4 or 512x8 (512 hosts of 8)");
}

constexpr int max_printed = 128;

void print_schedule(const Asked& asked, const std::string& svg) {
  const auto [algorithm, request] = understand(asked);
  const Check check = check_schedule(algorithm, request);
  if (!svg.empty()) {
    write_output(svg, draw_svg(algorithm, request));
  } else {
    fmt::print("{} {}, {} rank{}\n\n", name_of(algorithm), name_of(request.collective), request.ranks,
               request.ranks == 1 ? "" : "s");
    if (request.ranks <= max_printed) {
      fmt::print(
          "{}\nc -> r: chunk c goes to rank r; +>: it is added there; c[s]: scratch copy s of chunk c; own: the rank "
          "itself\n\n",
          draw_table(algorithm, request));
    } else {
      fmt::print("(the steps of up to {} ranks are printed)\n\n", max_printed);
    }
  }
  const auto [least, most] = std::minmax_element(check.sent.begin(), check.sent.end());
  fmt::print("steps             {}{}\n", check.rounds,
             check.steps > check.rounds ? fmt::format(", and {} within ranks", check.steps - check.rounds) : "");
  fmt::print("chunks            {}\n", check.chunks);
  fmt::print("sent by a rank    {} chunks{}\n", *most,
             *least == *most ? "" : fmt::format(" at most, {} at least", *least));
  if (check.slots > 0) fmt::print("scratch copies    {}\n", check.slots);
  if (is_reduction(request.collective) && check.right()) {
    const std::string order = check.order(0);
    fmt::print("order of chunk 0  {}\n", order.size() > 200 ? order.substr(0, 200) + "..." : order);
    fmt::print("exact             {}\n", check.all_in_tree_order()
                                             ? "yes: added in the order of summation_tree.h, the same bits as `direct`"
                                             : "no: added in an order of its own");
  }
  if (!svg.empty()) fmt::print("picture           {}\n", svg);
  for (const std::string& error : check.errors) fmt::print("wrong             {}\n", error);
  LOCKSTEP_CHECK(check.right(), "the schedule is wrong");
  fmt::print("checked           right: {}\n", is_reduction(request.collective)
                                                  ? "every rank's term is in every sum exactly once"
                                                  : "every chunk is where it belongs");
  std::fflush(stdout);
}

/// The steps of causal ring attention, in both orders of the tokens.
void print_ring_attention(int ranks, const std::string& svg) {
  using namespace lockstep::sequence;
  if (!svg.empty()) {
    write_output(svg, draw_svg(ranks));
    fmt::print("picture           {}\n", svg);
  }
  constexpr int64_t tokens = 1024;
  for (const Order order : {Order::contiguous, Order::zigzag}) {
    double done = 0, lasts = 0;
    std::vector<std::string> rows(static_cast<size_t>(ranks));
    for (int step = 0; step < ranks; ++step) {
      double longest = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const double work = scores(piece(tokens, ranks, rank, step, order, true));
        rows[size_t(rank)] += fmt::format(
            " {:>8}", work == 0 ? std::string(".")
                                : fmt::format("{}:{:.2f}", owner(ranks, rank, step), work / double(tokens * tokens)));
        longest = std::max(longest, work);
        done += work;
      }
      lasts += longest;
    }
    if (svg.empty()) {
      fmt::print("ring attention, causal, {}: a column per step, owner of the keys : part of the block's scores\n\n",
                 name_of(order));
      for (int rank = 0; rank < ranks && ranks <= 16; ++rank) fmt::print("rank {:<4}{}\n", rank, rows[size_t(rank)]);
      fmt::print("\n");
    }
    fmt::print("{:<18}busy {:.2f} %\n", name_of(order), 100 * done / (lasts * ranks));
  }
  std::fflush(stdout);
}

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.2f} us", seconds * 1e6)
         : seconds < 1  ? fmt::format("{:.3f} ms", seconds * 1e3)
                        : fmt::format("{:.3f} s", seconds);
}

struct SimulateOptions {
  Asked asked;
  std::string bytes = "100MB", latency = "5us", bandwidth = "25GB/s", host_latency, host_bandwidth;
  bool json = false;
};

Network network_of(const SimulateOptions& o, bool has_hosts) {
  Network network{
      {parse_quantity("--latency", o.latency, time_units), parse_quantity("--bandwidth", o.bandwidth, speed_units)},
      {}};
  if (o.host_latency.empty() && o.host_bandwidth.empty()) return network;
  LOCKSTEP_CHECK(has_hosts, "--host-latency and --host-bandwidth are for --hosts: say which ranks share one");
  network.within = network.between;
  if (!o.host_latency.empty()) network.within->latency = parse_quantity("--host-latency", o.host_latency, time_units);
  if (!o.host_bandwidth.empty())
    network.within->bandwidth = parse_quantity("--host-bandwidth", o.host_bandwidth, speed_units);
  return network;
}

void print_simulation(const SimulateOptions& o) {
  Asked asked = o.asked;
  const bool all = asked.algorithm.empty();
  if (all) asked.algorithm = "direct";  // has every collective
  const auto [algorithm, request] = understand(asked);
  const double size = parse_quantity("--bytes", o.bytes, byte_units);
  LOCKSTEP_CHECK(size <= 1e15, "--bytes expected 1000TB at most, got ", o.bytes);
  const auto bytes = int64_t(std::llround(size));
  const Network network = network_of(o, !request.hosts.empty());
  const bool one_link = !network.within.has_value();

  Json result(Json::Object{});
  const auto run = [&](Algorithm a, bool is_asked) {
    const auto expected = one_link ? formula(a, request, bytes, network.between) : std::nullopt;
    Json one(Json::Object{});
    one["algorithm"] = std::string(name_of(a));
    one["seconds"] = Json();
    one["formula"] = expected ? Json(expected->text) : Json();
    one["formula_seconds"] = expected ? Json(expected->seconds) : Json();
    for (const char* key : {"steps", "messages", "sent_max", "received_max"}) one[key] = Json();
    if (!is_asked && !can_simulate(a, request, network)) return one;
    const Simulation s = simulate(a, request, bytes, 1, network);
    one["seconds"] = s.seconds;
    one["steps"] = s.steps;
    one["messages"] = s.messages;
    one["sent_max"] = *std::max_element(s.sent.begin(), s.sent.end());
    one["received_max"] = *std::max_element(s.received.begin(), s.received.end());
    return one;
  };
  result["collective"] = std::string(name_of(request.collective));
  result["ranks"] = request.ranks;
  result["bytes"] = bytes;
  result["latency"] = network.between.latency;
  result["bandwidth"] = network.between.bandwidth;
  std::vector<Json> rows;
  for (const Algorithm a : all_algorithms()) {
    const bool is_asked = !all && a == algorithm;
    const bool pointless = a == Algorithm::hierarchical && request.hosts.empty();  // one host: that is `direct`
    if (is_asked || (has_schedule(a, request.collective) && !pointless)) rows.push_back(run(a, is_asked));
  }
  for (const Json& row : rows)
    if (!all && row.at("algorithm").as_string() == name_of(algorithm)) result["asked"] = row;
  result["algorithms"] = Json(Json::Array(rows.begin(), rows.end()));
  if (o.json) {
    fmt::print("{}\n", result.dump());
    std::fflush(stdout);
    return;
  }
  fmt::print("{} of {} bytes over {} rank{}; latency {}, bandwidth {:.4g} GB/s", name_of(request.collective), bytes,
             request.ranks, request.ranks == 1 ? "" : "s", time_text(network.between.latency),
             network.between.bandwidth / 1e9);
  if (!one_link)
    fmt::print("; within a host {}, {:.4g} GB/s", time_text(network.within->latency), network.within->bandwidth / 1e9);
  fmt::print("\n\n");
  if (const Json* row = result.find("asked")) {
    fmt::print("{}\n", row->at("algorithm").as_string());
    fmt::print("  predicted time    {}\n", time_text(row->at("seconds").as_number()));
    if (row->at("formula").is_string())
      fmt::print("  formula           {} = {}\n", row->at("formula").as_string(),
                 time_text(row->at("formula_seconds").as_number()));
    fmt::print("  steps             {}\n", row->at("steps").as_int());
    fmt::print("  messages          {}\n", row->at("messages").as_int());
    fmt::print("  bytes per rank    {} sent, {} received, at most\n\n", row->at("sent_max").as_int(),
               row->at("received_max").as_int());
  }
  fmt::print("{:<18}{:>14}{:>10}{:>22}   {}\n", "algorithm", "time", "steps", "sent by a rank", "formula");
  bool left_out = false;
  for (const Json& row : rows) {
    const bool known = row.at("seconds").is_number();
    left_out |= !known;
    const auto text = [&](const char* key) { return known ? std::to_string(row.at(key).as_int()) : "-"; };
    fmt::print("{:<18}{:>14}{:>10}{:>22}   {}\n", row.at("algorithm").as_string(),
               known ? time_text(row.at("seconds").as_number()) : "-", text("steps"), text("sent_max"),
               row.at("formula").is_string() ? row.at("formula").as_string() : "");
  }
  if (left_out) fmt::print("\n-: too many transfers to look at one by one; give fewer ranks\n");
  std::fflush(stdout);
}

}  // namespace

void add_schedule_command(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("schedule", "print, check and draw the schedule of a collective or of a pipeline");
  auto asked = std::make_shared<Asked>();
  auto pipeline = std::make_shared<PipelineAsked>();
  auto svg = std::make_shared<std::string>();
  add_question(command, *asked, true);
  command.add_flag("--mean", asked->mean, "with the division that makes a sum a mean");
  command.add_option("--svg", *svg, "write a picture to this file instead of printing the steps (up to 16 ranks)");
  add_pipeline_options(command, *pipeline);
  command.callback([=, &command] {
    as_usage([&] {
      const bool is_pipeline = names_pipeline(asked->algorithm, *pipeline);
      for (const char* option : {"--ranks", "--collective", "--root", "--hosts", "--mean"}) {
        LOCKSTEP_CHECK(!is_pipeline || command.get_option(option)->count() == 0, option, " is for collectives, ",
                       asked->algorithm, " is a pipeline: it takes --stages, --micro-batches and --chunks");
      }
      if (asked->algorithm == "ring-attention") {
        for (const char* option : {"--collective", "--root", "--hosts", "--mean"})
          LOCKSTEP_CHECK(command.get_option(option)->count() == 0, option,
                         " is for collectives, ring-attention takes --ranks");
        LOCKSTEP_CHECK(asked->ranks <= 1024, "ring-attention expected --ranks up to 1024, got ", asked->ranks);
        return print_ring_attention(asked->ranks, *svg);
      }
      if (is_pipeline) return print_pipeline(asked->algorithm, *pipeline, *svg);
      LOCKSTEP_CHECK(command.get_option("--ranks")->count() > 0, asked->algorithm, " needs --ranks, such as --ranks 4");
      print_schedule(*asked, *svg);
    });
  });
}

void add_simulate_command(CLI::App& app, const std::vector<std::string>& program) {
  CLI::App& command = *app.add_subcommand(
      "simulate", "predict how long a collective takes on a network, or a training step on many ranks");
  auto o = std::make_shared<SimulateOptions>();
  auto step = std::make_shared<StepAsked>(program);
  add_question(command, o->asked, false);
  command.add_option("--bytes", o->bytes, "size of the data: 64KiB, 100MB (all_to_all: at each rank)")
      ->capture_default_str();
  command.add_option("--latency", o->latency, "of a message: 5us")->capture_default_str();
  command.add_option("--bandwidth", o->bandwidth, "of a rank, each way: 25GB/s, 100Gbit/s")->capture_default_str();
  command.add_option("--host-latency", o->host_latency, "between ranks of a host (--hosts); default: as --latency");
  command.add_option("--host-bandwidth", o->host_bandwidth,
                     "between ranks of a host (--hosts); default: as --bandwidth");
  command.add_flag("--json", o->json, "one line, a JSON object");
  add_step_options(command, *step);
  command.callback([=, &command] {
    as_usage([&] {
      if (!names_step(*step)) {
        LOCKSTEP_CHECK(command.get_option("--ranks")->count() > 0,
                       "simulate needs --ranks for a collective, such as --ranks 4096, or for a training step --plan, "
                       "and --model or "
                       "-- PROGRAM");
        return print_simulation(*o);
      }
      for (const char* option : {"algorithm", "--ranks", "--collective", "--root", "--hosts", "--bytes"}) {
        LOCKSTEP_CHECK(
            command.get_option(option)->count() == 0, option,
            " is for a collective; the ranks of a step follow from --plan, those of a host are --ranks-per-host");
      }
      refuse_beside_program(command, {"--vocab", "--context"}, step->model);
      step->network_given = command.get_option("--latency")->count() + command.get_option("--bandwidth")->count() > 0;
      print_step(*step, network_of(*o, true), o->json);
    });
  });
}

}  // namespace apps
