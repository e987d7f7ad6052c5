// Assigns the bytes of a checkpoint to the ranks that write them. See layout.h.
#include "checkpoint/layout.h"

#include <algorithm>
#include <utility>

#include "dist/shard.h"

namespace lockstep::checkpoints {
namespace {

using data::Json;

struct Owner {
  size_t offer;
  size_t piece;
};
struct Owned {
  std::vector<Owner> owners;
  std::vector<int> ranks;  // ranks whose offers contain these elements
};
struct Ranges {
  const Piece* first = nullptr;
  int first_rank = 0;
  std::map<std::pair<int64_t, int64_t>, Owned> all;
};

std::string describe(const Piece& held) { return str(name_of(held.dtype), held.shape); }

/// Divides `total` bytes, which all `ranks` ranks hold, equally among these ranks. `range`: elements that lie in these
/// bytes, the first at byte `offset`; `element`: size of an element. Returns the part of `range` that each rank gets.
std::vector<dist::Range> cut(dist::Range range, int64_t offset, int64_t total, int64_t element, size_t ranks) {
  std::vector<dist::Range> parts(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    const dist::Range bytes = dist::shard_range(total, int64_t(ranks), int64_t(i));
    const auto index = [&](int64_t at) {
      return range.begin + std::clamp<int64_t>((at - offset + element - 1) / element, 0, range.size());
    };
    parts[i] = {bytes.begin <= offset ? range.begin : index(bytes.begin),
                bytes.end <= offset ? range.begin : index(bytes.end)};
  }
  return parts;
}

}  // namespace

Piece full(const std::string& name, const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.defined(), "[checkpoint] expected a tensor for \"", name, "\", got none; create it");
  return {name, tensor.shape(), tensor.dtype(), 0, tensor.numel(), tensor};
}

Piece part_of(const std::string& name, const Shape& shape, int64_t begin, const Tensor& part) {
  LOCKSTEP_CHECK(part.defined(), "[checkpoint] expected a tensor for \"", name, "\", got an undefined one; create it");
  return {name, shape, part.dtype(), begin, begin + part.numel(), part};
}

std::string file_of_rank(int rank) {
  const std::string digits = std::to_string(rank);
  return "rank-" + std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits + ".safetensors";
}

std::string check_piece(const Piece& p) {
  const std::string where = str("piece \"", p.name, "\": ");
  try {
    check_name(p.name, where);
    check_shape("checkpoint", p.shape);
    const int64_t numel = numel_of(p.shape);
    LOCKSTEP_CHECK(p.begin >= 0 && p.begin <= p.end && p.end <= numel, where, "expected a range of the ", numel,
                   " elements of ", p.shape, ", got [", p.begin, ", ", p.end, ")");
    LOCKSTEP_CHECK(p.tensor.defined(), where, "expected a tensor, got an undefined one; create it");
    LOCKSTEP_CHECK(!p.tensor.storage()->is_empty(), where,
                   "expected a tensor with memory, got one whose storage was emptied; "
                   "gather the parameter first (Zero::gathered)");
    LOCKSTEP_CHECK(p.tensor.dtype() == p.dtype, where, "expected a tensor of ", name_of(p.dtype), ", got ",
                   name_of(p.tensor.dtype()), "; convert it with .to(dtype)");
    LOCKSTEP_CHECK(p.tensor.numel() == p.end - p.begin, where, "expected a tensor of the ", p.end - p.begin,
                   " elements [", p.begin, ", ", p.end, "), got ", p.tensor.numel(), "; give just these");
    LOCKSTEP_CHECK(p.tensor.is_contiguous(), where, "expected a contiguous tensor, got shape ", p.tensor.shape(),
                   " with strides ", p.tensor.strides(), "; use .contiguous()");
  } catch (const Error& error) { return error.what(); }
  return "";
}

Offer offer_of(const Contents& contents) {
  Offer offer{{.aliases = contents.aliases, .numbers = contents.numbers}, ""};
  for (const Piece& p : contents.pieces) {
    const std::string error = check_piece(p);
    if (offer.error.empty()) offer.error = error;
    if (error.empty()) offer.pieces.push_back({p.name, p.shape, p.dtype, p.begin, p.end, {}});
  }
  return offer;
}

