#include <palimpsest/parallel/comm/mpi.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/ordered_sum.h>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

namespace palimpsest {

namespace {

void must(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    throw std::runtime_error(std::string(call) + ": " + std::string(text.data(), length));
  }
}

template <at::ScalarType dtype, ReduceOp op>
void reduce_16_bits(void* in, void* inout, int* count, MPI_Datatype* /*type*/) {
  const std::array<const void*, 2> parts{in, inout};
  reduce_in_order(parts, dtype, op, inout, *count);
}

template <at::ScalarType dtype, ReduceOp op>
MPI_Op make_op() {
  MPI_Op result = MPI_OP_NULL;
  must(MPI_Op_create(reduce_16_bits<dtype, op>, 1, &result), "MPI_Op_create");
  return result;
}

template <at::ScalarType dtype>
std::array<MPI_Op, 3> make_ops() {
  return {
      make_op<dtype, ReduceOp::kSum>(),
      make_op<dtype, ReduceOp::kMax>(),
      make_op<dtype, ReduceOp::kMin>()};
}

/// MPI as the process has it: it can be initialised once, and ended once.
class Session {
 public:
  static Session& get() {
    static Session session;
    return session;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (owned_ && !failed_ && all_have_come()) {
      MPI_Finalize();
    }
  }

  void set_failed() {
    failed_ = true;
  }
  bool failed() const {
    return failed_;
  }

  /// How MPI names a dtype and reduces it; 16-bit floating point in fp32, by our own operations.
  std::pair<MPI_Datatype, MPI_Op> reduction(at::ScalarType dtype, ReduceOp op) const {
    constexpr std::array<MPI_Op, 3> kOps{MPI_SUM, MPI_MAX, MPI_MIN};
    const auto index = static_cast<size_t>(op);
    switch (dtype) {
      case at::kHalf:
        return {MPI_UINT16_T, half_ops_[index]};
      case at::kBFloat16:
        return {MPI_UINT16_T, bfloat16_ops_[index]};
      case at::kByte:
        return {MPI_UINT8_T, kOps[index]};
      case at::kInt:
        return {MPI_INT32_T, kOps[index]};
      case at::kLong:
        return {MPI_INT64_T, kOps[index]};
      case at::kDouble:
        return {MPI_DOUBLE, kOps[index]};
      default:
        return {MPI_FLOAT, kOps[index]};
    }
  }

