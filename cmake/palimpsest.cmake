# The build's vocabulary: one line per folder.
#
#   palimpsest_library(core/plan DEPENDS core/base)       every *.cc of the folder -> target palimpsest_core_plan
#   palimpsest_test(core/plan DEPENDS memory/recompute)   every *.cc of tests/core/plan -> bin/test_core_plan, a ctest
#   palimpsest_benchmark(core/plan DEPENDS core/plan)     every *.cc of benchmarks/core/plan -> bin/bench_core_plan
#
# DEPENDS takes folders or targets; they are public, so a folder names only what its own headers and sources include.
# A library adds with SOURCES what lies elsewhere (generated code), and drops with EXCLUDE what a machine cannot build.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Assertions that guard our own invariants stay on in every build type.
string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")

if(PALIMPSEST_SANITIZE)
  add_compile_options(-fsanitize=${PALIMPSEST_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${PALIMPSEST_SANITIZE})
endif()

find_program(CCACHE ccache)
mark_as_advanced(CCACHE)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# Every include reads <palimpsest/core/plan/op.h>, from the source tree as from an installed one.
# One link for all build folders: the compiler cache then knows a source in each of them.
set(PALIMPSEST_INCLUDE ${CMAKE_SOURCE_DIR}/build/include)
file(MAKE_DIRECTORY ${PALIMPSEST_INCLUDE})
file(CREATE_LINK ${CMAKE_SOURCE_DIR} ${PALIMPSEST_INCLUDE}/palimpsest SYMBOLIC)

# A designated initialiser leaves the rest at its defaults on purpose. g++ 12 sees overlaps and overflows in its own
# std::string and in fmt that are not there (GCC bugs 105329, 105651).
set(PALIMPSEST_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers -Wno-restrict -Wno-stringop-overflow)

function(palimpsest_target_name folder out)
  if(TARGET ${folder} OR folder MATCHES "::")
    set(${out} ${folder} PARENT_SCOPE)
  else()
    string(REPLACE "/" "_" name ${folder})
    set(${out} palimpsest_${name} PARENT_SCOPE)
  endif()
endfunction()

function(palimpsest_link target scope)
  foreach(dependency IN LISTS ARGN)
    palimpsest_target_name(${dependency} name)
    target_link_libraries(${target} ${scope} ${name})
  endforeach()
endfunction()

function(palimpsest_library folder)
  cmake_parse_arguments(ARG "" "" "DEPENDS;EXCLUDE;SOURCES" ${ARGN})
  palimpsest_target_name(${folder} target)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  foreach(name IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources ${CMAKE_SOURCE_DIR}/${folder}/${name})
  endforeach()
  list(APPEND sources ${ARG_SOURCES})
  if(sources)
    add_library(${target} STATIC ${sources})
    target_compile_options(${target} PRIVATE ${PALIMPSEST_WARNINGS})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${PALIMPSEST_INCLUDE}> $<INSTALL_INTERFACE:include>)
  palimpsest_link(${target} ${scope} ${ARG_DEPENDS})
  set(generated ${ARG_SOURCES})
  list(FILTER generated INCLUDE REGEX "\\.pb\\.cc$")
  if(generated)
    target_include_directories(${target} SYSTEM PUBLIC $<BUILD_INTERFACE:${PALIMPSEST_GENERATED}>)
    set_source_files_properties(${generated} PROPERTIES COMPILE_OPTIONS -w)
  endif()
  set_property(GLOBAL APPEND PROPERTY PALIMPSEST_LIBRARIES ${target})
endfunction()

# Generates C++ from a folder's NAME.proto; `out` gets the sources for palimpsest_library(... SOURCES). Headers are
# included like any other, from a second include root beside the source link.
set(PALIMPSEST_GENERATED ${CMAKE_BINARY_DIR}/generated)
function(palimpsest_protos folder out)
  set(made "")
  set(schemas "")
  set(imports "")
  foreach(name IN LISTS ARGN)
    list(APPEND schemas ${CMAKE_SOURCE_DIR}/${folder}/${name}.proto)
    list(APPEND imports palimpsest/${folder}/${name}.proto)
    list(APPEND made ${PALIMPSEST_GENERATED}/palimpsest/${folder}/${name}.pb.cc
      ${PALIMPSEST_GENERATED}/palimpsest/${folder}/${name}.pb.h)
  endforeach()
  file(MAKE_DIRECTORY ${PALIMPSEST_GENERATED})
  add_custom_command(
    OUTPUT ${made}
    COMMAND protobuf::protoc --proto_path=${PALIMPSEST_INCLUDE} --proto_path=${Protobuf_INCLUDE_DIRS}
            --cpp_out=${PALIMPSEST_GENERATED} ${imports}
    DEPENDS ${schemas}
    VERBATIM)
  set(${out} ${made} PARENT_SCOPE)
endfunction()

function(palimpsest_executable target folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  add_executable(${target} ${sources})
  target_compile_options(${target} PRIVATE ${PALIMPSEST_WARNINGS})
  palimpsest_link(${target} PRIVATE ${ARGN})
endfunction()

# Whether a target reaches LibTorch: such programs run under the leak checker of no sanitizer, and outside TSan.
function(palimpsest_uses_libtorch target out)
  set(seen "")
  set(open ${target})
  while(open)
    list(POP_FRONT open next)
    if(NOT TARGET ${next} OR next IN_LIST seen)
      continue()
    endif()
    list(APPEND seen ${next})
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(linked ${next} ${property})
      if(linked)
        list(APPEND open ${linked})
      endif()
    endforeach()
  endwhile()
  if("torch::torch" IN_LIST seen)
    set(${out} TRUE PARENT_SCOPE)
  else()
    set(${out} FALSE PARENT_SCOPE)
  endif()
endfunction()

# RUNS names a program that the test starts: it is built before, and counts as what the test links.
function(palimpsest_test folder)
  cmake_parse_arguments(ARG "" "TIMEOUT;RUNS" "DEPENDS" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  set(target test_${name})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cc)
  if(NOT sources)
    message(WARNING "tests/${folder} has no *.cc yet: no test of that name")
    return()
  endif()
  palimpsest_executable(${target} tests/${folder} ${ARG_DEPENDS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE PALIMPSEST_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_test(NAME ${name} COMMAND ${target})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  if(ARG_RUNS)
    add_dependencies(${target} ${ARG_RUNS})
    palimpsest_uses_libtorch(${ARG_RUNS} uses_libtorch)
  else()
    palimpsest_uses_libtorch(${target} uses_libtorch)
  endif()
  if(uses_libtorch)
    set_tests_properties(${name} PROPERTIES LABELS libtorch ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
  else()
    add_dependencies(tests_without_libtorch ${target})
  endif()
endfunction()
add_custom_target(tests_without_libtorch)

function(palimpsest_benchmark folder)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  palimpsest_executable(bench_${name} benchmarks/${folder} ${ARG_DEPENDS} benchmark::benchmark_main)
  add_dependencies(benchmarks bench_${name})
endfunction()
add_custom_target(benchmarks)
