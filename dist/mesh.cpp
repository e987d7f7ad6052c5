// mesh.cpp: the world as a grid with named axes, with one group per axis through each rank.
#include "dist/process_group.h"

namespace lockstep::dist {
namespace {

size_t axis_of(const std::vector<std::pair<std::string, int>>& axes, const std::string& name) {
  std::string known;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].first == name) return i;
    known += (i ? ", " : "") + axes[i].first;
  }
  fail(str("[mesh] expected one of the axes ", known, ", got \"", name, "\""));
}

}  // namespace

GroupMesh::GroupMesh(ProcessGroup& world, std::vector<std::pair<std::string, int>> axes) : axes_(std::move(axes)) {
  LOCKSTEP_CHECK(!axes_.empty(), "[mesh] expected at least one axis, got none");
  int64_t product = 1;
  std::string text;
  for (size_t i = 0; i < axes_.size(); ++i) {
    const auto& [name, size] = axes_[i];
    LOCKSTEP_CHECK(!name.empty() && size >= 1, "[mesh] expected axes with a name and a size of at least 1, got \"",
                   name, "\" of size ", size);
    for (size_t j = 0; j < i; ++j)
      LOCKSTEP_CHECK(axes_[j].first != name, "[mesh] expected every axis once, got ", name, " twice");
    product = std::min<int64_t>(product * size, INT32_MAX);
    text += str(i ? " x " : "", name, " ", size);
  }
  LOCKSTEP_CHECK(product == world.size(), "[mesh] expected axes whose sizes multiply to the ", world.size(),
                 " ranks of group ", world.name(), ", got ", text, " = ", product, "; change a size");

  int rest = world.rank();
  coordinates_.resize(axes_.size());
  for (size_t i = axes_.size(); i-- > 0; rest /= axes_[i].second) coordinates_[i] = rest % axes_[i].second;
  int stride = world.size();
  std::shared_ptr<ProcessGroup> single;  // shared by all axes of size 1
  for (size_t i = 0; i < axes_.size(); ++i) {
    stride /= axes_[i].second;
    if (axes_[i].second == 1) {
      if (!single) single = world.split(world.rank(), 0, "alone");
      groups_.push_back(single);
      continue;
    }
    // Ranks that differ only in coordinate i form a group. They all pass the same color to split(): the rank number of
    // the member whose coordinate i is 0.
    groups_.push_back(world.split(world.rank() - coordinates_[i] * stride, coordinates_[i], axes_[i].first));
  }
}

ProcessGroup& GroupMesh::group(const std::string& axis) const { return *groups_[axis_of(axes_, axis)]; }
int GroupMesh::coordinate(const std::string& axis) const { return coordinates_[axis_of(axes_, axis)]; }
int GroupMesh::size(const std::string& axis) const { return axes_[axis_of(axes_, axis)].second; }

}  // namespace lockstep::dist
