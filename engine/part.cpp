#include "engine/part.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "data/json.h"
#include "parallel/agreement.h"
#include "tensor/ops.h"

namespace lockstep::engine {

using checkpoints::Piece;
using data::Json;

// --- slices ---

std::vector<Piece> of_whole(const Piece& piece, const Sliced& sliced) {
  const Shape& whole = sliced.whole;
  int64_t inner = 1, mine = 0;
  for (int d = int(sliced.dim) + 1; d < whole.rank(); ++d) inner *= whole[d];
  for (const dist::Range& r : sliced.ranges) mine += r.size();
  std::vector<Piece> all;
  if (mine * inner == 0) return all;
  const Tensor flat = piece.tensor.view({piece.tensor.numel()});
  for (int64_t outer = piece.begin / (mine * inner); outer * mine * inner < piece.end; ++outer) {
    int64_t here = outer * mine * inner;  // of the slice
    for (const dist::Range& r : sliced.ranges) {
      const int64_t begin = std::max(here, piece.begin), end = std::min(here + r.size() * inner, piece.end);
      if (begin < end) {
        const int64_t at = (outer * whole[int(sliced.dim)] + r.begin) * inner + begin - here;
        if (!all.empty() && all.back().end == at) {  // goes on where the last one ended
          all.back().end += end - begin;
          all.back().tensor = flat.narrow(0, end - piece.begin - (all.back().end - all.back().begin), all.back().end - all.back().begin);
        } else {
          all.push_back({.name = piece.name, .shape = whole, .dtype = piece.dtype, .begin = at, .end = at + end - begin, .tensor = flat.narrow(0, begin - piece.begin, end - begin)});
        }
      }
      here += r.size() * inner;
    }
  }
  return all;
}

std::string Part::parameter_of(const std::string& piece) {
  const size_t dot = piece.find('.');
  return piece.starts_with("optimizer.") ? piece.substr(piece.find('.', dot + 1) + 1) : piece.substr(dot + 1);
}

bool Part::leads(const std::string& piece) const {
  if (is_empty) return false;
  const auto found = places.find(parameter_of(piece));
  return found == places.end() || found->second.leads;
}

std::vector<Piece> Part::whole_pieces(const Piece& piece) const {
  const auto found = sliced.find(parameter_of(piece.name));
  return found == sliced.end() ? std::vector<Piece>{piece} : of_whole(piece, found->second);
}

// --- a step ---

void Part::agree(zero::StepReport& report) {
  dist::ProcessGroup& model = mesh->model();
  if (model.size() == 1) return;
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  const Tensor first = Tensor::from({report.skipped ? int64_t(model.rank()) : none}, {1});
  model.all_reduce(first, {.op = dist::ReduceOp::min, .tag = "first part with a gradient that is not finite"});
  const int64_t part = first.item<int64_t>();
  if (part == none) return;
  const Tensor rank = Tensor::from({int64_t(report.rank)}, {1});
  model.broadcast(rank, int(part), {.tag = "rank of the gradient that is not finite"});
  report.skipped = true;
  report.rank = int(rank.item<int64_t>());
  report.first_nonfinite = parallel::broadcast_text(report.first_nonfinite, int(part), model);
}

/// Slices are added up, tied parameters count once, and all are added in the order of the model: without slices the bits are those of one process.
double Part::norm(const std::vector<std::pair<std::string, double>>& squares_) {
  std::vector<std::pair<std::string, double>> squares = is_empty ? std::vector<std::pair<std::string, double>>{} : squares_;
  if (mesh->plan().tp > 1 && !squares.empty()) {
    std::vector<double> cut;
    for (const auto& [name, sum] : squares) cut.push_back(sliced.count(name) ? sum : 0);
    const Tensor sums = Tensor::from(cut, {int64_t(cut.size())});
    mesh->tp().all_reduce(sums, {.tag = "squares of slices"});
    for (size_t i = 0; i < squares.size(); ++i) if (sliced.count(squares[i].first)) squares[i].second = sums.data<double>()[i];
  }
  std::map<std::pair<int, int>, double> norms;
  for (const auto& [name, sum] : squares) {
    const Place& place = places.at(name);
    if (place.leads) norms[{place.layer, place.place}] = place.is_double ? std::sqrt(sum) : double(float(std::sqrt(sum)));
  }
  if (dist::ProcessGroup& pp = mesh->pp(); pp.size() > 1) {
    const Tensor most = Tensor::from({int64_t(norms.size())}, {1});
    pp.all_reduce(most, {.op = dist::ReduceOp::max, .tag = "count of norms"});
    const int64_t length = 3 * most.item<int64_t>();
    std::vector<double> mine(size_t(length), -1);
    size_t at = 0;
    for (const auto& [where, value] : norms) mine[at++] = where.first, mine[at++] = where.second, mine[at++] = value;
    const Tensor all = empty({length * pp.size()}, {.dtype = f64});
    pp.all_gather(all, Tensor::from(mine, {length}), {.tag = "norms"});
    const std::vector<double> words = all.to_vector<double>();
    for (size_t i = 0; i + 2 < words.size(); i += 3) if (words[i] >= 0) norms[{int(words[i]), int(words[i + 1])}] = words[i + 2];
  }
  double total = 0;
  for (const auto& [where, value] : norms) total += value * value;
  return std::sqrt(total);
}

// --- whole tensors at one rank ---

namespace {

Tensor bytes_of(const std::string& text) {
  const Tensor tensor = empty({int64_t(text.size())}, {.dtype = u8});
  std::memcpy(tensor.raw_data(), text.data(), text.size());
  return tensor;
}

}  // namespace

WholeTensors gather_pieces(const std::vector<Piece>& mine, const checkpoints::Numbers& numbers, dist::ProcessGroup& group) {
  // A list of what comes, then the bytes of all pieces, one after another.
  WholeTensors whole;
  const auto put = [&](const std::string& name, DType dtype, const Shape& shape, int64_t begin, int64_t end, const std::byte* from) {
    auto [place, is_new] = whole.tensors.try_emplace(name);
    if (is_new) place->second = zeros(shape, {.dtype = dtype});
    LOCKSTEP_CHECK(place->second.dtype() == dtype && place->second.shape() == shape, "[gather] ", name, " is ", dtype, " ", shape, " at one rank and ", place->second.dtype(), " ", place->second.shape(), " at another");
    std::memcpy(static_cast<std::byte*>(place->second.raw_data()) + begin * size_of(dtype), from, size_t(end - begin) * size_t(size_of(dtype)));
  };
  if (group.rank() == 0) {
    whole.numbers = numbers;
    for (const Piece& p : mine) put(p.name, p.dtype, p.shape, p.begin, p.end, static_cast<const std::byte*>(p.tensor.to(cpu).contiguous().raw_data()));
    for (int rank = 1; rank < group.size(); ++rank) {
      const Tensor sizes = empty({2}, {.dtype = i64});
      group.receive(sizes, rank, {.tag = "sizes of the state"});
      const Tensor list = empty({sizes.data<int64_t>()[0]}, {.dtype = u8}), payload = empty({sizes.data<int64_t>()[1]}, {.dtype = u8});
      group.receive(list, rank, {.tag = "list of the state"});
      group.receive(payload, rank, {.tag = "state"});
      const Json what = data::parse_json(std::string_view(static_cast<const char*>(list.raw_data()), size_t(list.numel())), "state of a rank", {.bytes = int64_t(1) << 32});
      const auto* at = static_cast<const std::byte*>(payload.raw_data());
      for (const Json& one : what.at("pieces").as_array()) {
        const Json::Array& words = one.as_array();
        const DType dtype = DType(words[1].as_int());
        std::vector<int64_t> dims;
        for (const Json& d : words[4].as_array()) dims.push_back(d.as_int());
        const int64_t begin = words[2].as_int(), end = words[3].as_int();
        put(words[0].as_string(), dtype, Shape(dims.data(), dims.data() + dims.size()), begin, end, at);
        at += (end - begin) * size_of(dtype);
      }
      for (const auto& [key, value] : what.at("numbers").as_object()) {
        if (value.is_string()) whole.numbers[key] = value.as_string();
        else if (value.is_int()) whole.numbers[key] = value.as_int();
        else whole.numbers[key] = value.as_number();
      }
    }
    return whole;
  }
  Json::Array pieces;
  int64_t bytes = 0;
  for (const Piece& p : mine) {
    Json::Array dims;
    for (int d = 0; d < p.shape.rank(); ++d) dims.push_back(p.shape[d]);
    pieces.push_back(Json::Array{p.name, int64_t(p.dtype), p.begin, p.end, std::move(dims)});
    bytes += (p.end - p.begin) * size_of(p.dtype);
  }
  Json::Object named;
  for (const auto& [key, value] : numbers) named.emplace_back(key, std::visit([](const auto& v) { return Json(v); }, value));
  const Tensor list = bytes_of(Json(Json::Object{{"pieces", std::move(pieces)}, {"numbers", std::move(named)}}).dump()), payload = empty({bytes}, {.dtype = u8});
  auto* at = static_cast<std::byte*>(payload.raw_data());
  for (const Piece& p : mine) {
    const size_t n = size_t(p.end - p.begin) * size_t(size_of(p.dtype));
    std::memcpy(at, p.tensor.to(cpu).contiguous().raw_data(), n);
    at += n;
  }
  group.send(Tensor::from({list.numel(), payload.numel()}, {2}), 0, {.tag = "sizes of the state"});
  group.send(list, 0, {.tag = "list of the state"});
  group.send(payload, 0, {.tag = "state"});
  return whole;
}

}  // namespace lockstep::engine
