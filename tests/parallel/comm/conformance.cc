#include <palimpsest/tests/parallel/comm/conformance.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

namespace palimpsest {

std::string name_of(const ::testing::TestParamInfo<TestWorld>& info) {
  return std::to_string(info.param.size) + "_ranks";
}

std::vector<TestWorld> worlds_of_threads(const std::string& engine, const MakeWorld& make) {
  std::vector<TestWorld> worlds;
  for (int size = 1; size <= 5; ++size) {
    worlds.push_back(
        {.engine = engine, .size = size, .run = [=](const auto& settings, const auto& body) {
           run_threads(make(size, settings), body);
         }});
  }
  return worlds;
}

void run_threads(std::vector<std::unique_ptr<Communicator>> world, const RankBody& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Communicator>& rank : world) {
    threads.emplace_back([&, comm = rank.get()] {
      try {
        body(*comm);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          first = first ? first : std::current_exception();
        }
        comm->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Seconds = std::chrono::duration<double>;

constexpr int64_t kSizes[] = {0, 1, 37};
constexpr int64_t kLarge = (1 << 18) + 3;
constexpr at::ScalarType kTypes[] =
    {at::kByte, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
constexpr at::ScalarType kSummed[] = {at::kHalf, at::kBFloat16, at::kFloat};

/// Whole numbers from 0 to 20 that differ by rank and place: exact in every dtype, as are the sums
/// of 5 of them.
int pattern(int rank, int64_t i) {
  return static_cast<int>((rank * 7 + i * 3 + i / 11) % 21);
}

at::Tensor make(at::ScalarType dtype, int rank, int64_t n) {
  std::vector<int64_t> values(n);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = pattern(rank, i);
  }
  return at::tensor(values, at::kLong).to(dtype);
}

/// Values whose sum depends on the order of adding.
at::Tensor make_rough(at::ScalarType dtype, int rank, int64_t n) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) {
    constexpr float kScales[] = {1, 10, 100, 1e3, 1e4};
    values[i] =
        std::sin(static_cast<float>((i * 5 + rank * 3 + 1) % 97)) * kScales[(i + rank * 2) % 5];
  }
  return at::tensor(values, at::kFloat).to(dtype);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
      (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

/// f(dtype, n) for each dtype with each small size, and for one of each width with the large one.
template <typename F>
void for_each_case(std::span<const at::ScalarType> dtypes, const F& f) {
  for (const at::ScalarType dtype : dtypes) {
    for (const int64_t n : kSizes) {
      f(dtype, n);
    }
  }
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kLong}) {
    if (std::ranges::find(dtypes, dtype) != dtypes.end()) {
      f(dtype, kLarge);
    }
  }
}

TEST_P(Conformance, AllGather) {
  run([](Communicator& comm) {
    for_each_case(kTypes, [&](at::ScalarType dtype, int64_t n) {
      at::Tensor whole = at::zeros({comm.size() * n}, dtype);
      at::Tensor in_place = at::zeros({comm.size() * n}, dtype);
      const at::Tensor mine = make(dtype, comm.rank(), n);
      const at::Tensor slice = in_place.narrow(0, comm.rank() * n, n);
      slice.copy_(mine);
      comm.all_gather(mine, whole).wait();
      comm.all_gather(slice, in_place).wait();
      for (int rank = 0; rank < comm.size(); ++rank) {
        ASSERT_TRUE(same_bits(whole.narrow(0, rank * n, n), make(dtype, rank, n)))
            << c10::toString(dtype) << " n " << n << " from rank " << rank;
      }
      ASSERT_TRUE(same_bits(whole, in_place)) << c10::toString(dtype) << " n " << n;
    });
  });
}

TEST_P(Conformance, ReduceScatterAddsInRankOrderOntoMine) {
  run([](Communicator& comm) {
    for_each_case(kSummed, [&](at::ScalarType dtype, int64_t n) {
      const at::Tensor whole = make_rough(dtype, comm.rank(), comm.size() * n);
      const at::Tensor start = make_rough(at::kFloat, 9, n);
      std::vector<float> expected(n);
      std::vector<c10::BFloat16> narrow(n); // rounded after each part
      for (int64_t i = 0; i < n; ++i) {
        expected[i] = start.data_ptr<float>()[i];
        narrow[i] = expected[i];
      }
      for (int rank = 0; rank < comm.size(); ++rank) {
        const at::Tensor part =
            make_rough(dtype, rank, comm.size() * n).narrow(0, comm.rank() * n, n).to(at::kFloat);
        for (int64_t i = 0; i < n; ++i) {
          expected[i] += part.data_ptr<float>()[i];
          narrow[i] = static_cast<float>(narrow[i]) + part.data_ptr<float>()[i];
        }
      }
      at::Tensor mine = start.to(at::kBFloat16);
      comm.reduce_scatter(whole, mine).wait();
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(mine.data_ptr<c10::BFloat16>()[i], narrow[i])
            << c10::toString(dtype) << " " << i << " of " << n;
      }
      for (int repeat = 0; repeat < 2; ++repeat) {
        at::Tensor mine = start.clone();
        comm.reduce_scatter(whole, mine).wait();
        ASSERT_TRUE(same_bits(mine, at::tensor(expected, at::kFloat)))
            << c10::toString(dtype) << " n " << n;
      }
    });
  });
}

TEST_P(Conformance, AllReduce) {
  run([](Communicator& comm) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      for_each_case(kTypes, [&](at::ScalarType dtype, int64_t n) {
        std::vector<int64_t> expected(n);
        for (int64_t i = 0; i < n; ++i) {
          expected[i] = pattern(0, i);
          for (int rank = 1; rank < comm.size(); ++rank) {
            const int64_t value = pattern(rank, i);
            expected[i] = op == ReduceOp::kSum ? expected[i] + value
                : op == ReduceOp::kMax         ? std::max(expected[i], value)
                                               : std::min(expected[i], value);
          }
        }
        at::Tensor tensor = make(dtype, comm.rank(), n);
        comm.all_reduce(tensor, op).wait();
        ASSERT_TRUE(same_bits(tensor, at::tensor(expected, at::kLong).to(dtype)))
            << c10::toString(dtype) << " n " << n << " op " << static_cast<int>(op);
      });
    }
  });
}

