# The libraries that the project stands on, each as an imported target.
#
# All that is missing is reported at once, by the names of packages.txt, and written to missing.txt in the build
# folder, from which ./dev installs.

set(PALIMPSEST_MISSING "")

macro(palimpsest_need name)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    list(APPEND PALIMPSEST_MISSING ${name})
  endif()
endmacro()

# A library without a CMake package of its own that works for every version we support.
function(palimpsest_need_library name target library header)
  find_library(${name}_LIBRARY ${library})
  find_path(${name}_INCLUDE_DIR ${header})
  if(${name}_LIBRARY AND ${name}_INCLUDE_DIR)
    add_library(${target} UNKNOWN IMPORTED)
    set_target_properties(${target} PROPERTIES
      IMPORTED_LOCATION ${${name}_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${${name}_INCLUDE_DIR})
  else()
    set(PALIMPSEST_MISSING ${PALIMPSEST_MISSING} ${name} PARENT_SCOPE)
  endif()
endfunction()

# Headers of what LibTorch itself contains.
function(palimpsest_need_headers name target header)
  find_path(${name}_INCLUDE_DIR ${header})
  if(${name}_INCLUDE_DIR)
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} INTERFACE ${${name}_INCLUDE_DIR})
  else()
    set(PALIMPSEST_MISSING ${PALIMPSEST_MISSING} ${name} PARENT_SCOPE)
  endif()
endfunction()

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
palimpsest_need(Protobuf)
palimpsest_need(yaml-cpp)
palimpsest_need(nlohmann_json)
palimpsest_need(CLI11)
palimpsest_need(fmt)
palimpsest_need(spdlog)
palimpsest_need_library(oneDNN dnnl::dnnl dnnl oneapi/dnnl/dnnl.hpp)
palimpsest_need_library(Highway hwy::hwy hwy hwy/highway.h)
palimpsest_need_library(xxHash xxhash::xxhash xxhash xxhash.h)
palimpsest_need_library(PCRE2 pcre2::pcre2 pcre2-8 pcre2.h)
palimpsest_need_library(utf8proc utf8proc::utf8proc utf8proc utf8proc.h)
palimpsest_need_headers(Gloo gloo::headers gloo/context.h)
if(PALIMPSEST_BUILD_TESTS)
  palimpsest_need(GTest)
  palimpsest_need(benchmark)
endif()
if(PALIMPSEST_CUDA)
  palimpsest_need(CUDAToolkit)
endif()
palimpsest_need(LibTorch)

if(yaml-cpp_FOUND AND NOT TARGET yaml-cpp::yaml-cpp)
  # Debian's exports a name without a namespace.
  add_library(yaml-cpp::yaml-cpp INTERFACE IMPORTED)
  target_link_libraries(yaml-cpp::yaml-cpp INTERFACE yaml-cpp)
endif()

# Optional: without it the ranks that an MPI launcher starts meet over TCP.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS CXX)

# Optional: without it tensors on CUDA devices are for one rank only. LibTorch's CUDA packages bring its headers.
set(NCCL_FOUND FALSE)
if(PALIMPSEST_CUDA AND LibTorch_FOUND)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${LibTorch_ROOT_DIR}/../nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS})
  if(NCCL_INCLUDE_DIR)
    set(NCCL_FOUND TRUE)
    add_library(nccl::headers INTERFACE IMPORTED)
    target_include_directories(nccl::headers INTERFACE ${NCCL_INCLUDE_DIR})
  endif()
endif()

set(install ${PALIMPSEST_MISSING})
if(install AND NOT MPI_FOUND)
  list(APPEND install MPI) # comes along where something must be installed anyway
endif()
string(REPLACE ";" "\n" lines "${install}")
file(WRITE ${CMAKE_BINARY_DIR}/missing.txt "${lines}")
if(PALIMPSEST_MISSING)
  string(REPLACE ";" ", " names "${PALIMPSEST_MISSING}")
  message(FATAL_ERROR "Missing: ${names}. Run ./dev setup, or install the packages that "
    "cmake/packages.txt names; CMAKE_PREFIX_PATH and LIBTORCH_ROOT say where else to look.")
endif()
