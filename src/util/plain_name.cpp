// Rejects names from a training state that could lead out of a folder.

#include "linkboy/util/plain_name.hpp"

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {

const std::string& require_plain_name(const std::string& name, std::string_view what) {
  using namespace std::string_view_literals;
  const bool is_plain = !name.empty() && name != "." && name != ".." &&
                        name.find_first_of("/\0"sv) == std::string::npos;
  LINKBOY_CHECK(is_plain, what, " is called ", quote_name(name),
                " in the training state; it must be a plain name, without \"/\" and not \".\" or "
                "\"..\". Do not trust this training state.");
  return name;
}

}  // namespace linkboy
