#include "io/pickle.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"
#include "io/limits.h"
#include "io/pickle_globals.h"
#include "io/utf8.h"

namespace ballast {

// The opcodes of protocols 2 to 5 that data needs, over a stack of handles. Every length is
// compared with the bytes that are left, every count with a limit, before anything is sized by it.
class PickleMachine {
 public:
  using Kind = Pickle::Kind;
  using Global = Pickle::Global;
  using Handle = Pickle::Handle;

  explicit PickleMachine(Pickle& p) : p_(p), text_(p.text_) {
    p_.values_.resize(3);  // none, false, true: made once
    p_.values_[1] = {.kind = Kind::boolean, .number = 0};
    p_.values_[2] = {.kind = Kind::boolean, .number = 1};
  }

  void run() {
    for (std::uint64_t steps = 0;; ++steps) {
      if (steps == limits::kPickleOpcodes) {
        refuse("pth.limit", fmt::format("more than {} opcodes", steps));
      }
      opcode_at_ = at_;
      const unsigned char op = u8();
      if (op == '.') break;
      if (steps == 0 && op != 0x80) bad("a pickle begins with its protocol");
      execute(op, steps);
    }
    p_.root_ = pop();
    if (!stack_.empty() || !marks_.empty()) bad("values are left behind the end");
  }

 private:
  [[noreturn]] void refuse(std::string_view rule, const std::string& what) const {
    fail(ErrorCode::input, "{}: {}: {} (byte {} of data.pkl)", p_.path_, rule, what, opcode_at_);
  }
  [[noreturn]] void bad(const std::string& what) const { refuse("pth.pickle", what); }

  std::string_view take(std::uint64_t n) {
    if (n > text_.size() - at_)
      bad(fmt::format("an argument of {} bytes, {} are left", n, text_.size() - at_));
    at_ += n;
    return text_.substr(at_ - n, n);
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  unsigned char u8() { return number<unsigned char>(); }
  std::string_view line() {
    const std::size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos || end - at_ > 512) bad("a name without end");
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end + 1;
    return name;
  }

