#include <palimpsest/parallel/comm/mpi.h>

#include <palimpsest/core/base/error.h>

namespace palimpsest {

bool has_mpi() {
  return false;
}

MpiWorld mpi_world(int /*largest_count*/) {
  throw UserError(
      "this program was built without MPI: choose backend gloo, or install an MPI library with its "
      "headers and build again");
}

} // namespace palimpsest
