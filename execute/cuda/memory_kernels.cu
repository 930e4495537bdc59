// Launches of all kernels but attention's: which ones, op_kernels.h says.
#include "execute/cuda/kernels.h"
#include "execute/cuda/launch.cuh"
#include "execute/cuda/op_kernels.h"

namespace stepcast::cuda {

namespace {

// Puts each kernel that it is called with onto a stream.
struct OnStream {
  cudaStream_t stream;
  template <class Kernel>
  void operator()(const Kernel& kernel) const {
    launch_kernel(kernel, stream);
  }
};

}  // namespace

void launch(const Norm& op, const Work& work, const Launch& at) {
  op_kernels(op, work, scratch_floats(at, norm_scratch_floats(op)), OnStream{at.stream});
}

void launch(const Pointwise& op, const Work& work, const Launch& at) {
  op_kernels(op, work, scratch_floats(at, pointwise_scratch_floats(op)), OnStream{at.stream});
}

void launch(const Gather& op, const Work& work, const Launch& at) {
  op_kernels(op, work, OnStream{at.stream});
}

void launch(const Loss& op, const Work& work, const Launch& at) {
  op_kernels(op, work, OnStream{at.stream});
}

void launch_column_sums(const Operand& d_y, std::int64_t rows, std::int64_t columns,
                        const Operand& sums, bool accumulate, const Launch& at) {
  column_sum_kernels(view(d_y), rows, columns, view(sums), accumulate,
                     scratch_floats(at, column_sum_floats(columns)), OnStream{at.stream});
}

void launch_squared_norm(const Numbers* stretches, int count, float* sum, const Launch& at) {
  if (count == 0) return;
  float* partials = scratch_floats(at, kSquaredNormFloats);
  int most = 1;
  for (int i = 0; i < count; ++i) {
    most = greater(most, SquaredNormPartials::blocks_of(stretches[i].elements));
  }
  for (int i = 0; i < count; ++i) {
    const ConstView x{stretches[i].data, storage_of(stretches[i].dtype)};
    const int blocks = i == 0 ? most : SquaredNormPartials::blocks_of(stretches[i].elements);
    launch_kernel(SquaredNormPartials{stretches[i].elements, x, i > 0, partials, blocks},
                  at.stream);
  }
  launch_kernel(SquaredNormTotal{partials, sum, most}, at.stream);
}

void launch_convert(const Numbers& in, void* out, Dtype dtype, const Launch& at) {
  ElementwiseKernel kernel;
  kernel.kind = Elementwise::kCopy;
  kernel.size = in.elements;
  kernel.a = {in.data, storage_of(in.dtype)};
  kernel.out = {out, storage_of(dtype)};
  launch_kernel(kernel, at.stream);
}

void launch_update(const UpdateStretch& stretch, const AdamW& options, const StepScalars* scalars,
                   const float* norm, const Launch& at) {
  static_assert(sizeof(StepScalars) == 2 * sizeof(float));
  AdamWKernel kernel;
  kernel.size = stretch.elements;
  kernel.weight = {stretch.weight, storage_of(stretch.weight_dtype)};
  kernel.master = {stretch.master, Storage::kFp32};
  kernel.gradient = {stretch.gradient, storage_of(stretch.gradient_dtype)};
  kernel.moment1 = {stretch.moment1, storage_of(stretch.moment_dtype)};
  kernel.moment2 = {stretch.moment2, storage_of(stretch.moment_dtype)};
  kernel.options(options);
  kernel.corrections = &scalars->correction1;
  kernel.squared_norm = norm;
  launch_kernel(kernel, at.stream);
}

}  // namespace stepcast::cuda
