#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/bytes.h"
#include "data/dataset.h"

namespace ballast::data {

// One sample to read and the planned memory it goes to.
struct SampleRequest {
  std::uint32_t sample = 0;
  bool use_empty_caption = false;
  SampleTarget to = {};
};

// Reads the samples of the next step on a thread of its own while this one is computed. The caller
// owns two slots of planned memory and hands over the one that is not in use:
//
//   prefetcher.request(samples of step 1, slot 0);
//   for each step:
//     prefetcher.wait();                                  // step n is in its slot
//     prefetcher.request(samples of step n + 1, the other slot);
//     compute step n
//
// At most one request is under way. request(), wait() and the destructor belong to one thread; the
// slot belongs to the prefetcher from request() until wait() returns or throws. The dataset must
// outlive it. Nothing is allocated per request once the longest one was made, besides what
// Dataset::read() frees again.
class Prefetcher {
 public:
  // Of the thread's stack and what reading one sample takes on the heap: a line of the plan.
  static constexpr Bytes kBytes = 512_KiB;

  explicit Prefetcher(const Dataset& dataset);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher();  // lets the sample being read finish, then stops

  // Starts reading, in order. The list is copied. No request may be under way.
  void request(std::span<const SampleRequest> batch);
  // Returns when the request is complete; throws what went wrong with it. Does nothing when none
  // was made.
  void wait();
  bool under_way() const;

 private:
  enum class State : std::uint8_t { idle, reading, done };

  void run();

  const Dataset& dataset_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::idle;
  bool stop_ = false;
  std::vector<SampleRequest> batch_;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ballast::data
