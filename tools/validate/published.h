// Published runs: the facts of public training runs as this project keeps them under
// configs/published, one file for each group of a source.
//
//   { "format": "stepcast.published/1", "group": "sc21",
//     "left_out": [{"rows": 7, "because": "its source has not been checked"}],
//     "shared": {"hardware.gpu": "A100-80GB-SXM", ...},     // facts of every row
//     "columns": ["id", "model.layers", ...],               // facts of most rows
//     "rows": [["sc21-t1-1.7b", 24, ..., {"model.vocab": 51200}], ...] }
//
// A fact's name is the path of its field in a row as `stepcast validate` reads it (validate.h), so
// a file expands to just those rows. null, or nothing: the source does not state it. The last
// element of a row, an object, holds what few rows have. Memory is in GiB, MiB or bytes as the name
// says, times are in seconds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "tools/validate/validate.h"

namespace stepcast {

// The rows that the file holds; each one's place is FILE:LINE. Throws Error for a name that is no
// fact, a value of another type, a fact told twice, a row without an id, a source, a GPU or a
// measurement, and an id that stands twice.
std::vector<PlacedRow> read_published(std::string_view text, const std::string& file);

// All files of configs/published, by name. Throws Error as read_published(), and where a file's
// name is not its group's.
std::vector<PlacedRow> shipped_runs();

// How many rows of a group are no evidence, by reason.
struct LeftOut {
  std::string group, because;
  int rows = 0;
};
std::vector<LeftOut> shipped_left_out();

// Runs in the form of JSON lines, as a file each. What is no evidence (doubt() in rows.cc)
// is counted and left out; of the rest only facts are taken.
struct PublishedGroup {
  std::string group;
  std::string text;                       // the file
  int rows = 0, left_out = 0;
};
struct Published {
  std::vector<PublishedGroup> groups;     // sorted by name
  std::vector<std::string> not_taken;     // fields that are no facts, sorted
};
Published publish(const std::vector<PlacedRow>& rows);

}  // namespace stepcast
