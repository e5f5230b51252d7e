#include <palimpsest/core/device/relief.h>

#include <utility>

namespace palimpsest {
namespace {

thread_local ScopedRelief* innermost = nullptr;

} // namespace

ScopedRelief::ScopedRelief(std::function<bool()> free)
    : free_(std::move(free)), previous_(std::exchange(innermost, this)) {}

ScopedRelief::~ScopedRelief() {
  innermost = previous_;
}

bool relieve() {
  struct Restore {
    ~Restore() {
      innermost = relief;
    }
    ScopedRelief* relief;
  };
  const Restore restore{std::exchange(innermost, nullptr)};
  return restore.relief != nullptr && restore.relief->free_();
}

} // namespace palimpsest
