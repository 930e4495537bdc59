// Errors: three kinds of trouble, told apart.
//   * The world is wrong (a file, a flag, a layout that is not legal): throw Error at the edge.
//     It is caught once, in main, printed as one line and ends the process with exit code 2.
//   * The program is wrong: STEPCAST_CHECK, in every build, aborts with the place.
//   * The answer is unwelcome (it does not fit): a value in the result, never an exception.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stepcast {

// `where` names the file, line and key ("plan.json:7: parallel.tensor"), `what` the trouble and
// its cure ("32 heads cannot be divided by 5; use 1, 2, 4, 8, 16 or 32").
class Error : public std::runtime_error {
 public:
  Error(std::string_view where, std::string_view what);
  const std::string& where() const { return where_; }
  const std::string& message() const { return message_; }

 private:
  std::string where_;
  std::string message_;
};

// The candidate that a person most likely meant by `word`, or "" where none is near: smallest edit
// distance (insert, delete, replace, swap of neighbours), at most a third of the word's length
// (at least 1), ignoring case.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

// " (did you mean \"x\"?)" for the nearest candidate, else "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               std::string_view message);

}  // namespace stepcast

// An invariant of this program, not of its input. Stays on in release builds.
#define STEPCAST_CHECK(condition, message)                                      \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::stepcast::check_failed(#condition, __FILE__, __LINE__, (message));      \
  } while (false)
