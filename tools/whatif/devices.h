// Devices as a forecast takes them: the data sheet's file and what was fitted to measured kernels.
#pragma once

#include <memory>
#include <string>

#include "sim/hardware/hardware.h"
#include "sim/hardware/profile.h"

namespace stepcast {

// Reads a device file; then the kernels of the shipped profile of that name
// (configs/profiles/NAME.json, NAME being the device's), if there is one; then those of `profile`,
// if it is not null and has any. Throws Error, also for a profile of another device.
Device load_device(const std::string& file, const Profile* profile = nullptr);

}  // namespace stepcast
