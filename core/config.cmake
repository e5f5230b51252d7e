# The run's settings: protobuf schema, loader, checks. The generated header is included as
# <palimpsest/core/config/run_config.pb.h>.
palimpsest_protos(core/config config_sources key_options run_config)
palimpsest_library(core/config SOURCES ${config_sources}
  DEPENDS core/base protobuf::libprotobuf yaml-cpp::yaml-cpp nlohmann_json::nlohmann_json)
