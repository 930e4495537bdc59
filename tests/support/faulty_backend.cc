// What goes wrong goes wrong once, on the thread that came for the kernel.
#include "tests/support/faulty_backend.h"

#include <chrono>
#include <csignal>
#include <limits>
#include <thread>
#include <utility>

#include "sim/base/error.h"

namespace stepcast {

namespace {

class FaultyBackend final : public Backend {
 public:
  FaultyBackend(std::unique_ptr<Backend> inner, Fault fault, int kernel)
      : inner_(std::move(inner)), fault_(fault), left_(kernel) {}

  void compute(const Work& work) override {
    inner_->compute(work);
    if (left_-- != 0) return;
    switch (fault_) {
      case Fault::kNone: return;
      case Fault::kNan:
        static_cast<float*>(work.writes[0].data)[work.writes[0].tensor->shape.elements() / 2] =
            std::numeric_limits<float>::quiet_NaN();
        return;
      case Fault::kHang:
        for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
      case Fault::kDie: std::raise(SIGKILL);
    }
  }
  double squared_norm(const float* values, std::int64_t elements) override {
    return inner_->squared_norm(values, elements);
  }
  void update(const StateRange& range, const AdamW& options, std::int64_t step,
              double scale) override {
    inner_->update(range, options, step, scale);
  }

 private:
  std::unique_ptr<Backend> inner_;
  Fault fault_;
  int left_;
};

}  // namespace

Fault fault_named(std::string_view name) {
  if (name == "none") return Fault::kNone;
  if (name == "nan") return Fault::kNan;
  if (name == "hang") return Fault::kHang;
  STEPCAST_CHECK(name == "die", "none, nan, hang or die");
  return Fault::kDie;
}

std::unique_ptr<Backend> make_faulty_backend(std::unique_ptr<Backend> inner, Fault fault,
                                             int kernel) {
  return std::make_unique<FaultyBackend>(std::move(inner), fault, kernel);
}

}  // namespace stepcast
