// Errors and the guess at what a person meant.
//
// The guess is the optimal string alignment distance (Damerau's edits, each place edited once):
// dynamic programming over two words, O(length * length) in time, three rows in memory. A typing
// slip is one edit: a letter too many, too few, wrong, or two neighbours swapped.
#include "sim/base/error.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

namespace stepcast {
namespace {

// ASCII only, and deaf to the locale: names and units are ASCII.
std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::size_t common_prefix(std::string_view a, std::string_view b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(ends.first - a.begin());
}

}  // namespace

namespace {

// Input may hold anything; what is printed of it must not end a line early or move a terminal.
std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

}  // namespace

Error::Error(std::string_view where, std::string_view what)
    : std::runtime_error(where.empty() ? printable(what)
                                       : fmt::format("{}: {}", printable(where), printable(what))),
      where_(where),
      message_(what) {}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string lower_word = lower_case(word);
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);

  // Of two that are equally near, the one that begins alike ("80 G" is GB rather than B), then the
  // one whose case is nearer ("gb/s" is Gb/s rather than GB/s), then the earlier.
  using Rank = std::tuple<std::size_t, std::size_t, std::size_t>;
  Rank best_rank;
  const std::string* best = nullptr;
  for (const std::string& candidate : candidates) {
    const std::size_t shorter = std::min(word.size(), candidate.size());
    const std::size_t longer = std::max(word.size(), candidate.size());
    if (longer - shorter > limit) continue;  // the distance is at least this
    const std::string lower_candidate = lower_case(candidate);
    const std::size_t distance = edit_distance(lower_word, lower_candidate);
    if (distance > limit) continue;
    const Rank rank{distance, word.size() - common_prefix(lower_word, lower_candidate),
                    edit_distance(word, candidate)};
    if (best == nullptr || rank < best_rank) {
      best = &candidate;
      best_rank = rank;
    }
  }
  return best == nullptr ? std::string() : *best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(word, candidates);
  return nearest.empty() ? std::string() : fmt::format(" (did you mean \"{}\"?)", nearest);
}

void check_failed(const char* condition, const char* file, int line, std::string_view message) {
  // No allocation: memory itself may be what is broken.
  std::fprintf(stderr, "stepcast: internal error at %s:%d: %.*s (check failed: %s)\n", file, line,
               static_cast<int>(message.size()), message.data(), condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace stepcast
