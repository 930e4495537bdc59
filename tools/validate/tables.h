// Tables of validated rows, as cells: a terminal and a page show the same ones.
#pragma once

#include <string>
#include <vector>

#include "tools/validate/summary.h"
#include "tools/validate/validate.h"

namespace stepcast {

// The first row is the head; no other one: there is nothing to say.
struct ReportTable {
  std::string left;                            // as align() takes it
  std::vector<std::vector<std::string>> cells;

  bool empty() const { return cells.size() < 2; }
};

// `whole`: an order, and a line in which each summary weighs the same; one more of those that no
// shipped number was fitted to, where that is not all of them.
ReportTable runs_table(const std::string& title, std::vector<ValidationSummary> summaries,
                       bool whole);

// Of all runs, launch-bound ones too: bytes do not wait for the host.
ReportTable memory_table(const std::vector<ValidationRow>& rows);

// Where the forecast step goes.
ReportTable shares_table(const std::vector<ValidationSummary>& summaries);

// Orders of at least kCutShown plans for the same work; smaller cuts are in the JSON.
inline constexpr int kCutShown = 8;
ReportTable cuts_table(const std::vector<ValidationRow>& rows);

ReportTable misses_table(const std::vector<ValidationRow>& rows);
ReportTable worst_runs_table(const std::vector<ValidationRow>& rows);

// The `most` worst of each source, with their causes; wider than a terminal.
ReportTable worst_of_sources_table(const std::vector<ValidationRow>& rows, std::size_t most);

// Products, attention and collectives: by source, by size, and the worst.
ReportTable kernels_table(const std::vector<ValidationRow>& rows);
ReportTable sizes_table(const std::vector<ValidationRow>& rows);
ReportTable worst_kernels_table(const std::vector<ValidationRow>& rows);

// At most `most` lines, and one for the rest.
ReportTable uncovered_table(const std::vector<ValidationRow>& rows, std::size_t most);

}  // namespace stepcast
