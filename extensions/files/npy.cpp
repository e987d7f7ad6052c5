// Reads and writes .npy and .npz files: see npy.h. A .npy file consists of "\x93NUMPY", the version (2 bytes), the
// header's length (2 bytes in version 1, else 4), the header, {'descr': '<f4', 'fortran_order': False,
// 'shape': (2, 3), }, and the elements. A .npz file is a zip file of these.
#include "extensions/files/npy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <set>

#include "data/excerpt.h"
#include "data/file_calls.h"
#include "data/little_endian.h"
#include "extensions/files/zip.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

constexpr std::string_view npy_magic{"\x93NUMPY", 6};
// A plain array's header has about 118 bytes; only structured dtypes have long ones.
constexpr int64_t npy_max_header = 1 << 20;
constexpr bool big_host = std::endian::native == std::endian::big;
constexpr std::pair<std::string_view, DType> npy_dtypes[] = {{"f4", f32}, {"f8", f64},  {"f2", f16}, {"i8", i64},
                                                             {"i4", i32}, {"i1", i8},   {"u1", u8},  {"b1", boolean},
                                                             {"c8", c64}, {"c16", c128}};

/// Describes an unsupported NumPy dtype, for Errors.
std::string npy_name(std::string_view type) {
  if (type == "O") return "Python objects, which would run code when read";
  int size = 0;
  for (const char c : type.substr(std::min<size_t>(type.size(), 1), 6))
    size = c >= '0' && c <= '9' && size >= 0 ? 10 * size + (c - '0') : -1;
  const std::string bits = std::to_string(8 * size);
  switch (type.empty() || size < 0 ? ' ' : type[0]) {
    case 'c': return "complex" + bits + " (save it as complex64 or complex128)";
    case 'f': return "float" + bits + " (save it as float64)";
    case 'i': return "int" + bits + " (save it as int32 or int64)";
    case 'u': return "uint" + bits + " (save it as int32 or int64)";
    case 'S':
    case 'U': return "text";
    case 'V': return "bytes without a type (for bfloat16: save it as float32)";
    default: return type.starts_with("M8") || type.starts_with("m8") ? "times (save them as int64)" : "an unknown type";
  }
}

struct NpyHeader {
  DType dtype = f32;
  bool big = false, fortran = false;
  Shape shape;
};

