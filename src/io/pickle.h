#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "io/file_dtype.h"

namespace ballast {

// What a torch.save() file holds, read as data: the names in it select from a fixed list and are
// never looked up anywhere, nothing is executed.
//
// Values are handles, so what the file refers to twice is there once.
class Pickle {
 public:
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    real,
    text,
    tuple,
    list,
    dict,
    global,
    storage,
    tensor,
    opaque,
  };
  // Names a pickle may refer to.
  enum class Global : std::uint8_t {
    ordered_dict,
    opaque_call,
    rebuild_tensor,
    rebuild_tensor_v2,
    rebuild_tensor_v3,
    rebuild_parameter,
    rebuild_parameter_with_state,
    rebuild_from_type,
    parameter,
    tensor_type,
    size,
    encode,
    storage_type,
    dtype,
  };
  using Handle = std::uint32_t;

  struct Storage {
    std::string_view key;  // the file is <root>/data/<key>
    FileDType dtype = FileDType::u8;
    bool untyped = false;  // counted in bytes
    std::uint64_t elements = 0;
  };
  struct Tensor {
    std::uint32_t storage = 0;
    FileDType dtype = FileDType::f32;
    std::uint64_t offset = 0;  // in elements
    Shape shape, strides;      // in elements
  };

  // `path` is for messages. What is wrong is ErrorCode::input with pth.pickle, pth.global (a name
  // that is not on the list), pth.storage, pth.tensor or pth.limit.
  Pickle(std::string text, std::string path);

  Handle root() const { return root_; }
  Kind kind(Handle h) const { return values_[h].kind; }
  std::string_view text(Handle h) const;          // of a text
  std::span<const Handle> items(Handle h) const;  // of a tuple or list; key, value, ... of a dict
  const Tensor& tensor(Handle h) const { return tensors_[values_[h].index]; }
  std::span<const Storage> storages() const { return storages_; }

 private:
  friend class PickleMachine;

  struct Value {
    Kind kind = Kind::none;
    Global global = Global::opaque_call;
    FileDType dtype = FileDType::u8;
    bool untyped = false;
    std::uint32_t index = 0;  // into lists_, tensors_, storages_; of a text: where it begins
    std::int64_t number = 0;  // of an integer or boolean; of a text: its length
  };

  std::string text_;  // texts point into it
  std::string path_;
  std::vector<Value> values_;
  std::vector<std::vector<Handle>> lists_;
  std::vector<Storage> storages_;
  std::vector<Tensor> tensors_;
  Handle root_ = 0;
};

}  // namespace ballast
