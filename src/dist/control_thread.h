#pragma once

#include <sys/stat.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "dist/control_channel.h"
#include "dist/control_link.h"

namespace ballast {

// The thread of a control channel and what it knows. Members in the second part are its own; those
// in the first are shared with the rank's other threads, under the mutex.
class ControlChannel::Thread {
 public:
  explicit Thread(ControlOptions options);
  ~Thread();
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  static std::size_t links_of(int rank, int ranks);

  ControlOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  ControlHeartbeat state_;
  std::string command_;
  std::function<void(const ControlReport&)> last_words_;
  std::optional<ControlFacts> facts_to_send_;
  std::optional<std::string> differ_;
  std::optional<ControlFailure> failure_;  // of this rank
  ControlTime failed_at_;
  std::optional<ControlReport> report_;
  bool printed_ = false;
  bool news_ = false;  // in the state, not to wait for the next heartbeat
  bool finished_ = false, quit_ = false, leaving_ = false;

  void wake() noexcept;

 private:
  // A connection, and who is at its other end.
  struct Link {
    ControlLink line;
    int rank = -1;      // unknown until it has said so
    bool mine = false;  // connected by this rank
    ControlTime since;
  };

  bool coordinates() const { return options_.rank <= 1; }  // itself, or in its place
  ControlPeer& own() { return peers_[static_cast<std::size_t>(options_.rank)]; }
  const ControlPeer& own() const { return peers_[static_cast<std::size_t>(options_.rank)]; }

  void run();
  void turn();
  void take_requests(ControlTime now);
  void connect_missing(ControlTime now);
  void connect_to(int rank, ControlTime now);
  bool has_link(int rank) const;
  void accept_all(ControlTime now);
  void wait(std::chrono::milliseconds most);
  void receive_all();
  void take(Link& link, const ControlFrame& frame);
  void take_hello(Link& link, const ControlFrame& frame);
  void refuse(Link& link, std::string why);
  void lost_link(Link& link, ControlTime now);
  void forgive_pause(ControlTime now);
  bool has_news(ControlTime now);
  void send_heartbeat(ControlTime now);
  void fill_heartbeat();
  void compare_facts();
  template <class Message>
  void send_to_all(const Message& message);

  std::chrono::milliseconds hang_limit() const;
  std::optional<ControlCause> find_hang(ControlTime now) const;
  std::optional<ControlCause> find_absent(ControlTime now) const;
  void look_at_ends(ControlTime now);
  bool all_accounted() const;
  bool ready(ControlTime now) const;
  void decide(ControlTime now);
  static std::optional<std::uint64_t> oom_kills();  // in the control group so far
  ControlFindings findings_of(const ControlCause& cause);
  void apply(ControlReport report, ControlTime now);
  void print(const ControlReport& report) const;
  void end_in_time(ControlTime now);
  void word(ControlTime now);

  std::vector<ControlPeer> peers_;  // by rank
  std::vector<std::unique_ptr<Link>> links_;
  FileDescriptor listener_, wake_;
  std::vector<std::optional<ControlFacts>> facts_;  // by rank, of the comparison in progress
  std::optional<std::uint64_t> oom_kills_;          // in the control group, at the start
  ControlBuffer frame_{};
  ControlHeartbeat beat_;
  ControlTime begun_, next_beat_, turned_;
  std::optional<ControlTime> first_word_, applied_;
  std::optional<ControlCause> hang_;
  bool told_ = false;  // of this rank's failure
  std::thread thread_;
};

}  // namespace ballast
