// The shipped profile is found by the device's own name, so a device file of a user's that bears
// the name of a shipped one is taken to be of the same silicon; so is one that says "die".
#include "tools/whatif/devices.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/base/files.h"

namespace stepcast {
namespace {

bool is_shipped(const std::string& profile) {
  const std::vector<std::string> shipped = config_names("profiles");
  return std::find(shipped.begin(), shipped.end(), profile) != shipped.end();
}

void use_die_named(const std::string& place, Device& device) {
  const std::string file = find_config("devices", device.die, place);
  const Device die = read_device(parse_json(read_file(file), file));
  const std::optional<Profile> profile = shipped_profile(die.name, file);
  if (!profile) {
    throw Error(place, fmt::format("{} has no profile; name a device that has one (`stepcast list "
                                   "profiles`), or none",
                                   die.name));
  }
  use_die(*profile, die, device);
}

}  // namespace

std::optional<Profile> shipped_profile(const std::string& device, const std::string& place) {
  if (!is_shipped(device)) return std::nullopt;
  const std::string path = find_config("profiles", device, place);
  Profile profile = read_profile(parse_json(read_file(path), path));
  check_device(profile, device, path);
  return profile;
}

Device load_device(const std::string& file, const Profile* profile) {
  const Document document = parse_json(read_file(file), file);
  Device device = read_device(document);
  if (!device.die.empty()) use_die_named(Object(document).place("die"), device);
  if (const auto own = shipped_profile(device.name, file)) use_kernels(*own, device);
  if (profile != nullptr && profile->device == device.name) use_kernels(*profile, device);
  return device;
}

std::vector<std::string> profiles_of(const Device& device) {
  std::vector<std::string> profiles;
  if (is_shipped(device.name)) profiles.push_back(device.name);
  if (!device.die.empty()) profiles.push_back(device.die);
  return profiles;
}

}  // namespace stepcast
