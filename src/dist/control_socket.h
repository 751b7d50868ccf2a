#pragma once

#include <string_view>

#include "memory/file_descriptor.h"

namespace ballast {

// Sockets of the control channel among the ranks of one host: Unix-domain, with names of no file
// (abstract), made from the job's token and the rank that listens. They do not block, and programs
// that this process starts do not inherit them.

// Fails with ErrorCode::device where the system gives none.
FileDescriptor listen_for_ranks(std::string_view token, int rank);
// One that has come, of this user or root; empty: nobody is there.
FileDescriptor accept_rank(const FileDescriptor& listener);
// Empty: that rank does not listen yet.
FileDescriptor connect_to_rank(std::string_view token, int rank);

}  // namespace ballast
