# The run's settings: protobuf schema, loader, checks. The generated header is included like any other, as
# <palimpsest/core/config/run_config.pb.h>, from a second include root beside the source link.
set(PALIMPSEST_GENERATED ${CMAKE_BINARY_DIR}/generated)
set(config_folder ${PALIMPSEST_GENERATED}/palimpsest/core/config)
set(config_protos key_options run_config)
list(TRANSFORM config_protos REPLACE "(.+)" "${CMAKE_CURRENT_SOURCE_DIR}/config/\\1.proto" OUTPUT_VARIABLE config_schemas)
list(TRANSFORM config_protos REPLACE "(.+)" "${config_folder}/\\1.pb.cc" OUTPUT_VARIABLE config_sources)
list(TRANSFORM config_protos REPLACE "(.+)" "${config_folder}/\\1.pb.h" OUTPUT_VARIABLE config_headers)
list(TRANSFORM config_protos REPLACE "(.+)" "palimpsest/core/config/\\1.proto" OUTPUT_VARIABLE config_imports)

file(MAKE_DIRECTORY ${PALIMPSEST_GENERATED})
add_custom_command(
  OUTPUT ${config_sources} ${config_headers}
  COMMAND protobuf::protoc --proto_path=${PALIMPSEST_INCLUDE} --proto_path=${Protobuf_INCLUDE_DIRS}
          --cpp_out=${PALIMPSEST_GENERATED} ${config_imports}
  DEPENDS ${config_schemas}
  VERBATIM)

palimpsest_library(core/config SOURCES ${config_sources} ${config_headers}
  DEPENDS core/base protobuf::libprotobuf yaml-cpp::yaml-cpp nlohmann_json::nlohmann_json)
target_include_directories(palimpsest_core_config SYSTEM PUBLIC $<BUILD_INTERFACE:${PALIMPSEST_GENERATED}>)
set_source_files_properties(${config_sources} PROPERTIES COMPILE_OPTIONS -w)
