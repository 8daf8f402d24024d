// The matchers of GoogleMock, for the namespaces of the tests.

#pragma once

#include <gmock/gmock.h>

namespace linkboy::testing {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::StartsWith;

}  // namespace linkboy::testing