std::string to_text(const Offer& offer) {
  Json::Array pieces;
  for (const auto& p : offer.pieces)
    pieces.push_back(Json::Array{p.name, std::string(name_of(p.dtype)), Json::Array(p.shape.begin(), p.shape.end()),
                                 p.begin, p.end});
  Json::Object aliases;
  for (const auto& [name, target] : offer.aliases) aliases.emplace_back(name, target);
  return Json(Json::Object{{"error", offer.error},
                           {"pieces", std::move(pieces)},
                           {"aliases", std::move(aliases)},
                           {"numbers", to_json(offer.numbers)}})
      .dump();
}

Offer parse_offer(std::string_view text, const std::string& origin) {
  const Json json = data::parse_json(text, origin, {.bytes = int64_t(1) << 30, .depth = 8});
  Offer offer;
  offer.error = json.at("error").as_string();
  for (const Json& item : json.at("pieces").as_array()) {
    const auto& fields = item.as_array();
    Piece held{fields.at(0).as_string(), {}, parse_dtype(fields.at(1).as_string()), fields.at(3).as_int(),
               fields.at(4).as_int(),    {}};
    for (const Json& size : fields.at(2).as_array()) held.shape.push_back(size.as_int());
    offer.pieces.push_back(std::move(held));
  }
  for (const auto& [name, target] : json.at("aliases").as_object()) offer.aliases[name] = target.as_string();
  offer.numbers = parse_numbers(json.at("numbers"), origin);
  return offer;
}

