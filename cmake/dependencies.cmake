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

string(REPLACE ";" "\n" lines "${PALIMPSEST_MISSING}")
file(WRITE ${CMAKE_BINARY_DIR}/missing.txt "${lines}")
if(PALIMPSEST_MISSING)
  string(REPLACE ";" ", " names "${PALIMPSEST_MISSING}")
  message(FATAL_ERROR "Missing: ${names}. Run ./dev setup, or install the packages that "
    "cmake/packages.txt names; CMAKE_PREFIX_PATH and LIBTORCH_ROOT say where else to look.")
endif()
