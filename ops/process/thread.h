// Threads of the library's own.
#pragma once

#include <functional>
#include <thread>

namespace poet {

// Starts a thread that takes no signals, which belong to the application's threads. `name`: at most 15 characters.
// Throws Error where none can be started.
std::thread start_thread(const char* name, std::function<void()> body);

}  // namespace poet
