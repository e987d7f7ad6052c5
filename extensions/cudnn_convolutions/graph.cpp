// cuDNN's backend API has one kind of object, the descriptor, whose attributes are set by name. A computation goes
// through these:
//
//   tensors ----+--> operations --> graph --> heuristics --> engine configurations --> execution plan --> execute
//   parameters -+                                                    variant pack: tensors' addresses --/
//
// Heuristics propose engine configurations, the fastest first. Each belongs to an engine, whose numerical notes
// describe its rounding.
#include "extensions/cudnn_convolutions/graph.h"

#include <algorithm>
#include <vector>

namespace lockstep::cuda {

// --- descriptors ---

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  void* made = nullptr;
  note("cudnnBackendCreateDescriptor", cudnnBackendCreateDescriptor(type, &made));
  handle_.reset(made);
}

void Descriptor::note(const char* call, cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS || !ok()) return;
  status_ = status;
  char details[512] = {};
  cudnnGetLastErrorString(details, sizeof details);
  why_ = str(call, ": ", cudnnGetErrorString(status), *details ? str(" (", details, ")") : std::string());
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                            const void* values) {
  if (ok()) note("cudnnBackendSetAttribute", cudnnBackendSetAttribute(get(), name, type, count, values));
  return *this;
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& other) {
  if (ok() && !other.ok()) status_ = other.status_, why_ = other.why_;
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.get());
}

Descriptor& Descriptor::finalize() {
  if (ok()) note("cudnnBackendFinalize", cudnnBackendFinalize(get()));
  return *this;
}

int64_t Descriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                        void* values) {
  int64_t found = 0;
  if (ok()) note("cudnnBackendGetAttribute", cudnnBackendGetAttribute(get(), name, type, count, &found, values));
  return ok() ? (values ? std::min(found, count) : found) : 0;
}

Descriptor& Descriptor::execute(cudnnHandle_t handle, const Descriptor& plan) {
  if (ok()) note("cudnnBackendExecute", cudnnBackendExecute(handle, plan.get(), get()));
  return *this;
}

// --- engines ---

namespace {

/// The configurations that the heuristics propose, the best first; empty if they fail.
std::vector<Descriptor> configurations(const Descriptor& graph, const PlanTarget& target, cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target.description)
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, target.description);
  heuristics.finalize();
  int64_t count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<Descriptor> found;
  std::vector<cudnnBackendDescriptor_t> handles;  // cuDNN fills in these
  for (int64_t i = 0; i < count; ++i) handles.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, handles.data());
  found.resize(size_t(count));
  return found;
}

/// True if the configuration's engine is acceptable: it sums products in at least f32 and is deterministic. With
/// `exact`, it must also multiply f32 in f32. Writes the engine's number to `number`.
bool accepts(Descriptor& configuration, bool exact, int64_t& number) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.get();
  configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  engine.get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &number);
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  const int64_t count =
      engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
  // Rejects engines that are nondeterministic, sum in less than f32, use Fourier or Winograd transforms, or have a note
  // that is unknown here.
  return engine.ok() && std::all_of(notes, notes + count, [&](cudnnBackendNumericalNote_t note) {
           const bool rounds =
               note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
           return note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP || (rounds && !exact);
         });
}

/// Returns the first proposed plan that cuDNN can build. accepts() must allow its engine, and its workspace may have at
/// most `max_workspace` bytes.
EnginePlan choose_plan(const Descriptor& graph, const PlanTarget& target, bool exact, int64_t max_workspace) {
  if (!graph.ok()) return {.refusal = graph.why()};
  int proposed = 0, unwanted = 0;
  std::string last;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (Descriptor& configuration : configurations(graph, target, mode)) {
      ++proposed;
      EnginePlan plan;
      if (!accepts(configuration, exact, plan.engine)) {
        ++unwanted;
        continue;
      }
      plan.plan = Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      if (target.handle) plan.plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
      if (target.description)
        plan.plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, target.description);
      plan.plan.finalize().get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &plan.workspace);
      if (!plan.plan.ok()) last = str("; engine ", plan.engine, ": ", plan.plan.why());
      else if (plan.workspace > max_workspace)
        last = str("; engine ", plan.engine, " needs ", plan.workspace, " bytes of workspace");
      else return plan;
    }
  }
  return {.refusal = str("cuDNN proposed ", proposed, " engines; ", unwanted,
                         " were rejected for precision or nondeterminism", last)};
}

// --- convolutions ---

/// The ids that identify the tensors in the variant pack.
enum Id : int64_t { id_x = 'x', id_w = 'w', id_y = 'y' };

Descriptor tensor(Id id, DType dtype, const ConvProblem::Operand& operand) {
  const cudnnDataType_t type = dtype == f32 ? CUDNN_DATA_FLOAT : dtype == f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
  Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, int64_t(id))
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, operand.size.data())
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, operand.stride.data());
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, operand.alignment).finalize();
  return made;
}

/// The type of cuDNN's operation for a direction, and the names of its attributes.
struct Names {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
};
constexpr Names names[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/// The graph of a convolution. The number of groups is not passed: cuDNN infers it from the channels of x and w.
Descriptor convolution_graph(const ConvProblem& p, const PlanTarget& target) {
  Descriptor convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t(2))
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  convolution.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  convolution.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, p.padding.data())
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, p.padding.data());
  convolution.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, p.stride.data());
  convolution.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, p.dilation.data()).finalize();

  const Descriptor x = tensor(id_x, p.dtype, p.x), w = tensor(id_w, p.dtype, p.w), y = tensor(id_y, p.dtype, p.y);
  const Names& name = names[int(p.direction)];
  Descriptor operation(name.operation);
  operation.set(name.x, x).set(name.w, w).set(name.y, y).set(name.convolution, convolution);
  operation.set(name.alpha, CUDNN_TYPE_FLOAT, 1.f).set(name.beta, CUDNN_TYPE_FLOAT, 0.f).finalize();

  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  graph.finalize();
  return graph;
}

}  // namespace

int64_t workspace_limit(const ConvProblem& problem) {
  int64_t numbers = 0;
  for (const ConvProblem::Operand* operand : {&problem.x, &problem.w, &problem.y})
    numbers += operand->size[0] * operand->size[1] * operand->size[2] * operand->size[3];
  return (int64_t(64) << 20) + 2 * numbers * size_of(problem.dtype);
}

EnginePlan plan_convolution(const ConvProblem& problem, const PlanTarget& target, int64_t max_workspace) {
  return choose_plan(convolution_graph(problem, target), target, problem.dtype == f32 && !problem.tf32, max_workspace);
}

Descriptor execute(cudnnHandle_t handle, const EnginePlan& plan, const void* x, const void* w, const void* y,
                   void* workspace) {
  constexpr int64_t ids[] = {id_x, id_w, id_y};
  const void* const pointers[] = {x, w, y};
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids)
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace).finalize().execute(handle, plan.plan);
  return pack;
}

}  // namespace lockstep::cuda
