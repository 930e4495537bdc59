// Devices as a forecast takes them: the data sheet's file and what was fitted to measured kernels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/hardware/hardware.h"
#include "sim/hardware/profile.h"

namespace stepcast {

// Reads a device file; then the kernels of the shipped profile of the device that has the same die
// (Device::die), if it names one; then those of its own shipped profile
// (configs/profiles/NAME.json, NAME being the device's), if there is one; then those of `profile`,
// if it is not null and has any. Throws Error, also for a profile of another device and a die
// without one.
Device load_device(const std::string& file, const Profile* profile = nullptr);

// The shipped profile that bears a device's name; none: there is none. Throws Error (place: the
// profile's file).
std::optional<Profile> shipped_profile(const std::string& device, const std::string& place);

// The shipped profiles whose kernels load_device() gives a device, the one that goes first first.
std::vector<std::string> profiles_of(const Device& device);

}  // namespace stepcast