Assignment make_layout(const std::vector<Offer>& offers, const std::vector<size_t>& of_rank) {
  std::vector<std::vector<int>> ranks(offers.size());  // ranks that made each offer
  for (size_t r = 0; r < of_rank.size(); ++r) ranks[of_rank[r]].push_back(int(r));
  const auto rank_of = [&](size_t offer) { return ranks[offer].front(); };
  for (size_t o = 0; o < offers.size(); ++o)
    LOCKSTEP_CHECK(offers[o].error.empty(), "rank ", rank_of(o), ": ", offers[o].error);

  // 1. Collect all ranges of all tensors, and the ranks that hold each range.
  Assignment layout;
  std::map<std::string, Ranges> all;
  std::map<std::string, int> number_of, alias_of;  // the first rank that gave each number and alias
  for (size_t o = 0; o < offers.size(); ++o) {
    for (size_t i = 0; i < offers[o].pieces.size(); ++i) {
      const Piece& held = offers[o].pieces[i];
      Ranges& ranges = all[held.name];
      if (!ranges.first) ranges.first = &held, ranges.first_rank = rank_of(o);
      LOCKSTEP_CHECK(held.dtype == ranges.first->dtype && held.shape == ranges.first->shape, held.name, ": rank ",
                     ranges.first_rank, " has a part of ", describe(*ranges.first), ", rank ", rank_of(o), " of ",
                     describe(held), "; give other tensors other names");
      if (held.begin == held.end && numel_of(held.shape) > 0) continue;
      auto& owners = ranges.all[{held.begin, held.end}].owners;
      LOCKSTEP_CHECK(owners.empty() || owners.back().offer != o, held.name, ": rank ", rank_of(o), " gives elements [",
                     held.begin, ", ", held.end, ") twice; give each range once, and tied tensors as aliases");
      owners.push_back({o, i});
    }
    for (const auto& [name, value] : offers[o].numbers) {
      const auto [at, is_new] = layout.manifest.numbers.emplace(name, value);
      if (is_new) number_of[name] = rank_of(o);
      LOCKSTEP_CHECK(finite(value) == finite(at->second), "number \"", name, "\" is ", text_of(at->second), " at rank ",
                     number_of[name], " and ", text_of(value), " at rank ", rank_of(o), "; give the same on all ranks");
    }
    for (const auto& [name, target] : offers[o].aliases) {
      const auto [at, is_new] = layout.manifest.aliases.emplace(name, target);
      if (is_new) alias_of[name] = rank_of(o);
      LOCKSTEP_CHECK(at->second == target, "alias \"", name, "\" is for \"", at->second, "\" at rank ", alias_of[name],
                     " and for \"", target, "\" at rank ", rank_of(o), "; give the same on all ranks");
    }
  }
  for (const auto& [name, target] : layout.manifest.aliases)
    LOCKSTEP_CHECK(all.count(target) && !all.count(name),
                   "expected an alias of a tensor that is saved, which is not saved itself, got \"", name, "\" for \"",
                   target, "\"; save the tensor too, or drop the alias");

  // 2. Check that the ranges cover each tensor. Two ranges must be identical or must not overlap.
  std::map<std::vector<int>, int64_t> shared, done;  // bytes that exactly these ranks hold; bytes divided so far
  for (auto& [name, ranges] : all) {
    int64_t reached = 0;
    const int64_t numel = numel_of(ranges.first->shape);
    const std::vector<Owner>* before = nullptr;
    for (auto& [range, owned] : ranges.all) {
      auto& [owners, held_by] = owned;
      LOCKSTEP_CHECK(range.first <= reached, name, " ", describe(*ranges.first), ": no rank has elements [", reached,
                     ", ", range.first, "); give pieces that cover the whole tensor");
      LOCKSTEP_CHECK(range.first == reached, name, " ", describe(*ranges.first), ": the ranges of ranks ",
                     rank_of((before ? *before : owners)[0].offer), " and ", rank_of(owners[0].offer),
                     " overlap at element ", range.first, "; give ranges that are apart, or the same");
      reached = range.second;
      before = &owners;
      for (const Owner& owner : owners)
        held_by.insert(held_by.end(), ranks[owner.offer].begin(), ranks[owner.offer].end());
      std::sort(held_by.begin(), held_by.end());
      shared[held_by] += (range.second - range.first) * size_of(ranges.first->dtype);
    }
    LOCKSTEP_CHECK(reached == numel && (numel > 0 || !ranges.all.empty()), name, " ", describe(*ranges.first),
                   ": no rank has elements [", reached, ", ", numel, "); give pieces that cover the whole tensor");
  }

  // 3. Join all ranges that the same ranks hold into one list of bytes, and divide that equally among these ranks.
  layout.writes.resize(of_rank.size());
  for (const auto& [name, ranges] : all) {
    LogicalTensor& tensor = layout.manifest.tensors[name] = {ranges.first->dtype, ranges.first->shape, {}};
    for (const auto& [range, owned] : ranges.all) {
      const auto& owners = owned.owners;
      const std::vector<int>& held_by = owned.ranks;
      const int64_t element = size_of(tensor.dtype);
      const dist::Range full{range.first, range.second};
      std::vector<dist::Range> parts(1, full);
      if (full.size() > 0) parts = cut(full, done[held_by], shared[held_by], element, held_by.size());
      done[held_by] += full.size() * element;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].size() == 0 && full.size() > 0) continue;
        const int rank = held_by[i];
        const auto owner = std::find_if(owners.begin(), owners.end(),
                                        [&](const Owner& o) { return o.offer == of_rank[size_t(rank)]; });
        // Consecutive ranges on one rank form one part: a rank that passes all pieces of a tensor writes it as a whole.
        auto& writes = layout.writes[size_t(rank)];
        if (tensor.parts.empty() || tensor.parts.back().file != file_of_rank(rank)) {
          writes.push_back({name, tensor.parts.size(), {}});
          tensor.parts.push_back({file_of_rank(rank), "", parts[i].begin, parts[i].end, 0});
        }
        tensor.parts.back().end = parts[i].end;
        writes.back().chunks.push_back({owner->piece, parts[i].begin, parts[i].end});
      }
    }
    for (StoredPiece& part : tensor.parts) part.name = part_name(name, part.begin, part.end, tensor.numel());
  }
  return layout;
}

}  // namespace lockstep::checkpoints