  void push(Handle h) {
    if (stack_.size() == limits::kPickleStack) refuse("pth.limit", "the stack is too deep");
    stack_.push_back(h);
  }
  Handle pop() {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) bad("the stack is empty");
    const Handle h = stack_.back();
    stack_.pop_back();
    return h;
  }
  Handle top() const {
    if (stack_.empty()) bad("the stack is empty");
    return stack_.back();
  }
  std::vector<Handle> pop_to_mark() {
    if (marks_.empty()) bad("there is no mark");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Handle> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  Handle make(Pickle::Value value) {
    p_.values_.push_back(value);
    return static_cast<Handle>(p_.values_.size() - 1);
  }
  Handle integer(std::int64_t n) { return make({.kind = Kind::integer, .number = n}); }
  Handle list(Kind kind, std::vector<Handle> items = {}) {
    if (p_.lists_.size() == limits::kPickleStack) refuse("pth.limit", "too many lists and dicts");
    count_items(items.size());
    p_.lists_.push_back(std::move(items));
    return make({.kind = kind, .index = static_cast<std::uint32_t>(p_.lists_.size() - 1)});
  }
  // What lists hold together: a list that is copied again and again costs a few bytes of file.
  void count_items(std::size_t n) {
    items_ += n;
    if (items_ > limits::kPickleOpcodes) refuse("pth.limit", "too many items of lists and dicts");
  }
  Handle string(std::uint64_t n, bool ascii) {
    if (n > limits::kPickleString) refuse("pth.limit", fmt::format("a string of {} bytes", n));
    const std::string_view s = take(n);
    if (first_invalid_utf8(s)) bad("a string that is not UTF-8");
    if (ascii && std::any_of(s.begin(), s.end(), [](char c) { return (c & 0x80) != 0; })) {
      bad("an old string that is not ASCII");
    }
    return make({.kind = Kind::text,
                 .index = static_cast<std::uint32_t>(s.data() - text_.data()),
                 .number = static_cast<std::int64_t>(n)});
  }
  Handle long_integer(std::string_view s) {
    if (s.size() > 8) bad(fmt::format("an integer of {} bytes", s.size()));
    std::uint64_t n = !s.empty() && (s.back() & 0x80) != 0 ? ~0ull : 0;
    std::memcpy(&n, s.data(), s.size());
    return integer(static_cast<std::int64_t>(n));
  }

  void put(std::uint64_t i, Handle h) {
    if (i >= limits::kPickleOpcodes) refuse("pth.limit", fmt::format("memo entry {}", i));
    if (i >= memo_.size()) memo_.resize(i + 1, kNever);
    memoized_ += memo_[i] == kNever ? 1 : 0;
    memo_[i] = h;
  }
  void get(std::uint64_t i) {
    if (i >= memo_.size() || memo_[i] == kNever) {
      bad(fmt::format("memo entry {} was never written", i));
    }
    push(memo_[i]);
  }

  void append(std::vector<Handle> items, bool pairs) {
    const Handle target = top();
    const Kind kind = p_.kind(target);
    if (kind == Kind::opaque) return;  // a set: its content is not kept
    if (kind != (pairs ? Kind::dict : Kind::list)) bad("items for what is no list or dict");
    if (pairs && items.size() % 2 != 0) bad("a key without value");
    count_items(items.size());
    std::vector<Handle>& to = p_.lists_[p_.values_[target].index];
    to.insert(to.end(), items.begin(), items.end());
  }

  void global(std::string_view module, std::string_view name) {
    const auto found = find_pickle_global(module, name);
    if (!found) {
      fail(ErrorCode::input,
           fmt::format("{}: pth.global: the file refers to {}.{} (byte {} of data.pkl), which is "
                       "not data that Ballast reads; nothing of it was executed",
                       p_.path_, printable(module), printable(name), opcode_at_),
           {{"convert it to safetensors", "where you trust it, with the program it comes from"}});
    }
    push(make({.kind = Kind::global,
               .global = found->global,
               .dtype = found->dtype,
               .untyped = found->untyped}));
  }

  void execute(unsigned char op, std::uint64_t step);
  void reduce(bool parameter_only);
  Handle call(const Pickle::Value& function, Handle args);
  Handle rebuild(Global function, std::span<const Handle> args);
  void persistent_id();

  std::span<const Handle> tuple(Handle h, std::size_t least, const char* of) const {
    if (p_.kind(h) != Kind::tuple || p_.items(h).size() < least) {
      bad(fmt::format("{} needs a tuple of at least {}", of, least));
    }
    return p_.items(h);
  }
  std::uint64_t count(Handle h, const char* of) const {
    const Pickle::Value& v = p_.values_[h];
    if (v.kind != Kind::integer || v.number < 0) {
      refuse("pth.tensor", fmt::format("{} is no number from 0", of));
    }
    return static_cast<std::uint64_t>(v.number);
  }
  Shape dimensions(Handle h, const char* of) const {
    Shape shape;
    for (const Handle d : tuple(h, 0, of)) {
      if (shape.rank() == limits::kDimensions) {
        refuse("pth.limit", fmt::format("{} of more than {} dimensions", of, limits::kDimensions));
      }
      shape.push_back(static_cast<std::int64_t>(count(d, of)));
    }
    return shape;
  }

  Pickle& p_;
  std::string_view text_;
  std::size_t at_ = 0, opcode_at_ = 0;
  std::vector<Handle> stack_;
  std::vector<std::size_t> marks_;
  static constexpr Handle kNever = ~0u;
  std::vector<Handle> memo_;
  std::uint64_t memoized_ = 0, items_ = 0;
  std::map<std::string_view, std::uint32_t> storage_of_;  // by key
};

void PickleMachine::execute(unsigned char op, std::uint64_t step) {
  switch (op) {
    case 0x80: {  // PROTO
      const unsigned version = u8();
      if (step != 0 || version < 2 || version > 5) bad(fmt::format("protocol {}", version));
      return;
    }
    case 0x95:  // FRAME
      (void)number<std::uint64_t>();
      return;
    case '(':
      if (marks_.size() == limits::kPickleStack) refuse("pth.limit", "too many marks");
      return marks_.push_back(stack_.size());
    case 'N':
      return push(0);
    case 0x89:
      return push(1);
    case 0x88:
      return push(2);
    case 'J':
      return push(integer(number<std::int32_t>()));
    case 'K':
      return push(integer(u8()));
    case 'M':
      return push(integer(number<std::uint16_t>()));
    case 0x8a:  // LONG1
      return push(long_integer(take(u8())));
    case 'G':
      (void)number<std::uint64_t>();
      return push(make({.kind = Kind::real}));
    case 'X':
      return push(string(number<std::uint32_t>(), false));
    case 0x8c:
      return push(string(u8(), false));
    case 0x8d:
      return push(string(number<std::uint64_t>(), false));
    case 'U':
      return push(string(u8(), true));
    case 'T': {
      const auto n = number<std::int32_t>();
      if (n < 0) bad("a string of negative length");
      return push(string(static_cast<std::uint64_t>(n), true));
    }
    case ')':
      return push(list(Kind::tuple));
    case 0x85:
    case 0x86:
    case 0x87: {
      std::vector<Handle> items(op - 0x84u);
      for (std::size_t i = items.size(); i-- > 0;) items[i] = pop();
      return push(list(Kind::tuple, std::move(items)));
    }
    case 't':
      return push(list(Kind::tuple, pop_to_mark()));
    case ']':
      return push(list(Kind::list));
    case '}':
      return push(list(Kind::dict));
    case 0x8f:  // EMPTY_SET
      return push(make({.kind = Kind::opaque}));
    case 'a': {
      const Handle item = pop();
      return append({item}, false);
    }
    case 'e':
      return append(pop_to_mark(), false);
    case 's': {
      const Handle value = pop(), key = pop();
      return append({key, value}, true);
    }
    case 'u':
      return append(pop_to_mark(), true);
    case 'q':
      return put(u8(), top());
    case 'r':
      return put(number<std::uint32_t>(), top());
    case 0x94:  // MEMOIZE
      return put(memoized_, top());
    case 'h':
      return get(u8());
    case 'j':
      return get(number<std::uint32_t>());
    case 'c': {
      const std::string_view module = line(), name = line();
      return global(module, name);
    }
    case 0x93: {  // STACK_GLOBAL
      const Handle name = pop(), module = pop();
      if (p_.kind(name) != Kind::text || p_.kind(module) != Kind::text)
        bad("a name that is no text");
      return global(p_.text(module), p_.text(name));
    }
    case 'R':
      return reduce(false);
    case 0x81:  // NEWOBJ
      return reduce(true);
    case 'b': {
      (void)pop();  // the state: attributes of modules and tensors, of which none is wanted
      const Kind kind = p_.kind(top());
      if (kind != Kind::dict && kind != Kind::tensor && kind != Kind::opaque) {
        bad("a state for what has none");
      }
      return;
    }
    case 'Q':
      return persistent_id();
    default:
      bad(fmt::format("opcode 0x{:02x} ('{}') is not one that data needs", op,
                      printable(std::string_view(text_.data() + opcode_at_, 1))));
  }
}

void PickleMachine::reduce(bool parameter_only) {
  const Handle args = pop(), function = pop();
  const Pickle::Value f = p_.values_[function];
  if (f.kind != Kind::global || (parameter_only && f.global != Global::parameter)) {
    bad("a call of what is no function");
  }
  push(call(f, args));
}

Pickle::Handle PickleMachine::call(const Pickle::Value& f, Handle args) {
  switch (f.global) {
    case Global::ordered_dict: {
      const auto items = tuple(args, 0, "OrderedDict");
      std::vector<Handle> pairs;
      if (!items.empty()) {
        if (p_.kind(items[0]) != Kind::list) bad("OrderedDict of what is no list");
        count_items(2 * p_.items(items[0]).size());
        for (const Handle pair : p_.items(items[0])) {
          const auto both = tuple(pair, 2, "a pair of an OrderedDict");
          pairs.insert(pairs.end(), {both[0], both[1]});
        }
      }
      return list(Kind::dict, std::move(pairs));
    }
    case Global::size: {
      const auto items = tuple(args, 1, "torch.Size");
      (void)tuple(items[0], 0, "torch.Size");
      return items[0];
    }
    case Global::opaque_call:
    case Global::encode:
      (void)tuple(args, 0, "a call");
      return make({.kind = Kind::opaque});
    case Global::rebuild_parameter:
    case Global::rebuild_parameter_with_state:
    case Global::parameter: {
      const auto items = tuple(args, 1, "a parameter");
      if (p_.kind(items[0]) != Kind::tensor) refuse("pth.tensor", "a parameter without tensor");
      return items[0];
    }
    case Global::rebuild_from_type: {
      const auto items = tuple(args, 3, "_rebuild_from_type_v2");
      const Pickle::Value function = p_.values_[items[0]], type = p_.values_[items[1]];
      const bool known = function.kind == Kind::global && type.kind == Kind::global &&
                         (type.global == Global::tensor_type || type.global == Global::parameter);
      if (!known) refuse("pth.tensor", "a tensor of an unknown type");
      return rebuild(function.global, tuple(items[2], 4, "a tensor"));
    }
    default:
      return rebuild(f.global, tuple(args, 4, "a tensor"));
  }
}

Pickle::Handle PickleMachine::rebuild(Global function, std::span<const Handle> args) {
  const bool third = function == Global::rebuild_tensor_v3;
  if (!third && function != Global::rebuild_tensor && function != Global::rebuild_tensor_v2) {
    bad("a call of what is no function");
  }
  if (p_.kind(args[0]) != Kind::storage) refuse("pth.tensor", "a tensor without storage");
  Pickle::Tensor t;
  t.storage = p_.values_[args[0]].index;
  const Pickle::Storage& storage = p_.storages_[t.storage];
  t.dtype = storage.dtype;
  if (third) {
    if (args.size() < 7 || p_.values_[args[6]].kind != Kind::global ||
        p_.values_[args[6]].global != Global::dtype) {
      refuse("pth.tensor", "a tensor without dtype");
    }
    t.dtype = p_.values_[args[6]].dtype;
  }
  t.offset = count(args[1], "a tensor's offset");
  t.shape = dimensions(args[2], "a shape");
  t.strides = dimensions(args[3], "strides");
  if (t.shape.rank() != t.strides.rank()) {
    refuse("pth.tensor",
           fmt::format("{} dimensions with {} strides", t.shape.rank(), t.strides.rank()));
  }
  const std::size_t metadata = third ? 7 : 6;
  if (args.size() > metadata && p_.kind(args[metadata]) == Kind::dict) {
    const auto items = p_.items(args[metadata]);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (p_.kind(items[i + 1]) == Kind::boolean && p_.values_[items[i + 1]].number != 0) {
        refuse("pth.tensor", "a tensor that is a conjugated or negated view");
      }
    }
  }
  if (p_.tensors_.size() == limits::kTensors) refuse("pth.limit", "too many tensors");
  p_.tensors_.push_back(t);
  return make({.kind = Kind::tensor, .index = static_cast<std::uint32_t>(p_.tensors_.size() - 1)});
}