/// Parses the header: a Python dict with three known keys.
class NpyHeaderReader {
 public:
  NpyHeaderReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  NpyHeader run() {
    int present = 0;
    expect('{');
    while (!take('}')) {
      const std::string key = quoted();
      const int field = key == "descr" ? 1 : key == "fortran_order" ? 2 : key == "shape" ? 4 : 0;
      if (!field) refuse("the key descr, fortran_order or shape", str("'", excerpt(key), "'"));
      if (present & field) refuse("each key once", str("'", key, "' twice"));
      present |= field;
      expect(':');
      if (field == 1) read_dtype();
      else if (field == 2) read_order();
      else read_shape();
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    if (present != 7) refuse("the keys descr, fortran_order and shape", "fewer");
    skip();
    if (at_ < text_.size()) refuse("the end of the header", found());
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse(const std::string& wanted, const std::string& got) const {
    fail(str(where_, ": expected ", wanted, " at byte ", at_, " of the header, got ", got,
             "; save it again as an array of numbers"));
  }
  std::string found() const {
    if (at_ >= text_.size()) return "its end";
    const char c = text_[at_];
    return c >= ' ' && c <= '~' ? str("'", c, "'") : str("byte ", int(uint8_t(c)));
  }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool take(std::string_view word) {
    skip();
    if (text_.substr(at_, word.size()) != word) return false;
    return at_ += word.size(), true;
  }
  bool take(char c) { return take({&c, 1}); }
  void expect(char c) {
    if (!take(c)) refuse(str("'", c, "'"), found());
  }
  std::string quoted() {
    skip();
    const char quote = take('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const size_t end = text_.find(quote, at_);
    if (end == text_.npos) refuse("a closing quote", "none");
    const std::string value(text_.substr(at_, end - at_));
    at_ = end + 1;
    return value;
  }
  void read_dtype() {
    const char* wanted = "bool, complex64, complex128, float16, float32, float64, int8, int32, int64 or uint8";
    if (take('[')) refuse(wanted, "a structure with fields (save each field as an array)");
    const std::string descr = quoted();
    std::string_view type = descr;
    const char order = descr.empty() ? ' ' : descr[0];
    if (order == '<' || order == '>' || order == '=' || order == '|') type.remove_prefix(1);
    header_.big = order == '>' || (order != '<' && big_host);
    for (const auto& [name, dtype] : npy_dtypes)
      if (type == name) {
        header_.dtype = dtype;
        return;
      }
    refuse(wanted, str("'", excerpt(descr), "': ", npy_name(type)));
  }
  void read_order() {
    header_.fortran = take("True");
    if (!header_.fortran && !take("False")) refuse("True or False", found());
  }
  void read_shape() {
    expect('(');
    while (!take(')')) {
      skip();
      int64_t size = 0;
      const size_t start = at_;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
        if (__builtin_mul_overflow(size, 10, &size) || __builtin_add_overflow(size, text_[at_] - '0', &size))
          refuse("a size that fits in 63 bits", "more");
      if (at_ == start) refuse("a size from 0 up", found());
      take('L');  // Python 2 wrote sizes as 3L
      if (header_.shape.rank() == Dims::max_rank) refuse(str("at most ", Dims::max_rank, " dims"), "more");
      header_.shape.push_back(size);
      if (!take(',')) {
        expect(')');
        if (header_.shape.rank() == 1) refuse("a tuple", "a number in brackets");
        break;
      }
    }
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  NpyHeader header_;
};

/// Reads an array whose header and elements take `size` bytes. `read` copies the next `count` bytes, which must exist.
/// Errors begin with `where`.
Tensor read_array(int64_t size, const std::function<void(std::byte* out, int64_t count)>& read,
                  const std::string& where) {
  std::byte start[12];
  LOCKSTEP_CHECK(size >= 10, where, ": expected a header, got ", size,
                 " bytes (is the file truncated?); copy or download it again");
  read(start, 8);
  LOCKSTEP_CHECK(std::memcmp(start, npy_magic.data(), npy_magic.size()) == 0, where,
                 ": expected a file that starts with \\x93NUMPY, got ",
                 start[0] == std::byte{'P'} ? "a zip file: .npz? Use read_npz" : "another; save it with numpy.save()");
  const int major = int(start[6]), minor = int(start[7]), width = major == 1 ? 2 : 4;
  LOCKSTEP_CHECK(major >= 1 && major <= 3 && minor == 0, where, ": expected version 1.0, 2.0 or 3.0, got ", major, ".",
                 minor, "; save it again with numpy.save()");
  LOCKSTEP_CHECK(size >= 8 + width, where, ": expected a header, got ", size,
                 " bytes (is the file truncated?); copy or download it again");
  read(start + 8, width);
  const int64_t length = int64_t(little(Bytes(start), 8, width)), begin = 8 + width + length;
  LOCKSTEP_CHECK(begin <= size, where, ": expected a header of ", length, " bytes, got ", size - 8 - width,
                 " (is the file truncated?); copy or download it again");
  LOCKSTEP_CHECK(length <= npy_max_header, where, ": expected a header of at most ", npy_max_header, " bytes, got ",
                 length, "; save it again with numpy.save()");
  std::string text(size_t(length), '\0');
  read(reinterpret_cast<std::byte*>(text.data()), length);
  const NpyHeader header = NpyHeaderReader(text, where).run();

  const int64_t item = size_of(header.dtype);
  int64_t bytes = item;
  bool fits = true;
  for (const int64_t n : header.shape) fits = !__builtin_mul_overflow(bytes, n, &bytes) && fits;
  LOCKSTEP_CHECK(fits, where, ": shape ", header.shape, " has more elements than 63 bits can count; save it again");
  LOCKSTEP_CHECK(bytes == size - begin, where, ": expected ", bytes, " bytes for ", header.dtype, header.shape,
                 ", got ", size - begin,
                 bytes > size - begin ? " (is the file truncated?); copy or download it again" : "; save it again");
  Shape shape = header.shape;
  if (header.fortran) std::reverse(shape.begin(), shape.end());
  Tensor out = empty(shape, {.dtype = header.dtype, .device = cpu});
  if (bytes > 0) {
    auto* data = static_cast<std::byte*>(out.raw_data());
    read(data, bytes);
    const int64_t number = size_of(real_dtype(header.dtype));
    if (header.big != big_host && number > 1)
      for (auto* at = data; at < data + bytes; at += number) std::reverse(at, at + number);
    if (header.dtype == boolean)
      for (int64_t i = 0; i < bytes; ++i)
        LOCKSTEP_CHECK(uint8_t(data[i]) <= 1, where, ": expected bools of 0 or 1, got ", int(data[i]), " at ", i,
                       "; save it again");
  }
  if (!header.fortran) return out;
  Dims reversed;
  for (int d = shape.rank(); d-- > 0;) reversed.push_back(d);
  return out.permute(reversed).contiguous();
}

/// The header, as numpy.save() writes it, of a file with this tensor in row-major order. npy_elements() come after it.
std::string npy_start(const Tensor& tensor, const std::string& where) {
  LOCKSTEP_CHECK(
      tensor.defined() && tensor.device().is_cpu(), where, ": expected a tensor on the cpu, got one ",
      tensor.defined() ? str("on ", tensor.device(), "; move it with .to(cpu)") : "undefined; create it first");
  const auto* known = std::find_if(std::begin(npy_dtypes), std::end(npy_dtypes),
                                   [&](auto& row) { return row.second == tensor.dtype(); });
  LOCKSTEP_CHECK(known != std::end(npy_dtypes), where, ": expected a dtype that NumPy has, got ", tensor.dtype(),
                 "; convert it with to(f32)");
  const Shape& shape = tensor.shape();
  std::string sizes;
  for (int d = 0; d < shape.rank(); ++d) sizes += (d ? ", " : "") + std::to_string(shape[d]);
  const char order = size_of(tensor.dtype()) == 1 ? '|' : big_host ? '>' : '<';
  std::string header = str("{'descr': '", order, known->first, "', 'fortran_order': False, 'shape': (", sizes,
                           shape.rank() == 1 ? "," : "", "), }");
  // NumPy leaves room for the first size to grow to 21 digits, and aligns the elements to 64 bytes.
  if (shape.rank() > 0) header.append(21 - std::to_string(shape[0]).size(), ' ');
  header.append(64 - (10 + header.size() + 1) % 64, ' ') += '\n';
  std::string start = std::string(npy_magic) + std::string{1, 0};
  append_little(start, header.size(), 2);
  return start + header;
}

/// The bytes of a contiguous tensor.
Bytes npy_elements(const Tensor& contiguous) {
  if (contiguous.numel() == 0) return {};
  return {static_cast<const std::byte*>(contiguous.raw_data()),
          size_t(contiguous.numel() * size_of(contiguous.dtype()))};
}

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

Tensor read_member(Bytes file, const ZipMember& member, const std::string& origin) {
  const std::string where = str(origin, ": member \"", excerpt(member.name), "\"");
  ZipReader reader(file, member, where);
  Tensor tensor = read_array(
      member.bytes, [&](std::byte* out, int64_t count) { reader.read(out, count); }, where);
  reader.finish();
  return tensor;
}

std::vector<ZipMember> npz_members(Bytes file, const std::string& where) {
  std::vector<ZipMember> members = zip_members(file, where);
  std::set<std::string_view> names;
  for (const ZipMember& member : members) {
    LOCKSTEP_CHECK(member.name.ends_with(".npy"), where, ": expected members named NAME.npy, got \"",
                   excerpt(member.name), "\"; save it with numpy.savez()");
    LOCKSTEP_CHECK(names.insert(member.name).second, where, ": member \"", excerpt(member.name),
                   "\" appears twice; write the file again");
  }
  return members;
}

std::string without_ending(const std::string& name) { return name.substr(0, name.size() - 4); }

}  // namespace

Tensor parse_npy(Bytes file, const std::string& origin) {
  Bytes rest = file;
  const auto read = [&](std::byte* out, int64_t count) {
    if (count) std::memcpy(out, rest.data(), size_t(count));
    rest = rest.subspan(size_t(count));
  };
  return read_array(int64_t(file.size()), read, "[npy] " + origin);
}

Tensor read_npy(const std::string& path) { return parse_file(path, parse_npy); }

void save_npy(const std::string& path, const Tensor& tensor) {
  const std::string start = npy_start(tensor, "[save_npy] " + path);
  const Tensor contiguous = tensor.contiguous();
  write_atomically(path, {as_bytes(start), npy_elements(contiguous)});
}

NamedTensors parse_npz(Bytes file, const std::string& origin) {
  const std::string where = "[npz] " + origin;
  NamedTensors tensors;
  for (const ZipMember& member : npz_members(file, where))
    tensors.emplace_back(without_ending(member.name), read_member(file, member, where));
  return tensors;
}

NamedTensors read_npz(const std::string& path) { return parse_file(path, parse_npz); }

std::vector<std::string> npz_names(const std::string& path) {
  const auto file = MappedFile::open(path);
  std::vector<std::string> names;
  for (const ZipMember& member : npz_members(file->bytes(), "[npz] " + path))
    names.push_back(without_ending(member.name));
  return names;
}

Tensor read_npz(const std::string& path, const std::string& name) {
  const auto file = MappedFile::open(path);
  const std::string where = "[npz] " + path;
  std::string known;
  for (const ZipMember& member : npz_members(file->bytes(), where)) {
    if (member.name != name + ".npy") {
      known += (known.empty() ? "" : ", ") + excerpt(without_ending(member.name));
      continue;
    }
    Tensor tensor = read_member(file->bytes(), member, where);
    file->check();
    return tensor;
  }
  fail(str(where, ": no array \"", name, "\" among: ", known.size() > 300 ? known.substr(0, 300) + ", ..." : known,
           "; name one of them"));
}

void save_npz(const std::string& path, const NamedTensors& tensors, bool compress) {
  const std::string where = "[save_npz] " + path;
  std::set<std::string> names;
  std::vector<std::string> starts;
  for (const auto& [name, tensor] : tensors) {
    LOCKSTEP_CHECK(names.insert(name).second, where, ": the name \"", name,
                   "\" appears twice; give each array its own");
    LOCKSTEP_CHECK(name.size() <= 65531, where, ": expected names of at most 65531 bytes, got ", name.size(),
                   "; shorten it");
    starts.push_back(npy_start(tensor, str(where, ": \"", name, "\"")));
  }
  write_atomically(path, [&](NewFile& file) {
    ZipWriter writer(file, compress);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor contiguous = tensors[i].second.contiguous();
      writer.add(tensors[i].first + ".npy", {as_bytes(starts[i]), npy_elements(contiguous)});
    }
    writer.finish();
  });
}

}  // namespace lockstep::data
