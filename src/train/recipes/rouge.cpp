#include "train/recipes/rouge.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ballast::train {
namespace {

using Words = std::vector<std::uint32_t>;  // numbers of words, the same for the same

// Gives equal words equal numbers.
class Numbering {
 public:
  Words words(std::string_view text) {
    Words all;
    std::string word;
    const auto end = [&] {
      if (word.empty()) return;
      const auto number = static_cast<std::uint32_t>(numbers_.size());
      all.push_back(numbers_.try_emplace(std::move(word), number).first->second);
      word.clear();
    };
    for (char c : text) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
        word += c;
      } else {
        end();
      }
    }
    end();
    return all;
  }

 private:
  std::map<std::string, std::uint32_t> numbers_;
};

double f1(double hits, double written, double wanted) {
  if (hits == 0) return 0;  // also where one of them is empty
  const double p = hits / written, r = hits / wanted;
  return 2 * p * r / (p + r);
}

double f1_of_neighbours(const Words& wanted, const Words& written, std::size_t n) {
  const auto counted = [n](const Words& w) {
    std::map<Words, std::int64_t> counts;
    for (std::size_t i = 0; i + n <= w.size(); ++i) {
      ++counts[Words(w.begin() + static_cast<std::ptrdiff_t>(i),
                     w.begin() + static_cast<std::ptrdiff_t>(i + n))];
    }
    return counts;
  };
  const auto a = counted(wanted), b = counted(written);
  std::int64_t hits = 0, in_a = 0, in_b = 0;
  for (const auto& [words, count] : a) {
    const auto found = b.find(words);
    if (found != b.end()) hits += std::min(count, found->second);
    in_a += count;
  }
  for (const auto& [words, count] : b) in_b += count;
  return f1(static_cast<double>(hits), static_cast<double>(in_b), static_cast<double>(in_a));
}

// lengths[i][j]: of the longest common subsequence of the first i and the first j words.
std::vector<std::vector<std::uint32_t>> common_lengths(const Words& a, const Words& b) {
  std::vector<std::vector<std::uint32_t>> t(a.size() + 1, std::vector<std::uint32_t>(b.size() + 1));
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      t[i][j] = a[i - 1] == b[j - 1] ? t[i - 1][j - 1] + 1 : std::max(t[i - 1][j], t[i][j - 1]);
    }
  }
  return t;
}

// Marks the words of `a` that are in the common subsequence; of several the one that
// rouge_score walks back to.
void mark_common(const Words& a, const Words& b, std::vector<bool>& marked) {
  const auto t = common_lengths(a, b);
  for (std::size_t i = a.size(), j = b.size(); i > 0 && j > 0;) {
    if (a[i - 1] == b[j - 1]) {
      marked[i - 1] = true;
      --i, --j;
    } else if (t[i][j - 1] > t[i - 1][j]) {
      --j;
    } else {
      --i;
    }
  }
}

std::vector<Words> lines_of(Numbering& numbering, std::string_view text) {
  std::vector<Words> all;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    all.push_back(numbering.words(text.substr(at, end - at)));
    at = end + 1;
  }
  return all;
}

double f1_of_lines(const std::vector<Words>& wanted, const std::vector<Words>& written) {
  const auto counted = [](const std::vector<Words>& lines, std::map<std::uint32_t, int>& counts) {
    std::size_t all = 0;
    for (const Words& w : lines) {
      for (const std::uint32_t word : w) ++counts[word];
      all += w.size();
    }
    return static_cast<double>(all);
  };
  std::map<std::uint32_t, int> left_a, left_b;
  const double in_a = counted(wanted, left_a), in_b = counted(written, left_b);
  double hits = 0;
  for (const Words& line : wanted) {
    std::vector<bool> marked(line.size(), false);
    for (const Words& other : written) mark_common(line, other, marked);
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (!marked[i] || left_a[line[i]] == 0 || left_b[line[i]] == 0) continue;
      --left_a[line[i]], --left_b[line[i]];
      hits += 1;
    }
  }
  return f1(hits, in_b, in_a);
}

}  // namespace

Rouge rouge(std::string_view wanted, std::string_view written) {
  Numbering numbering;
  const Words a = numbering.words(wanted), b = numbering.words(written);
  const double common = common_lengths(a, b)[a.size()][b.size()];
  return {.rouge1 = f1_of_neighbours(a, b, 1),
          .rouge2 = f1_of_neighbours(a, b, 2),
          .rouge_l = f1(common, static_cast<double>(b.size()), static_cast<double>(a.size())),
          .rouge_lsum = f1_of_lines(lines_of(numbering, wanted), lines_of(numbering, written))};
}

void MeanRouge::add(const Rouge& r) {
  sum_.rouge1 += r.rouge1;
  sum_.rouge2 += r.rouge2;
  sum_.rouge_l += r.rouge_l;
  sum_.rouge_lsum += r.rouge_lsum;
  ++count_;
}

Rouge MeanRouge::mean() const {
  Rouge m = sum_;
  Rouge::each(m, [&](const char*, double& x) { x = count_ > 0 ? x / count_ : 0; });
  return m;
}

}  // namespace ballast::train
