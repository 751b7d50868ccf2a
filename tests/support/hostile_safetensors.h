#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ballast::test {

// A safetensors file: length, header, data.
inline std::string safetensors(std::string_view header, std::string_view data = "") {
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i) & 0xff);
  }
  return file.append(header).append(data);
}

// The first eight bytes say `length`, whatever follows.
inline std::string with_length(std::uint64_t length, std::string_view rest) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xff);
  return file.append(rest);
}

inline std::string tensor(std::string_view name, std::string_view dtype, std::string_view shape,
                          std::string_view offsets) {
  std::string text = "\"";
  text.append(name).append("\":{\"dtype\":\"").append(dtype).append("\",\"shape\":").append(shape);
  return text.append(",\"data_offsets\":").append(offsets).append("}");
}

// {a,b,...}
template <class... Members>
std::string object(const Members&... members) {
  std::string text;
  ((text.append(text.empty() ? "{" : ",").append(members)), ...);
  return text.append("}");
}

inline std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets,
                       std::size_t data = 0) {
  return safetensors(object(tensor("a", dtype, shape, offsets)), std::string(data, '\1'));
}

inline std::string repeat(std::string_view text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

struct HostileFile {
  std::string name;
  std::string rule;  // the one it breaks
  std::string bytes;
};

inline std::vector<HostileFile> hostile_safetensors() {
  std::vector<HostileFile> files;
  const auto add = [&](std::string name, std::string rule, std::string bytes) {
    files.push_back({std::move(name), std::move(rule), std::move(bytes)});
  };
  const auto json = [&](std::string name, std::string_view header) {
    add(std::move(name), "st.header_json", safetensors(header, "\1\2\3\4"));
  };
  // A header that would be right but for what stands in place of the fields.
  const auto body = [&](std::string name, std::string_view fields) {
    json(std::move(name), "{\"a\":" + std::string(fields) + "}");
  };
  const std::string good = one("I32", "[1]", "[0,4]", 4);
  const std::string two_i32 = "{" + tensor("a", "I32", "[1]", "[0,4]") + ",";

  // The length.
  add("empty file", "st.header_too_small", "");
  add("one byte", "st.header_too_small", "\x08");
  add("seven bytes", "st.header_too_small", std::string(7, '\0'));
  add("length with high bytes set", "st.header_too_large",
      std::string("\x3c\0\0\0\0\xff\xff\xff", 8) + "{}");
  add("length one above the cap", "st.header_too_large", with_length(100'000'001, "{}"));
  add("length all ones", "st.header_too_large", with_length(~0ull, "{}"));
  add("length that wraps with its own eight bytes", "st.header_too_large",
      with_length(~0ull - 7, "{}"));
  add("length at the cap, no such bytes", "st.header_length", with_length(100'000'000, "{}"));
  add("length alone", "st.header_length", with_length(60, ""));
  add("length one past the end", "st.header_length", with_length(3, "{}"));
  add("length of zero", "st.header_json", with_length(0, ""));
  add("length inside the header", "st.header_json", with_length(5, good.substr(8)));

  // UTF-8.
  const auto utf8 = [&](std::string name, std::string_view bytes) {
    add(std::move(name), "st.header_utf8",
        safetensors(object(tensor(bytes, "I32", "[1]", "[0,4]")), "\1\2\3\4"));
  };
  add("byte ff alone", "st.header_utf8", safetensors("\xff"));
  utf8("continuation byte first", "\x80");
  utf8("overlong slash", "\xc0\xaf");
  utf8("overlong of three bytes", "\xe0\x80\xaf");
  utf8("overlong of four bytes", "\xf0\x80\x80\xaf");
  utf8("surrogate as UTF-8", "\xed\xa0\x80");
  utf8("above U+10FFFF", "\xf4\x90\x80\x80");
  utf8("lead byte f5", "\xf5\x80\x80\x80");
  utf8("sequence cut by the quote", "\xe2\x82");
  add("sequence cut by the end", "st.header_utf8", safetensors("{}\xe2\x82"));
  add("latin-1 after white space", "st.header_utf8", safetensors("{}   \xe9"));

  // JSON syntax.
  json("brace only", "{");
  json("nothing but spaces", "        ");
  json("array at the top", "[]");
  json("string at the top", "\"a\"");
  json("null at the top", "null");
  json("byte order mark", "\xef\xbb\xbf{}");
  json("text after the object", "{}x");
  json("second object", "{}{}");
  json("NUL padding", std::string_view("{}\0\0", 4));
  json("trailing comma", two_i32 + "}");
  json("leading comma", "{," + tensor("a", "I32", "[1]", "[0,4]") + "}");
  json("missing comma",
       "{" + tensor("a", "I32", "[1]", "[0,4]") + tensor("b", "I32", "[0]", "[4,4]") + "}");
  json("missing colon", "{\"a\" {}}");
  json("key without quotes", "{a:{}}");
  json("single quotes", "{'a':{}}");
  json("number as a key", "{1:{}}");
  json("comment", "{/**/}");
  json("vertical tab as space", "{\v}");
  json("no-break space", "{\xc2\xa0}");
  json("object not closed", "{" + tensor("a", "I32", "[1]", "[0,4]"));
  json("string not closed", "{\"a");
  json("bracket closed by brace", "{\"a\":[}");
  json("newline in a name", object(tensor("a\nb", "I32", "[1]", "[0,4]")));
  json("NUL in a name", object(tensor(std::string_view("a\0b", 3), "I32", "[1]", "[0,4]")));
  json("escape in a name, byte 1f", object(tensor("\x1f", "I32", "[1]", "[0,4]")));
  json("unknown escape", object(tensor("\\x41", "I32", "[1]", "[0,4]")));
  json("escape at the end", "{\"a\\");
  json("short hexadecimal escape", object(tensor("\\u12", "I32", "[1]", "[0,4]")));
  json("signed hexadecimal escape", object(tensor("\\u-123", "I32", "[1]", "[0,4]")));
  json("lone high surrogate", object(tensor("\\ud800", "I32", "[1]", "[0,4]")));
  json("lone low surrogate", object(tensor("\\udc00", "I32", "[1]", "[0,4]")));
  json("high surrogate twice", object(tensor("\\ud800\\ud800", "I32", "[1]", "[0,4]")));
  json("high surrogate and a letter", object(tensor("\\ud800\\u0041", "I32", "[1]", "[0,4]")));
  json("arrays 33 deep in a field", "{\"a\":{\"x\":" + repeat("[", 31) + repeat("]", 31) + "}}");
  json("arrays a million deep", "{\"a\":{\"x\":" + repeat("[", 1'000'000));
  json("objects a million deep", repeat("{\"a\":", 1'000'000));

  // Types and fields.
  body("tensor is null", "null");
  body("tensor is an array", "[\"I32\",[1],[0,4]]");
  body("tensor is a string", "\"I32\"");
  body("tensor is empty", "{}");
  body("no dtype", "{\"shape\":[1],\"data_offsets\":[0,4]}");
  body("no shape", "{\"dtype\":\"I32\",\"data_offsets\":[0,4]}");
  body("no data_offsets", "{\"dtype\":\"I32\",\"shape\":[1]}");
  body("dtype twice", "{\"dtype\":\"I32\",\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}");
  body("shape twice", "{\"dtype\":\"I32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}");
  body("ignored field with bad content",
       "{\"x\":nul,\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}");
  body("dtype is a number", "{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}");
  body("dtype is null", "{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,4]}");
  body("shape is null", "{\"dtype\":\"I32\",\"shape\":null,\"data_offsets\":[0,4]}");
  body("shape is a number", "{\"dtype\":\"I32\",\"shape\":1,\"data_offsets\":[0,4]}");
  body("shape is an object", "{\"dtype\":\"I32\",\"shape\":{\"0\":1},\"data_offsets\":[0,4]}");
  body("offsets are an object", "{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":{}}");
  const auto value = [&](std::string name, std::string_view dtype, std::string_view shape,
                         std::string_view offsets) {
    add(std::move(name), "st.header_json", one(dtype, shape, offsets, 4));
  };
  value("unknown dtype", "F128", "[1]", "[0,4]");
  value("dtype in lower case", "i32", "[1]", "[0,4]");
  value("dtype with a space", "I32 ", "[1]", "[0,4]");
  value("dtype is empty", "", "[1]", "[0,4]");
  value("one offset", "I32", "[1]", "[4]");
  value("three offsets", "I32", "[1]", "[0,4,4]");
  value("no offsets", "I32", "[1]", "[]");
  value("negative offset", "I32", "[1]", "[-4,0]");
  value("negative zero", "I32", "[1]", "[-0,4]");
  value("plus sign", "I32", "[+1]", "[0,4]");
  value("fraction in the shape", "I32", "[1.0]", "[0,4]");
  value("exponent in the shape", "I32", "[1e0]", "[0,4]");
  value("leading zero", "I32", "[01]", "[0,4]");
  value("hexadecimal", "I32", "[0x1]", "[0,4]");
  value("dimension in quotes", "I32", "[\"1\"]", "[0,4]");
  value("dimension is null", "I32", "[null]", "[0,4]");
  value("dimension is true", "I32", "[true]", "[0,4]");
  value("dimension is NaN", "I32", "[NaN]", "[0,4]");
  value("dimension is 2^64", "I32", "[18446744073709551616]", "[0,4]");
  value("offset of forty digits", "I32", "[1]", "[0,4000000000000000000000000000000000000000]");
  value("shape with a trailing comma", "I32", "[1,]", "[0,4]");
  value("nested shape", "I32", "[[1]]", "[0,4]");
  value("bare minus", "I32", "[-]", "[0,4]");
  value("fraction without digits", "I32", "[1.]", "[0,4]");

  // Metadata.
  json("metadata is an array", "{\"__metadata__\":[]}");
  json("metadata is a string", "{\"__metadata__\":\"pt\"}");
  json("metadata holds a number", "{\"__metadata__\":{\"step\":1}}");
  json("metadata holds null", "{\"__metadata__\":{\"step\":null}}");
  json("metadata is nested", "{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}");
  json("metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}");
  json("metadata null, then an object", "{\"__metadata__\":null,\"__metadata__\":{}}");
  add("metadata key twice", "st.duplicate_name",
      safetensors("{\"__metadata__\":{\"a\":\"b\",\"a\":\"b\"}}"));

  // Names and limits.
  add("the same tensor twice", "st.duplicate_name",
      safetensors(object(tensor("a", "I32", "[1]", "[0,4]"), tensor("a", "I32", "[1]", "[4,8]")),
                  std::string(8, '\1')));
  add("the same tensor twice, once escaped", "st.duplicate_name",
      safetensors(
          object(tensor("a", "I32", "[1]", "[0,4]"), tensor("\\u0061", "I32", "[0]", "[4,4]")),
          std::string(4, '\1')));
  add("name of 4097 bytes", "st.limit",
      safetensors(object(tensor(repeat("n", 4097), "I32", "[1]", "[0,4]")), "\1\2\3\4"));
  add("nine dimensions", "st.limit", one("I32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", 4));
  std::string keys;
  for (int i = 0; i <= 65'536; ++i) keys += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
  add("65,537 metadata keys", "st.limit", safetensors("{\"__metadata__\":{" + keys + "}}"));

  // Layout.
  std::string ten = "{";
  for (char c = '0'; c <= '9'; ++c) {
    ten += (c > '0' ? "," : "") + tensor(std::string(1, c), "I32", "[2,2]", "[0,16]");
  }
  add("ten tensors in one place", "st.offset", safetensors(ten + "}", std::string(16, '\1')));
  add("hole at the start", "st.offset", one("I32", "[1]", "[4,8]", 8));
  add("hole between", "st.offset",
      safetensors(two_i32 + tensor("b", "I32", "[1]", "[8,12]") + "}", std::string(12, '\1')));
  add("overlap by one byte", "st.offset",
      safetensors(two_i32 + tensor("b", "I32", "[1]", "[3,7]") + "}", std::string(7, '\1')));
  add("one inside the other", "st.offset",
      safetensors(object(tensor("a", "U8", "[8]", "[0,8]"), tensor("b", "U8", "[2]", "[2,4]")),
                  std::string(8, '\1')));
  add("reversed", "st.offset", one("I32", "[1]", "[4,0]", 4));
  add("reversed to a huge begin", "st.offset", one("I32", "[1]", "[18446744073709551615,3]", 4));
  add("empty tensor inside another", "st.offset",
      safetensors(object(tensor("a", "U8", "[8]", "[0,8]"), tensor("b", "U8", "[0]", "[4,4]")),
                  std::string(8, '\1')));
  add("empty tensor past the end", "st.offset", one("I32", "[0]", "[4,4]", 4));
  add("offset before overflow", "st.offset", one("I32", "[2,18446744073709551614]", "[4,8]", 8));

  add("shape product overflows", "st.overflow",
      one("I32", "[2,18446744073709551614]", "[0,16]", 16));
  add("bits overflow", "st.overflow", one("I32", "[2,9223372036854775807]", "[0,16]", 16));
  add("product overflows to zero", "st.overflow", one("U8", "[4294967296,4294967296]", "[0,0]"));
  add("bits overflow to four bytes", "st.overflow", one("F4", "[4611686018427387912]", "[0,4]", 4));
  add("overflow before a zero", "st.overflow",
      one("U8", "[9223372036854775807,9223372036854775807,0]", "[0,0]"));
  add("dimension above 2^63", "st.overflow", one("U8", "[9223372036854775808]", "[0,0]"));
  add("bytes fit, bits do not", "st.overflow",
      one("U8", "[2305843009213693952]", "[0,2305843009213693952]"));

  add("three of F4", "st.misaligned", one("F4", "[3]", "[0,2]", 2));
  add("one of F6_E2M3", "st.misaligned", one("F6_E2M3", "[1]", "[0,1]", 1));
  add("six of F6_E3M2", "st.misaligned", one("F6_E3M2", "[2,3]", "[0,5]", 5));

  add("shape larger than its bytes", "st.size_mismatch", one("I32", "[2,2]", "[0,4]", 4));
  add("shape smaller than its bytes", "st.size_mismatch", one("I32", "[1]", "[0,8]", 8));
  add("empty tensor with bytes", "st.size_mismatch", one("I32", "[0]", "[0,4]", 4));
  add("scalar without bytes", "st.size_mismatch", one("I32", "[]", "[0,0]"));
  add("half of the element size", "st.size_mismatch", one("F64", "[2]", "[0,8]", 8));

  add("one byte too many", "st.trailing", good + "x");
  add("a second file behind", "st.trailing", good + good);
  add("data without tensors", "st.trailing", safetensors("{}", "x"));
  add("data behind empty tensors", "st.trailing", one("I32", "[0,5]", "[0,0]", 1));
  add("two bytes missing", "st.truncated", good.substr(0, good.size() - 2));
  add("all data missing", "st.truncated", good.substr(0, good.size() - 4));
  add("end near 2^60", "st.truncated",
      one("U8", "[1152921504606846976]", "[0,1152921504606846976]", 16));
  return files;
}

}  // namespace ballast::test
