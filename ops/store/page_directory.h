// Where a page file may be. A page in RAM takes the memory that paging is to free, so directories there are refused.
#pragma once

#include <string>

namespace poet {

// What keeps an open file or directory, or the one of a path, in RAM: "tmpfs", "zram0" or the like. "" where it is on
// storage or nobody can tell: a network's or FUSE's file system, a device mapper over RAM, a container's overlay whose
// upper directory is out of sight.
std::string ram_behind(int descriptor);
std::string ram_behind(const std::string& path);

// Throws Error, with the way out, where the directory, or the page file that is open in it, is in RAM.
void require_storage(const std::string& directory);
void require_storage(const std::string& directory, int descriptor);

// Whether POET_PAGE_IN_RAM says that pages may be in RAM. Throws Error where it says neither 1 nor 0.
bool environment_allows_ram();

// The directory of POET_PAGE_DIR; else the first on storage of the one for temporary files and /var/tmp.
std::string default_page_directory(bool allows_ram);

}  // namespace poet
