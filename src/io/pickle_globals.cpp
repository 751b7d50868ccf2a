#include "io/pickle_globals.h"

namespace ballast {
namespace {

using G = Pickle::Global;

constexpr PickleGlobal kGlobals[] = {
    {"collections.OrderedDict", G::ordered_dict},
    {"collections.Counter", G::opaque_call},
    {"builtins.set", G::opaque_call},
    {"__builtin__.set", G::opaque_call},
    {"torch.device", G::opaque_call},
    {"_codecs.encode", G::encode},
    {"torch._utils._rebuild_tensor", G::rebuild_tensor},
    {"torch._utils._rebuild_tensor_v2", G::rebuild_tensor_v2},
    {"torch._utils._rebuild_tensor_v3", G::rebuild_tensor_v3},
    {"torch._utils._rebuild_parameter", G::rebuild_parameter},
    {"torch._utils._rebuild_parameter_with_state", G::rebuild_parameter_with_state},
    {"torch._tensor._rebuild_from_type_v2", G::rebuild_from_type},
    {"torch.nn.parameter.Parameter", G::parameter},
    {"torch.Tensor", G::tensor_type},
    {"torch.Size", G::size},
    {"torch.FloatStorage", G::storage_type, FileDType::f32},
    {"torch.HalfStorage", G::storage_type, FileDType::f16},
    {"torch.BFloat16Storage", G::storage_type, FileDType::bf16},
    {"torch.DoubleStorage", G::storage_type, FileDType::f64},
    {"torch.BoolStorage", G::storage_type, FileDType::boolean},
    {"torch.ComplexFloatStorage", G::storage_type, FileDType::c64},
    {"torch.LongStorage", G::storage_type, FileDType::i64},
    {"torch.IntStorage", G::storage_type, FileDType::i32},
    {"torch.ShortStorage", G::storage_type, FileDType::i16},
    {"torch.CharStorage", G::storage_type, FileDType::i8},
    {"torch.ByteStorage", G::storage_type, FileDType::u8},
    {"torch.storage.UntypedStorage", G::storage_type, FileDType::u8, true},
    {"torch.UntypedStorage", G::storage_type, FileDType::u8, true},
    {"torch.float32", G::dtype, FileDType::f32},
    {"torch.float16", G::dtype, FileDType::f16},
    {"torch.bfloat16", G::dtype, FileDType::bf16},
    {"torch.float64", G::dtype, FileDType::f64},
    {"torch.bool", G::dtype, FileDType::boolean},
    {"torch.complex64", G::dtype, FileDType::c64},
    {"torch.int64", G::dtype, FileDType::i64},
    {"torch.int32", G::dtype, FileDType::i32},
    {"torch.int16", G::dtype, FileDType::i16},
    {"torch.int8", G::dtype, FileDType::i8},
    {"torch.uint8", G::dtype, FileDType::u8},
    {"torch.uint16", G::dtype, FileDType::u16},
    {"torch.uint32", G::dtype, FileDType::u32},
    {"torch.uint64", G::dtype, FileDType::u64},
    {"torch.float8_e4m3fn", G::dtype, FileDType::f8_e4m3},
    {"torch.float8_e5m2", G::dtype, FileDType::f8_e5m2},
};

}  // namespace

std::optional<PickleGlobal> find_pickle_global(std::string_view module, std::string_view name) {
  for (const PickleGlobal& g : kGlobals) {
    if (g.name.size() == module.size() + 1 + name.size() && g.name.starts_with(module) &&
        g.name[module.size()] == '.' && g.name.ends_with(name)) {
      return g;
    }
  }
  return std::nullopt;
}

}  // namespace ballast
