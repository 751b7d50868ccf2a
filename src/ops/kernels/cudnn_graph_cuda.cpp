#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/gpu.h"
#include "ops/kernels/cudnn_graph.h"

namespace ballast::ops::cuda {
namespace {

std::string last_error() {
  std::array<char, 512> why{};
  cudnn().last_error(why.data(), why.size());
  std::string text = why.data();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

CudnnObject engine_of(const CudnnObject& configuration) {
  CudnnObject engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  std::int64_t count = 0;
  check_cudnn(cudnn().get_attribute(configuration.raw(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
              "asking for an engine");
  return engine;
}

// Newer headers call this attribute deprecated; older libraries know no other.
cudnnBackendAttributeName_t plan_handle() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return CUDNN_ATTR_EXECUTION_PLAN_HANDLE;
#pragma GCC diagnostic pop
}

}  // namespace

CudnnObject::CudnnObject(cudnnBackendDescriptorType_t type) {
  check_cudnn(cudnn().create_descriptor(type, &raw_), "making an object");
}
CudnnObject::~CudnnObject() {
  if (raw_ != nullptr) cudnn().destroy_descriptor(raw_);
}
CudnnObject::CudnnObject(CudnnObject&& o) noexcept : raw_(std::exchange(o.raw_, nullptr)) {}
CudnnObject& CudnnObject::operator=(CudnnObject&& o) noexcept {
  std::swap(raw_, o.raw_);
  return *this;
}

void CudnnObject::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                      std::int64_t count, const void* values) {
  const cudnnStatus_t status = cudnn().set_attribute(raw_, name, type, count, values);
  if (status == CUDNN_STATUS_SUCCESS) return;
  check_cudnn(status, fmt::format("setting attribute {}", static_cast<int>(name)).c_str());
}
void CudnnObject::set(cudnnBackendAttributeName_t name, std::int64_t value) {
  set(name, CUDNN_TYPE_INT64, 1, &value);
}
void CudnnObject::set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values) {
  set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
}
void CudnnObject::set(cudnnBackendAttributeName_t name, bool value) {
  set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
}
void CudnnObject::set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}
void CudnnObject::set(cudnnBackendAttributeName_t name, cudnnHandle_t value) {
  set(name, CUDNN_TYPE_HANDLE, 1, &value);
}
void CudnnObject::set(cudnnBackendAttributeName_t name, const CudnnObject& value) {
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.raw_);
}

void CudnnObject::finalize(const char* doing) { check_cudnn(try_finalize(), doing); }
cudnnStatus_t CudnnObject::try_finalize() { return cudnn().finalize(raw_); }

std::int64_t CudnnObject::integer(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0, count = 0;
  check_cudnn(cudnn().get_attribute(raw_, name, CUDNN_TYPE_INT64, 1, &count, &value),
              "reading an attribute");
  return value;
}

CudnnHandle::CudnnHandle(GpuQueue& queue) {
  check_cudnn(cudnn().create(&raw_), "starting");
  const auto stream = static_cast<cudaStream_t>(queue.stream().native);
  check_cudnn(cudnn().set_stream(raw_, stream), "choosing a stream");
  check_cudnn(cudnn().create(&maker_), "starting");
}
CudnnHandle::~CudnnHandle() {
  for (const cudnnHandle_t h : {raw_, maker_}) {
    if (h != nullptr) cudnn().destroy(h);
  }
}

CudnnTarget::CudnnTarget(std::string_view properties)
    : properties_(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) {
  properties_.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                  static_cast<std::int64_t>(properties.size()), properties.data());
  properties_.finalize("reading a GPU's properties");
}

