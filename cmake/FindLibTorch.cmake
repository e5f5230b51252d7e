# LibTorch as one imported target, torch::torch.
#
# LibTorch's own CMake package demands a CUDA toolkit even for a CPU build and fails with recent ones on a machine without
# a GPU, so the libraries are named here. Looked for in LIBTORCH_ROOT (cache or environment), .deps/torch, CMAKE_PREFIX_PATH.

find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h
  HINTS ${LIBTORCH_ROOT} $ENV{LIBTORCH_ROOT} ${CMAKE_SOURCE_DIR}/.deps/torch/torch
  PATH_SUFFIXES include)
get_filename_component(LibTorch_ROOT_DIR ${LibTorch_INCLUDE_DIR} DIRECTORY)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${LibTorch_ROOT_DIR}/lib)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${LibTorch_ROOT_DIR}/lib)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS
  LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR)

if(LibTorch_FOUND AND NOT TARGET torch::torch)
  add_library(torch::torch INTERFACE IMPORTED)
  # Behind the system's folders: the wheel bundles protobuf's headers, which would shadow the installed ones.
  target_compile_options(torch::torch INTERFACE
    "SHELL:-idirafter ${LibTorch_INCLUDE_DIR}"
    "SHELL:-idirafter ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  # at::parallel_for is a header template and is serial without OpenMP.
  target_link_libraries(torch::torch INTERFACE ${LibTorch_CPU_LIBRARY} ${LibTorch_C10_LIBRARY} OpenMP::OpenMP_CXX)
  target_link_options(torch::torch INTERFACE "LINKER:-rpath,${LibTorch_ROOT_DIR}/lib" "LINKER:--allow-shlib-undefined")
endif()