 private:
  Session() {
    int initialized = 0;
    MPI_Initialized(&initialized);
    owned_ = initialized == 0;
    int provided = MPI_THREAD_MULTIPLE;
    if (owned_) {
      must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    } else {
      MPI_Query_thread(&provided);
    }
    if (provided < MPI_THREAD_MULTIPLE) {
      throw EnvironmentError(
          "this MPI library does not allow calls from several threads (MPI_THREAD_MULTIPLE): "
          "choose backend gloo, or another build of MPI");
    }
    must(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    half_ops_ = make_ops<at::kHalf>();
    bfloat16_ops_ = make_ops<at::kBFloat16>();
  }

  /// MPI_Finalize waits for all ranks: without end where one has ended otherwise.
  static bool all_have_come() {
    MPI_Request request = MPI_REQUEST_NULL;
    int come = MPI_Ibarrier(MPI_COMM_WORLD, &request) == MPI_SUCCESS ? 0 : -1;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (come == 0 && std::chrono::steady_clock::now() < deadline) {
      if (MPI_Test(&request, &come, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return come == 1;
  }

  bool owned_ = false;
  std::atomic<bool> failed_ = false;
  std::array<MPI_Op, 3> half_ops_{};
  std::array<MPI_Op, 3> bfloat16_ops_{};
};

/// A number of bytes as one argument of MPI, whose counts are ints.
class Bytes {
 public:
  Bytes(int64_t bytes, int largest_count) : count_(static_cast<int>(bytes)), type_(MPI_BYTE) {
    if (bytes <= largest_count) {
      return;
    }
    MPI_Datatype block = MPI_DATATYPE_NULL;
    must(MPI_Type_contiguous(largest_count, MPI_BYTE, &block), "MPI_Type_contiguous");
    const auto blocks = static_cast<int>(bytes / largest_count);
    const std::array<int, 2> counts{blocks, static_cast<int>(bytes % largest_count)};
    const std::array<MPI_Aint, 2> offsets{0, MPI_Aint{blocks} * largest_count};
    const std::array<MPI_Datatype, 2> types{block, MPI_BYTE};
    must(
        MPI_Type_create_struct(2, counts.data(), offsets.data(), types.data(), &type_),
        "MPI_Type_create_struct");
    must(MPI_Type_commit(&type_), "MPI_Type_commit");
    MPI_Type_free(&block);
    count_ = 1;
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  /// MPI keeps the type as long as operations use it.
  ~Bytes() {
    if (type_ != MPI_BYTE) {
      MPI_Type_free(&type_);
    }
  }
  int count() const {
    return count_;
  }
  MPI_Datatype type() const {
    return type_;
  }

 private:
  int count_;
  MPI_Datatype type_;
};

class MpiRequest final : public Request {
 public:
  explicit MpiRequest(std::vector<at::Tensor> operands) : operands_(std::move(operands)) {}
  MPI_Request* add() {
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  bool poll() override {
    int done = 0;
    must(
        MPI_Testall(
            static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    return done != 0;
  }

 private:
  std::vector<at::Tensor> operands_;
  std::vector<MPI_Request> requests_;
};

class MpiEngine final : public Engine {
 public:
  MpiEngine(MPI_Comm comm, int largest_count) : comm_(comm), largest_count_(largest_count) {
    must(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    MPI_Comm_rank(comm, &rank_);
    MPI_Comm_size(comm, &size_);
  }
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;
  ~MpiEngine() override {
    if (!Session::get().failed()) {
      MPI_Comm_free(&comm_);
    }
  }

  std::string name() const override {
    return "mpi";
  }
  bool progresses_alone() const override {
    return false;
  }

  std::unique_ptr<Request> all_gather(const at::Tensor& mine, const at::Tensor& whole) override {
    auto request = std::make_unique<MpiRequest>(std::vector{mine, whole});
    const Bytes part(mine.nbytes(), largest_count_);
    const char* const place = data(whole) + rank_ * mine.nbytes();
    const void* const from = data(mine) == place ? MPI_IN_PLACE : data(mine);
    must(
        MPI_Iallgather(
            from,
            part.count(),
            part.type(),
            data(whole),
            part.count(),
            part.type(),
            comm_,
            request->add()),
        "MPI_Iallgather");
    return request;
  }

  std::unique_ptr<Request> all_to_all(const at::Tensor& whole, const at::Tensor& parts) override {
    auto request = std::make_unique<MpiRequest>(std::vector{whole, parts});
    const Bytes part(whole.nbytes() / size_, largest_count_);
    must(
        MPI_Ialltoall(
            data(whole),
            part.count(),
            part.type(),
            data(parts),
            part.count(),
            part.type(),
            comm_,
            request->add()),
        "MPI_Ialltoall");
    return request;
  }

  std::unique_ptr<Request> all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    auto request = std::make_unique<MpiRequest>(std::vector{tensor});
    const auto [type, operation] = Session::get().reduction(tensor.scalar_type(), op);
    const int64_t pieces = (tensor.numel() + largest_count_ - 1) / largest_count_;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t begin = piece * largest_count_;
      const int64_t count = std::min<int64_t>(largest_count_, tensor.numel() - begin);
      MPI_Request issued = MPI_REQUEST_NULL;
      must(
          MPI_Iallreduce(
              MPI_IN_PLACE,
              data(tensor) + begin * tensor.element_size(),
              static_cast<int>(count),
              type,
              operation,
              comm_,
              &issued),
          "MPI_Iallreduce");
      *request->add() = issued;
    }
    return request;
  }

  std::unique_ptr<Request> broadcast(const at::Tensor& tensor, int root) override {
    auto request = std::make_unique<MpiRequest>(std::vector{tensor});
    const Bytes bytes(tensor.nbytes(), largest_count_);
    must(
        MPI_Ibcast(data(tensor), bytes.count(), bytes.type(), root, comm_, request->add()),
        "MPI_Ibcast");
    return request;
  }

  std::unique_ptr<Request> send(const at::Tensor& tensor, int peer) override {
    auto request = std::make_unique<MpiRequest>(std::vector{tensor});
    const Bytes bytes(tensor.nbytes(), largest_count_);
    must(
        MPI_Isend(data(tensor), bytes.count(), bytes.type(), peer, 0, comm_, request->add()),
        "MPI_Isend");
    return request;
  }

  std::unique_ptr<Request> receive(const at::Tensor& tensor, int peer) override {
    auto request = std::make_unique<MpiRequest>(std::vector{tensor});
    const Bytes bytes(tensor.nbytes(), largest_count_);
    must(
        MPI_Irecv(data(tensor), bytes.count(), bytes.type(), peer, 0, comm_, request->add()),
        "MPI_Irecv");
    return request;
  }

  std::unique_ptr<Request> barrier() override {
    auto request = std::make_unique<MpiRequest>(std::vector<at::Tensor>());
    must(MPI_Ibarrier(comm_, request->add()), "MPI_Ibarrier");
    return request;
  }

  std::shared_ptr<Engine> split(
      const std::vector<int>& members,
      int /*place*/,
      const std::string& /*name*/) override {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    must(MPI_Comm_group(comm_, &all), "MPI_Comm_group");
    must(
        MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some),
        "MPI_Group_incl");
    must(MPI_Comm_create_group(comm_, some, 0, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    return std::make_shared<MpiEngine>(comm, largest_count_);
  }

  void note_failure() noexcept override {
    Session::get().set_failed();
  }
  void give_up() noexcept override {
    note_failure();
  }

 private:
  static char* data(const at::Tensor& tensor) {
    return static_cast<char*>(tensor.data_ptr());
  }

  MPI_Comm comm_;
  int largest_count_;
  int rank_ = 0;
  int size_ = 1;
};

} // namespace

bool has_mpi() {
  return true;
}

MpiWorld mpi_world(int largest_count) {
  Session::get();
  MpiWorld world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  MPI_Comm host = MPI_COMM_NULL;
  must(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &host),
      "MPI_Comm_split_type");
  int here = 1;
  MPI_Comm_size(host, &here);
  MPI_Comm_free(&host);
  world.one_host = here == world.size;
  if (world.size > 1) {
    MPI_Comm comm = MPI_COMM_NULL;
    must(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    world.engine = std::make_shared<MpiEngine>(comm, largest_count);
  }
  return world;
}

} // namespace palimpsest
