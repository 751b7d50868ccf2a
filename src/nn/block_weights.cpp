#include "nn/block_weights.h"

#include <algorithm>
#include <cstring>

#include "core/bytes.h"
#include "core/error.h"
#include "ops/copy.h"
#include "plan/bindings.h"

namespace ballast {
namespace {

constexpr std::uint64_t kSlotAlignment = 256;

bool is_matrix(const Shape& s) { return s.rank() >= 2 && s[0] > 1; }

// What a matrix of so many elements takes where it streams or waits to; scales that are made on the
// way stand behind it.
template <class Form>
std::uint64_t data_bytes(const Form& f, std::int64_t elements) {
  return round_up(static_cast<std::uint64_t>(elements) * size_of(f.dtype), kSlotAlignment);
}
template <class Form>
std::uint64_t matrix_bytes(const Form& f, std::int64_t elements) {
  const std::uint64_t data = data_bytes(f, elements);
  if (!f.quantised) return data;
  return data + round_up(static_cast<std::uint64_t>(f.scale_shape.elements()) * 4, kSlotAlignment);
}

// Where a group's tensor stands in the host copy of what streams; of the number of tensors: how
// large that is. It has no row padding: forward passes that stream from there wait for the link.
template <class Forms>
std::uint64_t host_offset(const Forms& forms, const WeightGroup& group, std::size_t tensor) {
  std::uint64_t at = 0;
  for (std::size_t t = 0; t < tensor; ++t) {
    if (forms[t].streams) at += matrix_bytes(forms[t], group.tensors[t].data.shape.elements());
  }
  return at;
}

void upload(ProgramBuilder& pb, Buffer from, Buffer to) {
  pb.emit("upload_weights",
          {.reads = {from},
           .writes = {to},
           .lane = Lane::upload,
           .cost = {.work = Work::transfer,
                    .bytes = 2 * static_cast<double>(pb.set().bytes(from).count)}},
          [from, to](const Bindings& b) {
            const ConstTensorView source = b.in(from);
            const TensorView target = b.out(to);
            if (target.device != Device::cpu || !target.contiguous()) {
              return ops::copy({.from = source, .to = target}, b.stream());
            }
            std::memcpy(target.data, source.data, source.bytes());
          });
}

}  // namespace

std::int64_t parameter_count(std::span<const WeightGroup> groups) {
  std::int64_t count = 0;
  for (const WeightGroup& g : groups) {
    for (const StoredTensor& t : g.tensors) count += t.data.shape.elements();
  }
  return count;
}

Bytes min_bytes(std::span<const WeightGroup> groups, WeightFormat format) {
  std::uint64_t sum = 0;
  for (const WeightGroup& g : groups) {
    for (const StoredTensor& t : g.tensors) {
      sum += static_cast<std::uint64_t>(t.data.shape.elements()) *
             (format == WeightFormat::stored ? size_of(t.data.dtype) : 1);
    }
  }
  return {sum};
}

StoredTensor planned_tensor(const std::string& name, const Shape& shape, DType dtype) {
  const auto bytes = static_cast<std::uint64_t>(shape.elements()) * size_of(dtype);
  return {.name = name,
          .data = {.shape = shape, .dtype = dtype, .extent = {.file = nullptr, .bytes = bytes}},
          .scale = {}};
}

BlockWeights::BlockWeights(ProgramBuilder& load, std::vector<std::vector<WeightGroup>> sources,
                           const MemoryPolicy& policy, WeightFormat format,
                           const RowPaddings& paddings)
    : sources_(std::move(sources)), policy_(policy), format_(format) {
  check_sources();
  check(!policy_.streams() || policy_.streaming->slots > 0,
        "weights stream through at least one slot");
  const std::int64_t n = groups();
  states_.resize(to_size(n));
  for (std::int64_t g = 0; g < n; ++g) {
    GroupState& state = states_[to_size(g)];
    state.resident = !policy_.streams() || evenly_chosen(g, n, policy_.streaming->resident_groups);
    const WeightGroup& described = group(static_cast<int>(g));
    for (const StoredTensor& t : described.tensors) {
      Form f = form_of(described, t, format_, !state.resident);
      f.shape = t.data.shape;
      if (paddings && f.shape.rank() == 2 && is_matrix(f.shape) && !f.has_scale) {
        const RowPadding m = paddings(static_cast<int>(g), state.forms.size(), f.dtype);
        f.wide = static_cast<bool>(m);
        f.shape[0] += m.rows;
        f.shape[1] += m.columns;
      }
      state.forms.push_back(std::move(f));
    }
  }
  lay_out_slots();
  declare(load);
}

void BlockWeights::check_sources() const {
  for (const auto& other : sources_) {
    check(other.size() == sources_[0].size(), "experts have {} and {} groups", sources_[0].size(),
          other.size());
    for (std::size_t g = 0; g < other.size(); ++g) {
      for (std::size_t t = 0; t < other[g].tensors.size(); ++t) {
        const StoredTensor &a = sources_[0][g].tensors[t], &b = other[g].tensors[t];
        const bool scales = a.scale.has_value() == b.scale.has_value();
        if (a.data.dtype == b.data.dtype && a.data.shape == b.data.shape && scales) continue;
        fail(ErrorCode::input,
             fmt::format("the two experts store {} differently: {} {} and {} {}", a.name,
                         a.data.dtype, a.data.shape, b.data.dtype, b.data.shape),
             {{"use files of one kind for both", "their weights take turns in the same memory"}});
      }
    }
  }
}

BlockWeights::Form BlockWeights::form_of(const WeightGroup& group, const StoredTensor& t,
                                         WeightFormat format, bool group_streams) {
  const DType stored = t.data.dtype;
  const bool matrix = is_matrix(t.data.shape);
  Form f;
  f.dtype = stored;
  f.streams = matrix && group_streams;
  if (t.scale) {
    f.has_scale = true;
    f.scale_shape = t.scale->shape;
  }
  if (stored == DType::f8_e4m3 || stored == DType::f8_e5m2)
    return f;  // already as narrow as it gets
  if (stored != DType::f32 && stored != DType::bf16 && stored != DType::f16) {
    f.dtype = DType::f32;
  }
  if (!matrix || group.keep_precision) return f;
  switch (format) {
    case WeightFormat::stored:
      break;
    case WeightFormat::f32:
      f.dtype = DType::f32;
      break;
    case WeightFormat::bf16:
      f.dtype = DType::bf16;
      break;
    case WeightFormat::f16:
      f.dtype = DType::f16;
      break;
    case WeightFormat::f8_e4m3:
      f.dtype = DType::f8_e4m3;
      break;
    case WeightFormat::f8_e5m2:
      f.dtype = DType::f8_e5m2;
      break;
    case WeightFormat::f8_e4m3_rows:
    case WeightFormat::int8_rows:
      f.dtype = format == WeightFormat::int8_rows ? DType::i8 : DType::f8_e4m3;
      f.has_scale = f.quantised = true;
      f.scale_shape = {t.data.shape[0]};
      break;
  }
  return f;
}

Bytes BlockWeights::streamed_bytes(const WeightGroup& group, WeightFormat format) {
  std::vector<Form> forms;
  for (const StoredTensor& t : group.tensors) forms.push_back(form_of(group, t, format, true));
  return {host_offset(forms, group, forms.size())};
}

void BlockWeights::lay_out_slots() {
  for (GroupState& state : states_) {
    for (Form& f : state.forms) {
      if (!f.streams) continue;
      f.slot_offset = state.slot_bytes;
      if (f.quantised) f.slot_scale_offset = f.slot_offset + data_bytes(f, f.shape.elements());
      f.slot_bytes = matrix_bytes(f, f.shape.elements());
      state.slot_bytes += f.slot_bytes;
    }
  }
}

void BlockWeights::declare(ProgramBuilder& load) {
  const Streaming stream = policy_.stream();
  std::uint64_t largest_slot = 0, largest_tensor = 0;
  for (std::size_t g = 0; g < states_.size(); ++g) {
    GroupState& state = states_[g];
    largest_slot = std::max(largest_slot, state.slot_bytes);
    state.buffers.resize(state.forms.size());
    for (std::size_t t = 0; t < state.forms.size(); ++t) {
      const Form& f = state.forms[t];
      const StoredTensor& tensor = sources_[0][g].tensors[t];
      largest_tensor = std::max(largest_tensor, tensor.data.extent.bytes);
      if (!f.streams) {
        state.buffers[t] = without_padding(
            load, load.persistent(tensor.name, f.shape, f.dtype, Role::weights), tensor, f);
      }
      if (f.has_scale && !(f.streams && f.quantised)) {
        state.buffers[t].scale =
            load.persistent(tensor.name + ".scale", f.scale_shape, DType::f32, Role::weights);
      }
    }
    if (state.slot_bytes > 0 && comes_from_host(stream, static_cast<std::int64_t>(g), groups())) {
      const std::uint64_t bytes = host_offset(state.forms, sources_[0][g], state.forms.size());
      state.host =
          load.persistent(sources_[0][g].name + ".host", {static_cast<std::int64_t>(bytes)},
                          DType::u8, Role::weights, Tier::host);
    }
  }
  const int slots = stream.matrices_ahead > 0 || largest_slot == 0 ? 0 : stream.slots;
  for (int s = 0; s < slots; ++s) {
    slots_.push_back(load.persistent(fmt::format("slot.{}", s),
                                     {static_cast<std::int64_t>(largest_slot)}, DType::u8,
                                     Role::weight_slots));
  }
  slot_group_.assign(slots_.size(), -1);
  last_use_.assign(slots_.size(), 0);
  const bool from_disk = stream.stream_from == StreamSource::disk && largest_slot > 0;
  StagingRing::Size ring = StagingRing::kLoading;
  if (from_disk) {
    ring = stream.slots == 1 ? StagingRing::kStreamingOneSlot : StagingRing::kStreaming;
    ring.buffers += stream.extra_ring_buffers;
  }
  ring_.emplace(load, largest_tensor, ring);
}

void BlockWeights::load(ProgramBuilder& pb, int source) {
  select(source);
  for (int g = 0; g < groups(); ++g) {
    const GroupState& h = states_[to_size(g)];
    read_group(pb, g, h.buffers, false, Lane::upload);
    if (h.host) read_group(pb, g, persistent(pb, g), true, Lane::host);
  }
  for (std::size_t s = 0; s < first_groups_.size(); ++s) {
    const int g = first_groups_[s];
    const GroupState& h = states_[to_size(g)];
    for (std::size_t t = 0; t < h.forms.size(); ++t) {
      const Form& f = h.forms[t];
      if (!f.streams) continue;
      deliver(
          pb, g, t, place_in(pb, slots_[s], 0, group(g).tensors[t], f),
          pb.view(slots_[s], f.slot_offset, DType::u8, {static_cast<std::int64_t>(f.slot_bytes)}));
    }
  }
}

WeightBuffers BlockWeights::without_padding(ProgramBuilder& pb, Buffer memory,
                                            const StoredTensor& t, const Form& f) const {
  WeightBuffers b;
  b.data = memory;
  if (!f.wide) return b;
  b.wide = memory;
  b.data = pb.columns(pb.rows(memory, 0, t.data.shape[0]), 0, t.data.shape[1]);
  return b;
}

WeightBuffers BlockWeights::place_in(ProgramBuilder& pb, Buffer memory, std::uint64_t base,
                                     const StoredTensor& t, const Form& f) const {
  WeightBuffers b =
      without_padding(pb, pb.view(memory, f.slot_offset - base, f.dtype, f.shape), t, f);
  if (f.quantised) {
    b.scale = pb.view(memory, f.slot_scale_offset - base, DType::f32, f.scale_shape);
  }
  return b;
}

void BlockWeights::read_group(ProgramBuilder& pb, int g, std::span<const WeightBuffers> to,
                              bool streamed_part, Lane lane) {
  const GroupState& state = states_[to_size(g)];
  std::vector<Delivery> deliveries;
  for (std::size_t t = 0; t < state.forms.size(); ++t) {
    const Form& f = state.forms[t];
    const StoredTensor& tensor = group(g).tensors[t];
    if (f.streams == streamed_part) {
      deliveries.push_back({.name = tensor.name,
                            .from = tensor.data,
                            .to = to[t].data,
                            .to_scale = f.quantised ? to[t].scale : Buffer()});
    }
    if (!streamed_part && tensor.scale && !f.quantised) {
      deliveries.push_back(
          {.name = tensor.name, .from = *tensor.scale, .to = to[t].scale, .to_scale = {}});
    }
  }
  const auto scope = pb.scope(group(g).name);
  ring_->deliver(pb, std::move(deliveries), lane);
}

void BlockWeights::keep_first_in_slots() {
  for (int g = 0; g < groups() && first_groups_.size() < slots_.size(); ++g) {
    if (states_[to_size(g)].slot_bytes > 0) first_groups_.push_back(g);
  }
}

void BlockWeights::begin_program(ProgramBuilder& pb, FillPadding fill) {
  fill_ = std::move(fill);
  program_ = pb.set().programs.size() - 1;
  for (GroupState& state : states_) state.slot = -1;
  std::ranges::fill(slot_group_, -1);
  std::ranges::fill(last_use_, 0);
  prefetches_.clear();
  for (std::size_t s = 0; s < first_groups_.size(); ++s) put(pb, first_groups_[s], s, true);
}

void BlockWeights::end_program(ProgramBuilder& pb) {
  fill_ = {};
  for (std::size_t s = 0; s < first_groups_.size(); ++s) {
    if (slot_group_[s] != first_groups_[s]) put(pb, first_groups_[s], s, false);
  }
  if (const int ahead = policy_.stream().matrices_ahead; ahead > 0) {
    prefetch_just_in_time(pb.set(), program_, std::move(prefetches_), ahead);
  } else {
    prefetch_early(pb.set(), program_, prefetches_);
  }
  prefetches_.clear();
}

void BlockWeights::deliver(ProgramBuilder& pb, int g, std::size_t t, const WeightBuffers& placed,
                           Buffer bytes) {
  const GroupState& state = states_[to_size(g)];
  const Form& f = state.forms[t];
  const StoredTensor& tensor = group(g).tensors[t];
  if (state.host) {
    const std::uint64_t at = host_offset(state.forms, group(g), t);
    if (f.wide) {
      upload(pb, pb.view(state.host, at, f.dtype, tensor.data.shape), placed.data);
    } else {
      upload(pb, pb.view(state.host, at, DType::u8, pb.shape(bytes)), bytes);
    }
    return;
  }
  const auto scope = pb.scope(group(g).name);
  ring_->deliver(
      pb, {{.name = tensor.name, .from = tensor.data, .to = placed.data, .to_scale = placed.scale}},
      Lane::upload);
}

void BlockWeights::prefetch(ProgramBuilder& pb, int g, std::size_t t, Buffer memory,
                            std::uint64_t base, bool keeps) {
  GroupState& state = states_[to_size(g)];
  const Form& f = state.forms[t];
  const WeightBuffers placed = place_in(pb, memory, base, group(g).tensors[t], f);
  state.buffers[t].data = placed.data;
  state.buffers[t].wide = placed.wide;
  if (placed.scale) state.buffers[t].scale = placed.scale;
  const auto instructions = [&] {
    return static_cast<std::uint32_t>(pb.set().programs[program_].instructions.size());
  };
  const Buffer to =
      pb.view(memory, f.slot_offset - base, DType::u8, {static_cast<std::int64_t>(f.slot_bytes)});
  const std::uint32_t begin = instructions();
  if (!keeps) deliver(pb, g, t, placed, to);
  const std::uint32_t end = instructions();
  if (placed.wide && fill_) fill_(pb, g, t, placed);
  if (begin < instructions()) prefetches_.push_back({begin, end, to, instructions() - end});
}

void BlockWeights::put(ProgramBuilder& pb, int g, std::size_t slot, bool keeps) {
  if (slot_group_[slot] >= 0) states_[to_size(slot_group_[slot])].slot = -1;
  slot_group_[slot] = g;
  GroupState& state = states_[to_size(g)];
  state.slot = static_cast<int>(slot);
  for (std::size_t t = 0; t < state.forms.size(); ++t) {
    if (state.forms[t].streams) prefetch(pb, g, t, slots_[slot], 0, keeps);
  }
}

std::span<const WeightBuffers> BlockWeights::use(ProgramBuilder& pb, int g) {
  GroupState& state = states_[to_size(g)];
  ++uses_;
  if (state.slot_bytes == 0) return state.buffers;
  if (policy_.stream().matrices_ahead > 0) {
    for (std::size_t t = 0; t < state.forms.size(); ++t) {
      const Form& f = state.forms[t];
      if (!f.streams) continue;
      const Buffer memory = pb.temp("weight", {static_cast<std::int64_t>(f.slot_bytes)}, DType::u8,
                                    Role::weight_slots);
      prefetch(pb, g, t, memory, f.slot_offset);
    }
    return state.buffers;
  }
  if (state.slot < 0) {
    const auto slot = to_size(std::ranges::min_element(last_use_) - last_use_.begin());
    put(pb, g, slot, false);
  }
  last_use_[to_size(state.slot)] = uses_;
  return state.buffers;
}

std::vector<WeightBuffers> BlockWeights::persistent(ProgramBuilder& pb, int g) const {
  const GroupState& h = states_[to_size(g)];
  std::vector<WeightBuffers> all = h.buffers;
  for (std::size_t t = 0; t < all.size(); ++t) {
    if (!h.forms[t].streams) continue;
    check(static_cast<bool>(h.host),
          "{} is streamed from its file and has no persistent copy to change",
          group(g).tensors[t].name);
    const Form& f = h.forms[t];
    const std::uint64_t at = host_offset(h.forms, group(g), t);
    all[t].data = pb.view(h.host, at, f.dtype, group(g).tensors[t].data.shape);
    all[t].wide = {};
    if (f.quantised) {
      all[t].scale =
          pb.view(h.host, at + (f.slot_scale_offset - f.slot_offset), DType::f32, f.scale_shape);
    }
  }
  return all;
}

}  // namespace ballast