CudnnGraph::Tensor CudnnGraph::add(std::int64_t id, cudnnDataType_t type,
                                   std::span<const std::int64_t> dims,
                                   std::span<const std::int64_t> strides, std::int64_t alignment,
                                   cudnnBackendAttributeName_t kind) {
  CudnnObject& t = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
  t.set(CUDNN_ATTR_TENSOR_STRIDES, strides);
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
  if (kind != CUDNN_ATTR_TENSOR_UNIQUE_ID) t.set(kind, true);
  t.finalize("describing a tensor");
  return {tensors_.size() - 1};
}
CudnnGraph::Tensor CudnnGraph::in_memory(std::int64_t id, const Layout& layout,
                                         std::int64_t alignment) {
  return add(id, layout.type, layout.dims, layout.strides, alignment, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}
CudnnGraph::Tensor CudnnGraph::between(const Layout& layout) {
  return add(next_id_++, layout.type, layout.dims, layout.strides, 16,
             CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}
CudnnGraph::Tensor CudnnGraph::in_memory(std::int64_t id, const AnyLayout& layout) {
  return add(id, layout.type, layout.dims, layout.strides, 16, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}
CudnnGraph::Tensor CudnnGraph::between(const AnyLayout& layout) {
  return add(next_id_++, layout.type, layout.dims, layout.strides, 16,
             CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}
CudnnGraph::Tensor CudnnGraph::scalar(std::int64_t id) {
  constexpr Dims kOne = {1, 1, 1, 1};
  return add(id, CUDNN_DATA_FLOAT, kOne, kOne, 16, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}

void CudnnGraph::matmul(Tensor a, Tensor b, Tensor c) {
  CudnnObject& how = settings_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finalize("describing a product");
  CudnnObject& op = operations_.emplace_back(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, object(a));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, object(b));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, object(c));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  op.finalize("adding a product");
}

CudnnObject& CudnnGraph::add_pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y) {
  CudnnObject& how = settings_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  how.finalize("describing a pointwise operation");
  CudnnObject& op = operations_.emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, object(x));
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, object(y));
  return op;
}
void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y) {
  add_pointwise(mode, x, y).finalize("adding a pointwise operation");
}
void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y) {
  CudnnObject& op = add_pointwise(mode, x, y);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, object(b));
  op.finalize("adding a pointwise operation");
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t reduction, Tensor x, Tensor y) {
  CudnnObject& how = settings_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &reduction);
  how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finalize("describing a reduction");
  CudnnObject& op = operations_.emplace_back(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, object(x));
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, object(y));
  op.finalize("adding a reduction");
}

void CudnnGraph::reshape(Tensor x, Tensor y) {
  CudnnObject& op = operations_.emplace_back(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, object(x));
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, object(y));
  op.finalize("adding a reshape");
}

void CudnnGraph::convolution(Tensor x, Tensor w, Tensor y, std::span<const std::int64_t> before,
                             std::span<const std::int64_t> behind,
                             std::span<const std::int64_t> strides) {
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const std::vector<std::int64_t> ones(strides.size(), 1);
  const float one = 1, zero = 0;
  CudnnObject& how = settings_.emplace_back(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  how.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, static_cast<std::int64_t>(strides.size()));
  how.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, before);
  how.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, behind);
  how.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, strides);
  how.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, ones);
  how.finalize("describing a convolution");
  CudnnObject& op =
      operations_.emplace_back(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, object(x));
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, object(w));
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, object(y));
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, how);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
  op.finalize("adding a convolution");
}

void CudnnGraph::close(const CudnnTarget& target) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnObject& o : operations_) raw.push_back(o.raw());
  graph_ = CudnnObject(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             static_cast<std::int64_t>(raw.size()), raw.data());
  if (target.handle() != nullptr) {
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle());
  }
  graph_.finalize("closing a graph");
}

std::vector<CudnnObject> CudnnGraph::configurations(const CudnnTarget& target) {
  close(target);
  CudnnObject heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (target.handle() == nullptr) {
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.properties());
  }
  heuristics.finalize("asking for configurations");
  const auto ask = [&](std::int64_t room, cudnnBackendDescriptor_t* into) {
    std::int64_t count = 0;
    check_cudnn(cudnn().get_attribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, room, &count, into),
                "listing configurations");
    return to_size(count);
  };
  std::vector<CudnnObject> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::size_t n = ask(0, nullptr); n > 0; --n) {
    raw.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).raw());
  }
  if (!found.empty()) found.resize(ask(static_cast<std::int64_t>(raw.size()), raw.data()));
  return found;
}

CudnnObject CudnnGraph::configuration(const CudnnTarget& target, const CudnnChoice& choice,
                                      std::string_view what) {
  close(target);
  CudnnObject engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph_);
  engine.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, choice.engine);
  if (target.handle() == nullptr) engine.set(CUDNN_ATTR_ENGINE_DEVICEPROP, target.properties());
  const std::string doing = fmt::format("asking engine {} for {}", choice.engine, what);
  engine.finalize(doing.c_str());
  std::vector<CudnnObject> knobs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const auto& [type, value] : choice.knobs) {
    CudnnObject& knob = knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    knob.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    knob.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
    knob.finalize(doing.c_str());
    raw.push_back(knob.raw());
  }
  CudnnObject found(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  found.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!raw.empty()) {
    found.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(raw),
              raw.data());
  }
  found.finalize(doing.c_str());
  return found;
}

std::int64_t workspace_of(const CudnnObject& configuration) {
  return configuration.integer(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE);
}

