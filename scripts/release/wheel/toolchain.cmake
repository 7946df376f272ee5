# How the wheels' library is built: for the processor POET_PROCESSOR, by POET_COMPILER, against the stubs in POET_STUBS
# (link_stubs.py). Given to CMake by scripts/release/build_wheels.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES POET_PROCESSOR POET_COMPILER POET_STUBS)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${POET_PROCESSOR})
set(CMAKE_CXX_COMPILER ${POET_COMPILER})
# 64 KiB: some kernels for aarch64 have pages of that size.
set(CMAKE_SHARED_LINKER_FLAGS_INIT
    "-L${POET_STUBS} -Wl,--as-needed -Wl,--exclude-libs,ALL -Wl,--no-undefined -Wl,-z,max-page-size=65536")
