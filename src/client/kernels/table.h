#pragma once

#include <ATen/core/operator_name.h>
#include <c10/util/ArrayRef.h>

#include "client/kernels/boxed.h"

namespace torch_remote::client::kernels {

c10::ArrayRef<KernelRow> kernel_rows();

// The kernel for dense tensors, if we have one. Null: dispatch() or PyTorch's composition.
Kernel find_kernel(const c10::OperatorName& operation);

// sparse.cpp: registers what to do with sparse tensors, for an operator that PyTorch has a kernel
// of for them on the CPU: COO (SparseCPU) and the compressed layouts (SparseCsrCPU).
void register_coo(torch::Library& library, const c10::OperatorHandle& operation, const char* name);
void register_compressed(torch::Library& library, const c10::OperatorHandle& operation,
                         const char* name);

// autocast.cpp: registers what `torch.autocast("remote")` does: the casts of
// `torch.autocast("cuda")`. `library` is one for aten at AutocastPrivateUse1.
void register_autocast(torch::Library& library);

}  // namespace torch_remote::client::kernels
