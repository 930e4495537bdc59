// What a framework's software makes of a device: the keys "fusion" and "host" of a what-if, and
// what the plan asks of the device's kernels.
#pragma once

#include "models/plan.h"
#include "sim/base/json.h"
#include "sim/hardware/hardware.h"
#include "sim/hardware/profile.h"

namespace stepcast {

// Reads "fusion" and "host" into the device; `profile` may be null. Throws Error at the key's
// place.
void read_software(const Object& root, const Profile* profile, Device& device);
// The two sections again, with every default.
Json write_software(const Device& device);

// Plan and device made to suit each other: whose kernels the loss is, what is filled before it is
// written, which copies of 8-bit operands are kept. Throws Error where they cannot.
void suit_device(const Object& root, const Model& model, Plan& plan, Device& device);

}  // namespace stepcast
