// The export macro of a shared linkboy. Only declarations with LINKBOY_API are visible to programs.

#pragma once

/// Marks a declaration that programs can use.
#define LINKBOY_API [[gnu::visibility("default")]]
