#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/onednn_code.h>
#include <palimpsest/core/kernels/onednn_matmul.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <array>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>

namespace palimpsest::kernels::onednn {

namespace {

using dnnl::memory;

// Everything that a compiled product depends on; data pointers are not part of it.
using Key = std::array<int64_t, 18>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (int64_t word : key) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x100000001b3ULL;
    }
    return hash ^ (hash >> 32);
  }
};

struct Compiled {
  memory::desc a, b, c, bias, addend, scratch;
  dnnl::matmul primitive;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type data_type(at::ScalarType dtype) {
  check(
      dtype == at::kFloat || dtype == at::kBFloat16,
      "matrix product: an operand is {}, not fp32 or bf16",
      c10::toString(dtype));
  return dtype == at::kFloat ? memory::data_type::f32 : memory::data_type::bf16;
}

memory::desc describe(const Matrix& matrix) {
  return {
      {matrix.rows, matrix.columns},
      data_type(matrix.dtype),
      memory::dims{matrix.row_stride, matrix.column_stride}};
}

Key key_of(const Matmul& p) {
  return {
      p.a.rows,
      p.a.columns,
      p.c.columns,
      p.a.row_stride,
      p.a.column_stride,
      p.b.row_stride,
      p.b.column_stride,
      p.c.row_stride,
      p.c.column_stride,
      static_cast<int64_t>(p.a.dtype),
      static_cast<int64_t>(p.b.dtype),
      static_cast<int64_t>(p.c.dtype),
      p.bias ? static_cast<int64_t>(p.bias->dtype) : -1,
      p.addend ? static_cast<int64_t>(p.addend->dtype) : -1,
      p.addend ? p.addend->row_stride : -1,
      p.addend ? p.addend->column_stride : -1,
      p.accumulate ? 1 : 0,
      // oneDNN splits the work when it compiles, for the team it then sees.
      at::get_num_threads()};
}

std::shared_ptr<const Compiled> compile(const Matmul& p) {
  auto compiled = std::make_shared<Compiled>();
  compiled->a = describe(p.a);
  compiled->b = describe(p.b);
  compiled->c = describe(p.c);
  dnnl::post_ops post_ops;
  if (p.accumulate) {
    post_ops.append_sum(1.0F);
  }
  if (p.addend) {
    compiled->addend = describe(*p.addend);
    post_ops.append_binary(dnnl::algorithm::binary_add, compiled->addend);
  }
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_post_ops(post_ops);
  if (p.bias) {
    compiled->bias = describe(*p.bias);
  }
#if DNNL_VERSION_MAJOR >= 3
  const auto descriptor = p.bias
      ? dnnl::matmul::primitive_desc(
            cpu_engine(), compiled->a, compiled->b, compiled->bias, compiled->c, attributes)
      : dnnl::matmul::primitive_desc(
            cpu_engine(), compiled->a, compiled->b, compiled->c, attributes);
#else
  const auto operation = p.bias
      ? dnnl::matmul::desc(compiled->a, compiled->b, compiled->bias, compiled->c)
      : dnnl::matmul::desc(compiled->a, compiled->b, compiled->c);
  const dnnl::matmul::primitive_desc descriptor(operation, attributes, cpu_engine());
#endif
  compiled->scratch = descriptor.scratchpad_desc();
  require_code_room();
  compiled->primitive = dnnl::matmul(descriptor);
  return compiled;
}

// A run meets a few dozen shapes, or as many more as it has sequence lengths; starting over when
// full costs less than keeping an order of use.
class Cache {
 public:
  std::shared_ptr<const Compiled> get(const Matmul& product) {
    const Key key = key_of(product);
    {
      const std::lock_guard lock(mutex_);
      if (auto found = compiled_.find(key); found != compiled_.end()) {
        return found->second;
      }
    }
    auto made = compile(product);
    const std::lock_guard lock(mutex_);
    if (compiled_.size() >= kCapacity) {
      compiled_.clear();
    }
    return compiled_.emplace(key, std::move(made)).first->second;
  }

 private:
  static constexpr size_t kCapacity = 1024;
  std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Compiled>, KeyHash> compiled_;
};

} // namespace

bool is_fast(at::ScalarType dtype) {
  if (dtype == at::kFloat) {
    return true;
  }
  // Below AVX-512 oneDNN has bf16 only as slow reference code, or not at all.
  static const bool has_bf16 = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
    return (isa & needed) == needed;
  }();
  return dtype == at::kBFloat16 && has_bf16;
}

bool is_operand(const at::Tensor& tensor) {
  return (tensor.size(1) == 1 || tensor.stride(1) == 1) &&
      (tensor.size(0) == 1 || tensor.stride(0) >= tensor.size(1));
}

Matrix view(const at::Tensor& tensor) {
  return {
      .data = tensor.data_ptr(),
      .dtype = tensor.scalar_type(),
      .rows = tensor.size(0),
      .columns = tensor.size(1),
      .row_stride = tensor.size(0) == 1 ? tensor.size(1) : tensor.stride(0),
      .column_stride = 1};
}

Matrix transposed(const Matrix& matrix) {
  return {
      .data = matrix.data,
      .dtype = matrix.dtype,
      .rows = matrix.columns,
      .columns = matrix.rows,
      .row_stride = matrix.column_stride,
      .column_stride = matrix.row_stride};
}

namespace {

void run(const Matmul& product) {
  static Cache cache;
  check(
      product.a.columns == product.b.rows && product.a.rows == product.c.rows &&
          product.b.columns == product.c.columns,
      "matrix product of [{}, {}] and [{}, {}] into [{}, {}]",
      product.a.rows,
      product.a.columns,
      product.b.rows,
      product.b.columns,
      product.c.rows,
      product.c.columns);
  const auto compiled = cache.get(product);
  const dnnl::engine& engine = cpu_engine();
  const at::Tensor scratch =
      at::empty({static_cast<int64_t>(compiled->scratch.get_size())}, at::kByte);
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, {compiled->a, engine, product.a.data}},
      {DNNL_ARG_WEIGHTS, {compiled->b, engine, product.b.data}},
      {DNNL_ARG_DST, {compiled->c, engine, product.c.data}},
      {DNNL_ARG_SCRATCHPAD, {compiled->scratch, engine, scratch.data_ptr()}}};
  if (product.bias) {
    arguments.emplace(DNNL_ARG_BIAS, memory(compiled->bias, engine, product.bias->data));
  }
  if (product.addend) {
    arguments.emplace(
        DNNL_ARG_ATTR_MULTIPLE_POST_OP(product.accumulate ? 1 : 0) | DNNL_ARG_SRC_1,
        memory(compiled->addend, engine, product.addend->data));
  }
  dnnl::stream stream(engine);
  compiled->primitive.execute(stream, arguments);
  stream.wait();
}

} // namespace

void matmul(const Matmul& product) {
  try {
    run(product);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) {
      throw std::bad_alloc();
    }
    throw;
  }
}

} // namespace palimpsest::kernels::onednn
