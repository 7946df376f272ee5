// What the header files of a newer glibc refer to and glibc 2.27 lacks. Linked into the wheels' library alone, and there
// hidden.

extern "C" {

// Since 2.32: not 0 tells reference counts that no other thread can run. 0 is always right: it makes them atomic.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

}  // extern "C"
