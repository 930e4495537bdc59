// What a published run does that no forecast covers, whatever its model. Internal to
// `stepcast validate`.
#pragma once

#include "sim/base/json.h"

namespace stepcast {

// Throw Error (place: the row's field), which says what is not covered.
// Of how it trains: adapters, another optimizer than Adam, a host that waits for each kernel.
void refuse_software(const Json& row);
// Of where its work lies: offload to the host, context ranks in groups of two kinds.
void refuse_layout(const Json& row);

// Whether its context ranks, if it has some, share out heads (ContextExchange::kAllToAll).
bool shares_heads(const Json& row);

}  // namespace stepcast