void prefer(std::vector<CudnnObject>& configurations, std::int64_t workspace) {
  std::ranges::stable_partition(configurations,
                                [&](const CudnnObject& c) { return workspace_of(c) <= workspace; });
}

bool is_deterministic(const CudnnObject& configuration) {
  const CudnnObject engine = engine_of(configuration);
  std::int64_t count = 0;
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  check_cudnn(
      cudnn().get_attribute(engine.raw(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                            CUDNN_TYPE_NUMERICAL_NOTE, std::ssize(notes), &count, notes.data()),
      "asking for an engine's notes");
  const auto end = notes.begin() + count;
  return std::find(notes.begin(), end, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == end;
}

CudnnChoice choice_of(const CudnnObject& configuration) {
  CudnnChoice choice = {.engine = engine_of(configuration).integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)};
  // Asked how many there are, cuDNN says none.
  std::vector<CudnnObject> knobs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int n = 0; n < CUDNN_KNOB_TYPE_COUNTS; ++n) {
    raw.push_back(knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR).raw());
  }
  std::int64_t found = 0;
  check_cudnn(
      cudnn().get_attribute(configuration.raw(), CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                            CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(raw), &found, raw.data()),
      "listing an engine's settings");
  knobs.resize(to_size(found));
  for (const CudnnObject& knob : knobs) {
    cudnnBackendKnobType_t type{};
    std::int64_t count = 0;
    check_cudnn(cudnn().get_attribute(knob.raw(), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                      CUDNN_TYPE_KNOB_TYPE, 1, &count, &type),
                "reading an engine's setting");
    choice.knobs.emplace_back(type, knob.integer(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  return choice;
}

CudnnChoice without_workspace(CudnnChoice choice) {
  for (auto& [knob, value] : choice.knobs) {
    if (knob == CUDNN_KNOB_TYPE_WORKSPACE) value = 1;
  }
  return choice;
}

CudnnPack::CudnnPack(std::span<const std::int64_t> ids, std::span<void* const> places,
                     void* workspace)
    : object_(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
  object_.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  object_.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
              static_cast<std::int64_t>(places.size()), places.data());
  object_.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  object_.finalize("naming addresses");
}

CudnnPlan::CudnnPlan(CudnnGraph graph, cudnnHandle_t handle, std::int64_t workspace,
                     std::string_view what)
    : graph_(std::move(graph)) {
  choose(graph_.configurations(CudnnTarget(handle)), handle, workspace, what);
}

CudnnPlan::CudnnPlan(CudnnGraph graph, cudnnHandle_t handle, std::int64_t workspace,
                     std::string_view what, std::int64_t preferred)
    : graph_(std::move(graph)) {
  std::vector<CudnnObject> all = graph_.configurations(CudnnTarget(handle));
  std::erase_if(all, [](const CudnnObject& c) { return !is_deterministic(c); });
  prefer(all, preferred);
  choose(std::move(all), handle, workspace, what);
}

void CudnnPlan::choose(std::vector<CudnnObject> configurations, cudnnHandle_t handle,
                       std::int64_t workspace, std::string_view what) {
  std::string why = "no configuration is offered";
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (CudnnObject& configuration : configurations) {
    CudnnObject plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(plan_handle(), handle);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) {
      why = last_error();
      continue;
    }
    const std::int64_t needed = plan.integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    least = std::min(least, needed);
    if (needed > workspace) continue;
    configuration_ = std::move(configuration);
    plan_ = std::move(plan);
    return;
  }
  check(least == std::numeric_limits<std::int64_t>::max(),
        "{}: cuDNN {} needs a workspace of {} bytes, {} bytes are planned", what,
        cudnn().get_version(), least, workspace);
  fail(ErrorCode::device,
       fmt::format("cuDNN {} cannot compute {}: {}", cudnn().get_version(), what, why),
       {{"ballast doctor", "checks the driver, the card and cuDNN's parts"}});
}

CudnnPlan::CudnnPlan(CudnnGraph graph, cudnnHandle_t handle, std::string_view what,
                     const CudnnChoice& choice)
    : graph_(std::move(graph)),
      configuration_(graph_.configuration(CudnnTarget(handle), choice, what)),
      plan_(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
  plan_.set(plan_handle(), handle);
  plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration_);
  plan_.finalize(fmt::format("setting up engine {} for {}", choice.engine, what).c_str());
}

void CudnnPlan::run(cudnnHandle_t handle, const CudnnPack& pack) const {
  check_cudnn(cudnn().execute(handle, plan_.raw(), pack.raw()), "starting a plan");
}

}  // namespace ballast::ops::cuda
