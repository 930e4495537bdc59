// The shipped profile is found by the device's own name, so a device file of a user's that bears
// the name of a shipped one is taken to be of the same silicon.
#include "tools/whatif/devices.h"

#include <algorithm>

#include "tools/base/files.h"

namespace stepcast {

Device load_device(const std::string& file, const Profile* profile) {
  Device device = read_device(parse_json(read_file(file), file));
  const std::vector<std::string> shipped = config_names("profiles");
  if (std::find(shipped.begin(), shipped.end(), device.name) != shipped.end()) {
    const std::string path = find_config("profiles", device.name, file);
    const Profile own = read_profile(parse_json(read_file(path), path));
    check_device(own, device.name, path);
    use_kernels(own, device);
  }
  if (profile != nullptr && profile->device == device.name) use_kernels(*profile, device);
  return device;
}

}  // namespace stepcast