// Whatever the order of an engine's sum, it is one and the same on all ranks, and near the exact.
TEST_P(Conformance, AllReduceGivesTheSameBitsOnAllRanks) {
  run([](Communicator& comm) {
    for (const at::ScalarType dtype : kSummed) {
      constexpr int64_t kCount = 1001;
      at::Tensor tensor = make_rough(dtype, comm.rank(), kCount).div_(100);
      at::Tensor exact = at::zeros({kCount}, at::kDouble);
      at::Tensor largest = at::zeros({kCount}, at::kDouble);
      for (int rank = 0; rank < comm.size(); ++rank) {
        const at::Tensor value = make_rough(dtype, rank, kCount).div_(100).to(at::kDouble);
        exact += value;
        largest += value.abs();
      }
      comm.all_reduce(tensor, ReduceOp::kSum).wait();
      at::Tensor all = at::zeros({comm.size() * kCount}, dtype);
      comm.all_gather(tensor, all).wait();
      const double unit = dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 2e-3 : 1.6e-2;
      const at::Tensor error = tensor.to(at::kDouble).sub(exact).abs();
      ASSERT_TRUE(error.le(largest.mul(unit).add(1e-6)).all().item<bool>()) << c10::toString(dtype);
      for (int rank = 0; rank < comm.size(); ++rank) {
        ASSERT_TRUE(same_bits(all.narrow(0, rank * kCount, kCount), tensor))
            << c10::toString(dtype);
      }
    }
  });
}

