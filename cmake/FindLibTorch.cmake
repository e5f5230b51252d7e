# LibTorch as one imported target, torch::torch.
#
# LibTorch's own CMake package demands a CUDA toolkit even for a CPU build and fails with recent ones on a machine without
# a GPU, so the libraries are named here. Looked for in LIBTORCH_ROOT (cache or environment), .deps/torch, CMAKE_PREFIX_PATH.
# With PALIMPSEST_CUDA the CUDA half is linked too.

find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h
  HINTS ${LIBTORCH_ROOT} $ENV{LIBTORCH_ROOT} ${CMAKE_SOURCE_DIR}/.deps/torch/torch
  PATH_SUFFIXES include)
get_filename_component(LibTorch_ROOT_DIR "${LibTorch_INCLUDE_DIR}" DIRECTORY)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${LibTorch_ROOT_DIR}/lib)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${LibTorch_ROOT_DIR}/lib)
set(libraries LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)
if(PALIMPSEST_CUDA)
  find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS ${LibTorch_ROOT_DIR}/lib)
  find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS ${LibTorch_ROOT_DIR}/lib)
  list(APPEND libraries LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS ${libraries} LibTorch_INCLUDE_DIR)

if(LibTorch_FOUND AND NOT TARGET torch::torch)
  add_library(torch::torch INTERFACE IMPORTED)
  # Behind the system's folders: the wheel bundles protobuf's headers, which would shadow the installed ones.
  target_compile_options(torch::torch INTERFACE
    "SHELL:-idirafter ${LibTorch_INCLUDE_DIR}"
    "SHELL:-idirafter ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  target_link_libraries(torch::torch INTERFACE ${LibTorch_CPU_LIBRARY} ${LibTorch_C10_LIBRARY})
  # at::parallel_for is a header template and is serial without OpenMP. By its flag, not by OpenMP::OpenMP_CXX, which
  # names the compiler's libgomp where the wheel's own, beside libtorch_cpu, is the one that gets loaded.
  target_compile_options(torch::torch INTERFACE ${OpenMP_CXX_FLAGS})
  target_link_options(torch::torch INTERFACE ${OpenMP_CXX_FLAGS}
    "LINKER:-rpath,${LibTorch_ROOT_DIR}/lib" "LINKER:--allow-shlib-undefined")
  if(PALIMPSEST_CUDA)
    target_link_libraries(torch::torch INTERFACE ${LibTorch_C10_CUDA_LIBRARY} CUDA::cudart)
    if(EXISTS ${LibTorch_ROOT_DIR}/../nvidia/cudnn OR EXISTS ${LibTorch_ROOT_DIR}/lib/libcudnn.so.9)
      set(LibTorch_HAS_CUDA_HALF TRUE)
      # Nothing refers to the CUDA half by symbol: it registers its kernels when loaded.
      target_link_options(torch::torch INTERFACE
        "LINKER:--no-as-needed,${LibTorch_CUDA_LIBRARY},--as-needed")
    else()
      message(NOTICE "LibTorch at ${LibTorch_ROOT_DIR} is the CPU set-up, without the libraries that its CUDA half loads: "
        "this builds everything, but the programs will find no device. ./dev setup takes the whole LibTorch where there "
        "is an NVIDIA driver.")
    endif()
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR ${libraries})
