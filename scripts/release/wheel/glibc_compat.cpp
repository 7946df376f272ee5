// What the header files of a newer glibc refer to and glibc 2.27 lacks. Linked into the wheels' library alone, where
// needed; the linker hides it there. Built without _FILE_OFFSET_BITS, so that fcntl is the function of that name.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>

struct stat64;

extern "C" {

// Since 2.32: not 0 tells reference counts that no other thread can run. 0 is always right: it makes them atomic.
char __libc_single_threaded = 0;

// Since 2.28: the name of fcntl where file offsets have 64 bits, as they always have on these processors.
int fcntl64(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl(descriptor, command, argument);
}

// Since 2.33 functions of libc; header files of 2.27 had them in each program. The kernel fills in what they return.
int fstat64(int descriptor, struct stat64* status) { return static_cast<int>(syscall(SYS_fstat, descriptor, status)); }

int lstat64(const char* path, struct stat64* status) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW));
}

}  // extern "C"
