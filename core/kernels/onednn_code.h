#pragma once

// Room for the machine code that oneDNN writes at run time. It does not look whether it got the
// memory: where address space has ended (ulimit -v) it dies by a signal, so what makes it write
// code asks here before.
//
//   require_code_room();
//   compiled.primitive = dnnl::matmul(descriptor);
//
// Private to core/kernels.

namespace palimpsest::kernels::onednn {

/// Throws std::bad_alloc where the process cannot get several times what one product's code takes.
void require_code_room();

/// Lets dnnl_sgemm write all the code that it will ever use, once for the process; the same error.
void prepare_sgemm();

} // namespace palimpsest::kernels::onednn
