# The installed tree: bin/palimpsest, lib/, include/palimpsest/… as in the source tree, and a CMake package:
#
#   find_package(palimpsest REQUIRED)
#   target_link_libraries(app palimpsest::palimpsest)     # every folder; or one: palimpsest::palimpsest_core_plan

include(GNUInstallDirs)
get_property(libraries GLOBAL PROPERTY PALIMPSEST_LIBRARIES)
add_library(palimpsest_all INTERFACE)
set_target_properties(palimpsest_all PROPERTIES EXPORT_NAME palimpsest)
target_link_libraries(palimpsest_all INTERFACE ${libraries})

install(DIRECTORY ${CMAKE_BINARY_DIR}/generated/palimpsest DESTINATION include OPTIONAL FILES_MATCHING PATTERN *.h)

install(TARGETS ${libraries} palimpsest_all EXPORT palimpsest)
install(EXPORT palimpsest NAMESPACE palimpsest:: FILE targets.cmake DESTINATION lib/cmake/palimpsest)
configure_file(cmake/palimpsest-config.cmake.in cmake/palimpsest-config.cmake @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/cmake/palimpsest-config.cmake cmake/dependencies.cmake cmake/FindLibTorch.cmake
  DESTINATION lib/cmake/palimpsest)
foreach(folder IN ITEMS core parallel memory offload launcher)
  install(DIRECTORY ${folder} DESTINATION include/palimpsest FILES_MATCHING PATTERN *.h)
endforeach()
if(EXISTS ${CMAKE_SOURCE_DIR}/palimpsest.h)
  install(FILES palimpsest.h DESTINATION include/palimpsest)
endif()
