// `lockstep sparse`: prints and draws the blocks that a configuration's sparse attention attends to.
#include <fmt/core.h>

#include <algorithm>

#include "apps/commands.h"
#include "base/check.h"
#include "extensions/figures/svg.h"
#include "extensions/sparse_attention/section.h"
#include "tensor/block_layout.h"
#include "train/cli.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;

namespace {

constexpr int64_t max_blocks = 128, max_rendered = 512, max_counted = 8192;  // blocks per row

struct SparseAsked {
  std::string source, svg;
  int64_t tokens = 512, heads = 1, layer = 0;
  bool bidirectional = false;
};

/// The blocks of keys (columns) that one block of queries (`row`) attends to in one head.
std::vector<int64_t> columns_of(const BlockLayout& layout, int64_t head, int64_t row) {
  const int32_t* const ends = layout.row_start.data<int32_t>() + head * (layout.blocks + 1) + row;
  const int32_t* const columns = layout.columns.data<int32_t>();
  return {columns + ends[0], columns + ends[1]};
}

std::string heads_text(const BlockLayout& layout, int64_t heads) {
  if (heads == 1) return "one head";
  return layout.heads == 1 ? fmt::format("the same for {} heads", heads) : fmt::format("{} heads", heads);
}

std::string draw_layout(const BlockLayout& layout, bool causal, const std::string& title) {
  LOCKSTEP_CHECK(layout.blocks > 0 && layout.blocks <= max_rendered, "lockstep sparse: expected 1 to ", max_rendered,
                 " blocks for a picture, got ", layout.blocks,
                 layout.blocks > 0 ? "; take fewer --tokens" : "; take more");
  const int64_t panels = std::min<int64_t>(layout.heads, 8);
  const double side = std::clamp(320. / double(layout.blocks), 2., 20.), panel = side * double(layout.blocks);
  const double top = panels > 1 ? 56 : 36, apart = panel + 24, page = std::max(24 + apart * double(panels), 480.);
  std::string out = svg::begin(page, top + panel + 40);
  const auto box = [&](double x, double y, double w, double h, const char* color) {
    out += svg::rect(x, y, w, h, svg::attribute("fill", color));
  };
  using svg::ink, svg::soft;
  const char *past = "#f1f3f5", *attended = "#80b1e8", *half = "#3d74b5";
  out += svg::text(16, 20, title, 14, ink);
  const double gap = side > 6 ? 1 : 0.25;
  for (int64_t head = 0; head < panels; ++head) {
    const double left = 16 + apart * double(head);
    if (panels > 1) out += svg::text(left, 44, fmt::format("head {}", head), 12, soft);
    for (int64_t row = 0; row < layout.blocks; ++row) {
      const double y = top + side * double(row);
      box(left, y, side * double(causal ? row + 1 : layout.blocks) - gap, side - gap, past);
      for (const int64_t c : columns_of(layout, head, row)) {
        const double x = left + side * double(c);
        if (!causal || c != row) box(x, y, side - gap, side - gap, attended);
        else
          out += fmt::format("<path d=\"M{:.5g} {:.5g}v{:.5g}h{:.5g}z\" fill=\"{}\"/>\n", x, y, side - gap, side - gap,
                             half);
      }
    }
  }
  double x = 16;
  const auto key = [&](const char* color, const char* words, double advance) {
    box(x, top + panel + 14, 13, 13, color);
    out += svg::text(x + 18, top + panel + 25, words, 12, soft);
    x += advance;
  };
  key(attended, "attended", 86);
  if (causal) key(half, "by token, up to itself", 152);
  key(past, causal ? "skipped, of the past" : "skipped", 0);
  if (layout.heads > panels) out += svg::text(16 + apart * double(panels), top + 12, "...", 12, soft);
  return out + svg::end;
}

void run_sparse(const SparseAsked& o) {
  const data::Json json = engine::read_config_json(o.source);
  engine::Config asked;
  const data::Json* const block = json.find("sparse_attention");
  asked.section<engine::SparseAttentionConfig>().value = block ? *block : json;
  if (const data::Json* seed = block ? json.find("seed") : nullptr) asked.seed = seed->as_int("seed");
  auto config = engine::sparse_attention(asked);
  LOCKSTEP_CHECK(config, "lockstep sparse: expected sparse_attention in ", o.source,
                 ", got none; write the block, such as {\"mode\": \"fixed\"}");
  config->layer = o.layer;
  if (!config->unidirectional) config->unidirectional = !o.bidirectional;
  LOCKSTEP_CHECK(!o.bidirectional || !*config->unidirectional,
                 "lockstep sparse: --bidirectional contradicts the configuration, which says unidirectional; leave one "
                 "of them out");
  LOCKSTEP_CHECK(o.tokens / config->block < max_counted, "lockstep sparse: expected at most ", max_counted,
                 " blocks, got ", o.tokens, " tokens in blocks of ", config->block, "; take fewer --tokens");
  const bool causal = *config->unidirectional;
  const BlockLayout layout = nn::make_layout(*config, o.heads, o.tokens);
  const int64_t n = layout.blocks, all = layout.heads * (causal ? n * (n + 1) / 2 : n * n);
  const std::string title =
      fmt::format("{}, blocks of {}, {}: {} tokens, {}", nn::name_of(config->mode), config->block,
                  causal ? "unidirectional" : "bidirectional", o.tokens, heads_text(layout, o.heads));
  fmt::print("{}\n\n", title);
  int64_t least = n, greatest = 0;
  for (int64_t head = 0; head < layout.heads; ++head) {
    if (layout.heads > 1 && o.svg.empty() && n <= max_blocks) fmt::print("head {}\n", head);
    for (int64_t row = 0; row < n; ++row) {
      const auto columns = columns_of(layout, head, row);
      least = std::min(least, int64_t(columns.size())), greatest = std::max(greatest, int64_t(columns.size()));
      if (!o.svg.empty() || n > max_blocks) continue;
      std::string line(size_t(causal ? row + 1 : n), '.');
      for (const int64_t c : columns) line[size_t(c)] = '#';
      fmt::print("{}\n", line);
    }
    if (o.svg.empty() && n <= max_blocks) fmt::print("\n");
  }
  if (o.svg.empty() && n > max_blocks) fmt::print("(too many blocks to print; --svg draws {})\n\n", max_rendered);
  const double pairs = attended_pairs(layout, o.tokens, o.tokens, causal), tokens = double(o.tokens);
  const double dense = causal ? tokens * (tokens + 1) / 2 : tokens * tokens;
  fmt::print("blocks            {} of {}{}\n", layout.columns.numel(), all, causal ? ", up to the diagonal" : "");
  fmt::print("in a row          {} to {} of them\n", least, greatest);
  fmt::print("pairs of tokens   {:.6g} a head, {:.2f} % of dense attention's\n", pairs,
             100 * pairs / std::max(dense, 1.));
  if (!o.svg.empty()) {
    write_output(o.svg, draw_layout(layout, causal, title));
    fmt::print("picture           {}\n", o.svg);
  }
  std::fflush(stdout);
}

}  // namespace

void add_sparse_attention_commands(CLI::App& app, Shared&) {
  const auto o = std::make_shared<SparseAsked>();
  CLI::App& command = *app.add_subcommand("sparse", "prints and draws the blocks that sparse attention attends to");
  const OptionGroup add(command);
  add("config", o->source, "configuration file with sparse_attention, or that block as text")->required();
  add("--tokens", o->tokens, "tokens of a sequence", integer(1, 1 << 24));
  add("--heads", o->heads, "heads of a layer", integer(1, 1 << 12));
  add("--layer", o->layer, "number of the layer in the model, for random blocks", integer(0, 1 << 20))
      ->capture_default_str();
  add("--bidirectional", o->bidirectional, "for a model that is not causal, if the configuration does not say");
  add("--svg", o->svg, "draw them into this file instead of printing rows");
  command.callback([o] { as_usage([&] { run_sparse(*o); }); });
}

}  // namespace apps