// ('storage', class, key, location, elements)
void PickleMachine::persistent_id() {
  const auto id = tuple(pop(), 5, "a storage");
  const Pickle::Value type = p_.values_[id[1]];
  if (p_.kind(id[0]) != Kind::text || p_.text(id[0]) != "storage" || type.kind != Kind::global ||
      type.global != Global::storage_type || p_.kind(id[2]) != Kind::text) {
    refuse("pth.storage", "a reference to something that is no storage");
  }
  const std::string_view key = p_.text(id[2]);
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (key.empty() || key.size() > 10 || !std::all_of(key.begin(), key.end(), digit)) {
    refuse("pth.storage", fmt::format("a storage with the key \"{}\"", printable(key)));
  }
  const std::uint64_t elements = count(id[4], "a storage's size");
  const auto [at, fresh] =
      storage_of_.try_emplace(key, static_cast<std::uint32_t>(p_.storages_.size()));
  if (fresh) p_.storages_.push_back({key, type.dtype, type.untyped, elements});
  const Pickle::Storage& s = p_.storages_[at->second];
  if (s.dtype != type.dtype || s.untyped != type.untyped || s.elements != elements) {
    refuse("pth.storage", fmt::format("storage {} is there with two types or sizes", key));
  }
  push(make({.kind = Kind::storage, .index = at->second}));
}

Pickle::Pickle(std::string text, std::string path)
    : text_(std::move(text)), path_(std::move(path)) {
  PickleMachine(*this).run();
}

std::string_view Pickle::text(Handle h) const {
  const Value& v = values_[h];
  check(v.kind == Kind::text, "a text of what is none");
  return std::string_view(text_).substr(v.index, to_size(v.number));
}

std::span<const Pickle::Handle> Pickle::items(Handle h) const {
  const Value& v = values_[h];
  check(v.kind == Kind::tuple || v.kind == Kind::list || v.kind == Kind::dict, "items of none");
  return lists_[v.index];
}

}  // namespace ballast
