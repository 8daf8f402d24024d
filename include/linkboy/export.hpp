// What a shared linkboy gives to programs: everything with LINKBOY_API in front. All else is
// hidden.

#pragma once

/// Marks what programs may use.
#define LINKBOY_API [[gnu::visibility("default")]]
