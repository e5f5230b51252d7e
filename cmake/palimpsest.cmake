# The build's vocabulary: one library per folder, one test binary per folder.
#
#   palimpsest_library(core/plan DEPENDS core/base)       every *.cc of the folder -> target palimpsest_core_plan
#   palimpsest_test(core/plan DEPENDS memory/recompute)   every *_test.cc of tests/core/plan -> test_core_plan
#
# DEPENDS takes folders or targets; they are public, so a folder names only what its own headers and sources include.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Assertions that guard our own invariants stay on in every build type.
string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# Every include reads <palimpsest/core/plan/op.h>, from the source tree as from an installed one.
set(PALIMPSEST_INCLUDE ${CMAKE_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${PALIMPSEST_INCLUDE})
file(CREATE_LINK ${CMAKE_SOURCE_DIR} ${PALIMPSEST_INCLUDE}/palimpsest SYMBOLIC)

set(PALIMPSEST_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)

function(palimpsest_target_name folder out)
  if(TARGET ${folder} OR folder MATCHES "::")
    set(${out} ${folder} PARENT_SCOPE)
  else()
    string(REPLACE "/" "_" name ${folder})
    set(${out} palimpsest_${name} PARENT_SCOPE)
  endif()
endfunction()

function(palimpsest_link target)
  foreach(dependency IN LISTS ARGN)
    palimpsest_target_name(${dependency} name)
    target_link_libraries(${target} PUBLIC ${name})
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
    target_include_directories(${target} PUBLIC ${PALIMPSEST_INCLUDE})
    palimpsest_link(${target} ${ARG_DEPENDS})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${PALIMPSEST_INCLUDE})
    foreach(dependency IN LISTS ARG_DEPENDS)
      palimpsest_target_name(${dependency} name)
      target_link_libraries(${target} INTERFACE ${name})
    endforeach()
  endif()
endfunction()

function(palimpsest_test folder)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPENDS" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  set(target test_${name})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cc)
  add_executable(${target} ${sources})
  target_compile_options(${target} PRIVATE ${PALIMPSEST_WARNINGS})
  target_compile_definitions(${target} PRIVATE PALIMPSEST_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  palimpsest_link(${target} ${ARG_DEPENDS} GTest::gmock GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_test(NAME ${name} COMMAND ${target})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
