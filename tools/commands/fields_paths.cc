// How the paths of the table nest, and its lists of words.
#include <algorithm>
#include <iterator>

#include "tools/commands/fields.h"

namespace stepcast {

std::string_view last_component(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::vector<Field> children(const std::vector<Field>& fields, const Field& parent) {
  std::vector<Field> found;
  std::copy_if(fields.begin(), fields.end(), std::back_inserter(found), [&](const Field& f) {
    if (f.topic != parent.topic || !f.path.starts_with(parent.path)) return false;
    std::string_view rest = f.path.substr(parent.path.size());
    if (rest.starts_with("[]")) rest.remove_prefix(2);
    return rest.starts_with('.') && rest.find('.', 1) == std::string_view::npos;
  });
  return found;
}

std::vector<std::string> split_words(std::string_view words) {
  std::vector<std::string> list;
  for (std::size_t at = 0; at < words.size();) {
    const std::size_t end = std::min(words.find(' ', at), words.size());
    list.emplace_back(words.substr(at, end - at));
    at = end + 1;
  }
  return list;
}

}  // namespace stepcast