TEST_P(Conformance, BroadcastFromEachRoot) {
  run([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      for_each_case(kTypes, [&](at::ScalarType dtype, int64_t n) {
        at::Tensor tensor = make(dtype, comm.rank(), n);
        comm.broadcast(tensor, root).wait();
        ASSERT_TRUE(same_bits(tensor, make(dtype, root, n))) << c10::toString(dtype) << " n " << n;
      });
    }
  });
}

TEST_P(Conformance, SendAndReceiveInBothDirectionsInOrder) {
  if (size() == 1) {
    GTEST_SKIP() << "one rank has no peer";
  }
  run([](Communicator& comm) {
    const int next = (comm.rank() + 1) % comm.size();
    const int previous = (comm.rank() + comm.size() - 1) % comm.size();
    for_each_case(kTypes, [&](at::ScalarType dtype, int64_t n) {
      std::vector<Ticket> tickets;
      at::Tensor from_previous[2] = {at::zeros({n}, dtype), at::zeros({n}, dtype)};
      at::Tensor from_next = at::zeros({n}, dtype);
      tickets.push_back(comm.receive(from_previous[0], previous));
      tickets.push_back(comm.send(make(dtype, comm.rank(), n), next));
      tickets.push_back(comm.send(make(dtype, comm.rank() + 10, n), next));
      tickets.push_back(comm.receive(from_previous[1], previous));
      for (Ticket& ticket : tickets) {
        ticket.wait();
      }
      Ticket back = comm.send(make(dtype, comm.rank() + 20, n), previous);
      comm.receive(from_next, next).wait();
      back.wait();
      ASSERT_TRUE(same_bits(from_previous[0], make(dtype, previous, n)));
      ASSERT_TRUE(same_bits(from_previous[1], make(dtype, previous + 10, n)));
      ASSERT_TRUE(same_bits(from_next, make(dtype, next + 20, n)));
    });
  });
}

TEST_P(Conformance, SeveralTicketsInFlightWaitedForInAnyOrder) {
  run([](Communicator& comm) {
    constexpr int kActions = 12;
    constexpr int64_t kCount = 5000;
    std::vector<at::Tensor> wholes, sums, values;
    std::vector<Ticket> tickets;
    for (int k = 0; k < kActions; ++k) {
      wholes.push_back(at::zeros({comm.size() * kCount}));
      sums.push_back(at::zeros({kCount}));
      values.push_back(make(at::kFloat, comm.rank() + k, kCount));
      tickets.push_back(comm.all_gather(make(at::kFloat, comm.rank() + k, kCount), wholes[k]));
      tickets.push_back(
          comm.reduce_scatter(make(at::kFloat, comm.rank() + k, comm.size() * kCount), sums[k]));
      tickets.push_back(comm.all_reduce(values[k], ReduceOp::kMax));
      tickets.push_back(comm.barrier());
    }
    // Each rank in its own order.
    std::rotate(tickets.begin(), tickets.begin() + comm.rank() * 7 % tickets.size(), tickets.end());
    while (!tickets.back().done()) {
      std::this_thread::yield();
    }
    for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
      ticket->wait();
    }
    for (int k = 0; k < kActions; ++k) {
      at::Tensor sum = at::zeros({kCount});
      at::Tensor largest = at::zeros({kCount});
      for (int rank = 0; rank < comm.size(); ++rank) {
        const at::Tensor theirs = make(at::kFloat, rank + k, kCount);
        ASSERT_TRUE(same_bits(wholes[k].narrow(0, rank * kCount, kCount), theirs));
        largest = largest.maximum(theirs);
        sum += make(at::kFloat, rank + k, comm.size() * kCount)
                   .narrow(0, comm.rank() * kCount, kCount);
      }
      ASSERT_TRUE(same_bits(sums[k], sum));
      ASSERT_TRUE(same_bits(values[k], largest));
    }
  });
}

