// Pages of programs and libraries that this process has mapped and does not write: code, and data that stays as it is.
#pragma once

namespace poet {

// Takes such pages out of this process's memory, and lets it take back those that it uses in small pieces. Importing
// and loading use code that training never does; and Linux 6.18 maps with a page whatever the page cache holds with it
// in one folio, some 100 KB where a library was just installed. Nothing is lost: a page that is used again is mapped
// again, from the page cache. What a debugger has changed, or the system does not tell of, stays.
void release_code_pages() noexcept;

}  // namespace poet