TEST_P(Conformance, ADroppedTicketHasFinished) {
  run([](Communicator& comm) {
    at::Tensor whole = at::zeros({comm.size() * 100});
    { const Ticket dropped = comm.all_gather(make(at::kFloat, comm.rank(), 100), whole); }
    for (int rank = 0; rank < comm.size(); ++rank) {
      EXPECT_TRUE(same_bits(whole.narrow(0, rank * 100, 100), make(at::kFloat, rank, 100)));
    }
  });
}

// Its buffers can be freed then, whatever thread of a library has worked on them.
TEST_P(Conformance, WhatWasWaitedForHoldsNoBuffers) {
  run([](Communicator& comm) {
    constexpr int64_t kCount = 5000;
    for (int round = 0; round < 50; ++round) {
      const at::Tensor mine = at::zeros({kCount});
      const at::Tensor whole = at::zeros({comm.size() * kCount});
      comm.reduce_scatter(whole, mine).wait();
      EXPECT_EQ(whole.storage().use_count(), 1) << round;
      comm.all_gather(mine, whole).wait();
      comm.all_reduce(mine, ReduceOp::kSum).wait();
      comm.broadcast(mine, 0).wait();
      EXPECT_EQ(whole.storage().use_count(), 1) << round;
      EXPECT_EQ(mine.storage().use_count(), 1) << round;
    }
  });
}

TEST_P(Conformance, NobodyLeavesABarrierBeforeAllHaveCome) {
  run([](Communicator& comm) {
    const auto now = [] {
      return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
    const int late = comm.size() - 1;
    if (comm.rank() == late) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    at::Tensor came = at::full({1}, now(), at::kDouble);
    comm.barrier().wait();
    const double left = now();
    comm.broadcast(came, late).wait();
    EXPECT_GE(left, came.item<double>());
  });
}

TEST_P(Conformance, SplitsIntoGroupsOrderedByKey) {
  run([](Communicator& comm) {
    const int color = comm.rank() % 2;
    const std::unique_ptr<Communicator> group = comm.split(color, -comm.rank(), "half");
    std::vector<int> members; // world ranks of this colour, the last first
    for (int rank = comm.size() - 1; rank >= 0; --rank) {
      if (rank % 2 == color) {
        members.push_back(rank);
      }
    }
    const int size = static_cast<int>(members.size());
    ASSERT_EQ(group->size(), size);
    ASSERT_EQ(members[group->rank()], comm.rank());
    EXPECT_THAT(group->description(), HasSubstr("half"));

    // Group and world are in use at the same time, and the group is split again.
    at::Tensor whole = at::zeros({comm.size() * 3});
    at::Tensor part = at::zeros({size * 3});
    Ticket outer = comm.all_gather(make(at::kFloat, comm.rank(), 3), whole);
    group->all_gather(make(at::kFloat, comm.rank(), 3), part).wait();
    outer.wait();
    for (int place = 0; place < size; ++place) {
      EXPECT_TRUE(same_bits(part.narrow(0, place * 3, 3), make(at::kFloat, members[place], 3)));
    }
    const std::unique_ptr<Communicator> single = group->split(group->rank(), 0, "single");
    ASSERT_EQ(single->size(), 1);
    at::Tensor alone = make(at::kFloat, 4, 3);
    single->all_reduce(alone, ReduceOp::kSum).wait();
    EXPECT_TRUE(same_bits(alone, make(at::kFloat, 4, 3)));
    comm.barrier().wait();
  });
}

// What a rank sees of an operation that cannot finish.
std::string error_of(Ticket ticket) {
  try {
    ticket.wait();
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  return "no error";
}

TEST_P(Conformance, AnAbortEndsWhatWaitsAtThePeers) {
  if (size() == 1 || !GetParam().survives_failure) {
    GTEST_SKIP() << "one rank has no peer, and other worlds fail in their own way";
  }
  run([](Communicator& comm) {
    const std::unique_ptr<Communicator> group = comm.split(0, comm.rank(), "half");
    at::Tensor whole = at::zeros({comm.size()});
    if (comm.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      comm.abort("out of memory in block 3");
    }
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(
        error_of(group->all_gather(at::zeros({1}), whole)),
        AllOf(HasSubstr("all_gather"), HasSubstr("half"), HasSubstr("out of memory in block 3")));
    EXPECT_THAT(error_of(comm.barrier()), HasSubstr("out of memory in block 3"));
    EXPECT_LT(Seconds(std::chrono::steady_clock::now() - start).count(), 5);
  });
}

TEST_P(Conformance, ARankThatDoesNotComeIsNamedAtTheTimeout) {
  if (size() == 1 || !GetParam().survives_failure) {
    GTEST_SKIP() << "one rank has no peer, and other worlds fail in their own way";
  }
  const int missing = size() - 1;
  std::atomic<int> told = 0;
  run(
      [&](Communicator& comm) {
        at::Tensor sum = at::zeros({1});
        comm.barrier().wait();
        if (comm.rank() == missing) {
          for (int i = 0; i < 1000 && told < missing; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
          return;
        }
        const auto start = std::chrono::steady_clock::now();
        EXPECT_THAT(
            error_of(comm.reduce_scatter(at::zeros({comm.size()}), sum)),
            AllOf(
                HasSubstr("reduce_scatter"),
                HasSubstr("rank " + std::to_string(missing)),
                HasSubstr("within 0.1 s")));
        const double waited = Seconds(std::chrono::steady_clock::now() - start).count();
        EXPECT_GE(waited, 0.02); // another rank may have begun to wait earlier
        EXPECT_LT(waited, 5);
        ++told;
      },
      {.timeout = std::chrono::milliseconds(100)});
}

// The receive in flight is waited for while the error unwinds, and its peer never sends.
TEST_P(Conformance, ARankThatThrowsEndsTheWorldInSpiteOfWhatIsInFlight) {
  if (size() != 2 || !GetParam().survives_failure) {
    GTEST_SKIP() << "two ranks show it";
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(
      run([](Communicator& comm) {
        at::Tensor tensor = at::zeros({1});
        if (comm.rank() == 0) {
          const Ticket in_flight = comm.receive(tensor, 1);
          throw EnvironmentError("disk full");
        }
        EXPECT_THAT(error_of(comm.barrier()), HasSubstr("rank"));
      }),
      EnvironmentError);
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - start).count(), 10);
}

TEST_P(Conformance, WrongOperandsAreRefusedBeforeAnyPeerHearsOfThem) {
  run([](Communicator& comm) {
    const at::Tensor floats = at::zeros({comm.size() * 2});
    EXPECT_THROW(comm.all_gather(at::zeros({3}), floats), InternalError);
    EXPECT_THROW(comm.all_gather(at::zeros({2}, at::kInt), floats), InternalError);
    EXPECT_THROW(comm.reduce_scatter(floats, at::zeros({2}, at::kHalf)), InternalError);
    EXPECT_THROW(
        comm.reduce_scatter(at::zeros({comm.size() * 2}, at::kInt), at::zeros({2})), InternalError);
    EXPECT_THROW(comm.all_reduce(at::zeros({2, 2}).t(), ReduceOp::kSum), InternalError);
    EXPECT_THROW(comm.all_reduce(at::zeros({2}, at::kBool), ReduceOp::kSum), InternalError);
    EXPECT_THROW(comm.broadcast(floats, comm.size()), InternalError);
    EXPECT_THROW(comm.send(floats, comm.rank()), InternalError);
    EXPECT_THROW(comm.receive(floats, -1), InternalError);
    comm.barrier().wait();
  });
}

} // namespace
} // namespace palimpsest
